"""Rows of tables too large to hold, by id: engram rows (a weight row and its scale row), token embeddings (one tensor).

Ids are known before the bytes are needed, so reading is in two halves: `issue` sends the reads off, `collect` takes the
bytes. Rows are fetched once however often they are asked for, sorted, and together where they lie in one page. What a
reader would get
wrong: ids and offsets are 64-bit (a released table has 384 million rows in 98 GB), and a row may straddle blocks or be
the last bytes of its file.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.arena import Arena
from storage.batch import ReadRequest, Ticket
from storage.defaults import DEFAULT_CACHE_ROWS
from storage.errors import BadShape, RowOutOfRange, shown
from storage.extents import Extent
from storage.headers import TensorEntry
from storage.ids import SlotIndex
from storage.loader import Reader
from storage.policy import POLICIES, Policy
from storage.syscalls import PAGE_BYTES
from storage.ticket import Check, no_check

ROW_POLICY = "s3fifo"
"""N-grams follow a Zipf law with a long tail seen once: newcomers must not push out what is asked for all the time."""

_GAP_BYTES = 4096
"""Rows this near are read in one go: a drive gives a page in the time of a sector."""
_CELL_BYTES = 1 << 18
"""No read crosses a multiple of this in the file, which bounds one read and the memory it needs."""
_BATCH_ROWS = 1024
_BATCHES_IN_FLIGHT = 2


@dataclass(slots=True, kw_only=True)
class RowStats:
    """What was asked of a table since it was made."""

    n_hits: int = 0
    """Distinct rows of each request that were in the cache."""
    n_misses: int = 0
    """Distinct rows of each request that were read."""
    n_reads: int = 0
    """Reads sent to the drives."""
    read_bytes: int = 0
    """Bytes those reads asked for, gaps between neighbouring rows included."""
    wait_s: float = 0.0
    """Time `collect` waited for them."""


class _Batch(NamedTuple):
    """Reads under way for some of a ticket's missing rows."""

    rows: slice
    """Which of the missing rows."""
    ticket: Ticket
    staging: tuple[NDArray[np.uint8], ...]
    """Per tensor, what its reads write into."""
    starts: tuple[NDArray[np.int64], ...]
    """Per tensor, where each row begins in there."""


