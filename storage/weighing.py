"""How fast each drive gives what the engine reads: measured at start where reads have a choice, as weights.

The drives are read all at once, for that is how the engine reads them: two that hang on one bus are worth what each
gets of it. What is measured is the engine's own pattern: whole experts in random order, cut only where they are so
large that a slow drive would be busy with them long after the time is up.
"""

import random
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from storage.arena import Arena, stride_for
from storage.batch import DEFAULT_DEPTH, BatchReader, ReadRequest
from storage.drives import measure_rate
from storage.errors import StorageError
from storage.extents import Extent, align, split
from storage.ids import SlotIndex
from storage.iobench import OneDrive
from storage.replica_files import ReplicaFiles
from storage.replicas import ReplicaSet
from storage.syscalls import PAGE_BYTES

LIMIT_S = 0.8
"""Then the batch under way is waited for: a second in all on a drive of 170 MB/s."""
PIECE_BYTES = 1 << 21
"""Largest read. Sixteen of them, a batch at the default depth, take a second on a drive of 33 MB/s; one expert of the
released model takes half of that.
"""
_MOST_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveRate:
    """What one drive gave."""

    drive: str
    rate_bytes_s: float
    """0 when it failed."""
    error: StorageError | None
    """Why it failed."""


def have_choice(replicas: ReplicaSet, shards: Collection[str]) -> bool:
    """Whether any of `shards` can be read from more than one drive, so that weights mean something."""
    return any(len({copy.drive for copy in replicas.copies(shard)}) > 1 for shard in shards)


def weigh_drives(
    files: ReplicaFiles,
    wanted: Sequence[Sequence[Extent]],
    *,
    depth: int = DEFAULT_DEPTH,
    limit_s: float = LIMIT_S,
    seed: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[DriveRate, ...]:
    """Measure the drives that hold something of `wanted`, in about `limit_s` in all, and weigh them by what they gave.

    `wanted` are the items that will be read, such as experts: each its extents. A drive that holds no whole item is not
    measured and gets the mean of the others. One that fails is demoted, as in any read, and weighs nothing.

    Raises: MissingShard.
    """
    replicas = files.replicas
    holders = {
        shard: {copy.drive for copy in replicas.copies(shard)}
        for shard in {extent.shard for item in wanted for extent in item}
    }
    draw = random.Random(seed)
    measures: list[_Measure] = []
    for drive in replicas.drives:
        items = [item for item in wanted if all(drive in holders[extent.shard] for extent in item)]
        if items:
            measures.append(_Measure(files, drive, draw.sample(items, len(items)), min(depth, _MOST_DEPTH)))
    if not measures:
        return ()
    with ThreadPoolExecutor(max_workers=len(measures)) as pool:
        rates = tuple(pool.map(lambda measure: measure.run(limit_s, clock), measures))
    measured = {rate.drive: rate.rate_bytes_s for rate in rates}
    mean = sum(measured.values()) / len(measured)
    replicas.weigh({drive: measured.get(drive, mean) for drive in replicas.drives})
    return rates


class _Measure:
    """One drive's measurement. Every item is read once at most, so nothing comes from a cache but by chance."""

    def __init__(self, files: ReplicaFiles, drive: str, items: Sequence[Sequence[Extent]], depth: int) -> None:
        self._drive = drive
        self._one = OneDrive(files, drive, files.replicas.drives)
        self._block_bytes = files.block_bytes
        self._pieces = (piece for item in items for extent in item for piece in split(extent, PIECE_BYTES))
        self._depth = depth

    def run(self, limit_s: float, clock: Callable[[], float]) -> DriveRate:
        """Read for `limit_s`, or until everything was read once."""
        stride = stride_for([PIECE_BYTES], self._block_bytes)
        with (
            Arena(2 * self._depth, stride, align_bytes=max(self._block_bytes, PAGE_BYTES)) as arena,
            BatchReader(self._one, block_bytes=self._block_bytes, depth=self._depth, small_depth=self._depth) as reader,
        ):
            try:
                rate = measure_rate(lambda _: self._read(arena, reader), limit_s=limit_s, clock=clock)
                return DriveRate(drive=self._drive, rate_bytes_s=rate, error=None)
            except StorageError as error:
                return DriveRate(drive=self._drive, rate_bytes_s=0.0, error=error)

    def _read(self, arena: Arena, reader: BatchReader) -> int:
        """Read a batch and wait for all of it, as a layer does; its bytes, 0 when there is nothing left.

        Waiting for less would count a slow drive's first reads only: those in flight together end together.
        """
        pieces = list(islice(self._pieces, arena.n_slots))
        requests = []
        for i, piece in enumerate(pieces):
            replica = self._one.choose(0, piece, ())
            if replica is not None:
                replica.file.forget(piece.offset, piece.length)
            target = arena.slot(SlotIndex(i))[: align(piece, self._block_bytes).length]
            requests.append(ReadRequest(extent=piece, target=target))
        reader.submit(requests).wait()
        return sum(piece.length for piece in pieces)