class RowTable:
    """The rows of one or more tensors that belong together, and a cache of those asked for. For one thread.

    Args:
        tensors: Tensors of the same number of rows; their first dimension counts rows.
        reader: Reads extents. Not closed by the table.
        cache_rows: Rows kept; 0 keeps none.
        policy: A name in `POLICIES`.

    Raises: BadShape when the tensors do not have the same number of rows.
    """

    def __init__(
        self,
        tensors: Sequence[TensorEntry],
        reader: Reader,
        *,
        cache_rows: int = DEFAULT_CACHE_ROWS,
        policy: str = ROW_POLICY,
    ) -> None:
        self._extents = tuple(tensor.extent for tensor in tensors)
        self.n_rows = tensors[0].shape[0] if tensors[0].shape else 0
        """Rows of the table; ids go from 0 to one less."""
        for tensor in tensors:
            if not self.n_rows or tensor.shape[:1] != (self.n_rows,) or tensor.extent.length % self.n_rows:
                raise BadShape(
                    f"{shown(tensor.name)} has shape {list(tensor.shape)}, which is not {self.n_rows:,} rows",
                    shard=tensor.extent.shard,
                    tensor=tensor.name,
                    found=tensor.shape,
                    expected=self.n_rows,
                )
        self._name = tensors[0].name
        self.row_bytes = tuple(extent.length // self.n_rows for extent in self._extents)
        """Bytes of a row in each tensor."""
        self._reader = reader
        self._cache = _Cache(min(cache_rows, self.n_rows), self.row_bytes, policy)
        self._stats = RowStats()

    def issue(self, row_ids: ArrayLike) -> "RowTicket":
        """Send off the reads for these rows, any shape, repeats allowed; of very many, the first ones.

        Raises: RowOutOfRange; what submitting a read raises.
        """
        ids = np.asarray(row_ids, np.int64).ravel()
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.n_rows:
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise RowOutOfRange(
                f"{shown(self._name)} has {self.n_rows:,} rows; row {wrong:,} was asked for",
                tensor=self._name,
                found=wrong,
                expected=self.n_rows,
            )
        return RowTicket(self, ids)

    def stats(self) -> RowStats:
        """Figures so far; may be asked for from any thread."""
        return replace(self._stats)


class RowTicket:
    """Rows on their way. Made by `RowTable.issue`; collected once, or cancelled."""

    def __init__(self, table: RowTable, ids: NDArray[np.int64]) -> None:
        self._table = table
        unique, self._inverse, n_asked = np.unique(ids, return_inverse=True, return_counts=True)
        places = table._cache.find(unique)
        hit = places >= 0
        self._rows = tuple(np.empty((unique.size, n), np.uint8) for n in table.row_bytes)  # [distinct rows, row bytes]
        for rows, kept in zip(self._rows, table._cache.rows, strict=True):
            rows[hit] = kept[places[hit]]  # now: another ticket may push them out before this one is collected
        self._hits = unique[hit]
        self._missing = unique[~hit]
        self._missing_at = np.flatnonzero(~hit)
        self._repeated = n_asked[~hit] > 1
        table._stats.n_hits += self._hits.size
        table._stats.n_misses += self._missing.size
        self._left: Iterator[slice] = iter(
            [slice(i, i + _BATCH_ROWS) for i in range(0, self._missing.size, _BATCH_ROWS)]
        )
        self._under_way: list[_Batch] = []
        self._collected = False
        for _ in range(_BATCHES_IN_FLIGHT):
            self._submit_next()

    def collect(self, check: Check = no_check) -> tuple[NDArray[np.uint8], ...]:
        """Wait for the rows. Per tensor: [n ids, row bytes] uint8, in the order of the ids that were asked for.

        Raises: StorageError when a read failed on every replica, and what `check` raises, which is looked at while
            reads are waited for; nothing of this ticket enters the cache then.
        """
        assert not self._collected, "a ticket is collected once"
        self._collected = True
        begun = time.perf_counter()
        try:
            while self._under_way:
                batch = self._under_way[0]
                batch.ticket.wait_checking(check)
                del self._under_way[0]
                self._submit_next()
                for rows, staging, starts in zip(self._rows, batch.staging, batch.starts, strict=True):
                    windows = np.lib.stride_tricks.sliding_window_view(staging, rows.shape[1])
                    rows[self._missing_at[batch.rows]] = windows[starts]
        except BaseException:
            self.cancel()
            raise
        finally:
            self._table._stats.wait_s += time.perf_counter() - begun
        new = [rows[self._missing_at] for rows in self._rows]
        self._table._cache.note(self._hits, self._missing, self._repeated, new)
        return tuple(rows[self._inverse] for rows in self._rows)

    def cancel(self) -> None:
        """Take back the reads that have not begun. The others end by themselves, into memory nobody looks at."""
        for batch in self._under_way:
            batch.ticket.cancel()
        self._under_way = []
        self._left = iter(())

    def _submit_next(self) -> None:
        part = next(self._left, None)
        if part is None:
            return
        table, requests, staging, starts = self._table, [], [], []
        for extent, row_bytes in zip(table._extents, table.row_bytes, strict=True):
            memory, row_starts, reads = _plan(extent, row_bytes, self._missing[part], table._reader.block_bytes)
            requests += reads
            staging.append(memory)
            starts.append(row_starts)
        table._stats.n_reads += len(requests)
        table._stats.read_bytes += sum(request.extent.length for request in requests)
        ticket = table._reader.submit(requests)
        self._under_way.append(_Batch(part, ticket, tuple(staging), tuple(starts)))


class _Cache:
    """Rows kept, as raw bytes. A reader's batch is noted at once: hits stamped, then the missing rows let in."""

    def __init__(self, n_rows: int, row_bytes: Sequence[int], policy: str) -> None:
        self.rows = tuple(np.empty((n_rows, n), np.uint8) for n in row_bytes)
        """Per tensor [places, row bytes]."""
        self._n_rows = n_rows
        self._policy: Policy[int] = POLICIES[policy](n_rows, 0)
        self._place: dict[int, int] = {}

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of each row, -1 for those that are not kept."""
        if not self._place:
            return np.full(ids.size, -1, np.int64)
        get = self._place.get
        return np.fromiter((get(i, -1) for i in ids.tolist()), np.int64, ids.size)

    def note(
        self,
        hits: NDArray[np.int64],
        missing: NDArray[np.int64],
        repeated: NDArray[np.bool_],
        rows: Sequence[NDArray[np.uint8]],
    ) -> None:
        """These kept rows were used, and these others were read, some of them for several places of a prompt."""
        if not self._n_rows:
            return
        for row in hits.tolist():
            if row in self._place:  # another ticket's rows may have pushed it out meanwhile
                self._policy.hit(row)
        taken: dict[int, int] = {}  # place -> which missing row; the last one of a place that is taken twice
        for i, (row, is_repeated) in enumerate(zip(missing.tolist(), repeated.tolist(), strict=True)):
            if row in self._place:  # another ticket brought it meanwhile
                continue
            place = len(self._place)
            if place == self._n_rows:
                victim = self._policy.victim(_always)
                assert victim is not None
                place = self._place.pop(victim)
            self._place[row] = place
            self._policy.admit(row)
            if is_repeated:
                self._policy.hit(row)
            taken[place] = i
        for kept, new in zip(self.rows, rows, strict=True):
            kept[list(taken)] = new[list(taken.values())]


def _always(_: int) -> bool:
    return True


def _plan(
    extent: Extent, row_bytes: int, ids: NDArray[np.int64], block_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[ReadRequest]]:
    """The reads for sorted, distinct rows of one tensor, the memory they fill, and where in it each row will begin."""
    first = extent.offset + ids * row_bytes  # [n] file offsets
    apart = np.diff(first) > row_bytes + _GAP_BYTES
    leads = np.flatnonzero(np.r_[True, apart | (np.diff(first // _CELL_BYTES) != 0)])  # the first row of each read
    last = np.r_[leads[1:], ids.size] - 1
    begins, ends = first[leads], first[last] + row_bytes
    heads = begins % block_bytes
    spans = -(-(heads + ends - begins) // block_bytes) * block_bytes
    at = np.cumsum(spans) - spans  # where each read's blocks go
    unit = max(block_bytes, PAGE_BYTES)
    # An arena, though it holds one batch: its memory is aligned, and safe from a fork while reads are in flight.
    memory = Arena(1, -(-int(spans.sum()) // unit) * unit, align_bytes=unit).slot(SlotIndex(0))
    reads = [
        ReadRequest(
            extent=Extent(shard=extent.shard, offset=begin, length=end - begin),
            target=memory[start : start + span],
            flat_index=row,
        )
        for begin, end, start, span, row in zip(
            begins.tolist(), ends.tolist(), at.tolist(), spans.tolist(), ids[leads].tolist(), strict=True
        )
    ]
    of = np.repeat(np.arange(leads.size), np.diff(np.r_[leads, ids.size]))  # [n] the read of each row
    return np.frombuffer(memory, np.uint8), at[of] + heads[of] + first - begins[of], reads
