"""What the drives give, by depth and size of reads, measured with the reader the engine uses. Prints nothing.

A shared drive drifts by a factor of two within a minute, so every arm gets a short turn in every round, in an order of
its own, and what is compared are ratios within one round. The one thing a reader would get wrong: a rate alone says
little; it is good or bad only beside the plain sequential read of the same round.
"""

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from storage.arena import Arena, place, stride_for
from storage.batch import DEFAULT_DEPTH, SMALL_DEPTH, BatchReader, ReadRequest, Replica, Replicas, Ticket
from storage.errors import DriveError, MissingShard
from storage.extents import Extent, align, merge, split
from storage.headers import TensorEntry
from storage.ids import SlotIndex
from storage.rows import RowTable
from storage.syscalls import PAGE_BYTES

Pattern = Literal["sequential", "item", "random", "rows"]
"""One block after the other; whole items, each its extents, in random order; single blocks anywhere; table rows by id.
"""

Item = Sequence[Extent]
"""What is wanted together, such as an expert."""

DEPTHS = (1, 2, 4, 8, 16)
PIECES = (1 << 18, 1 << 20, 1 << 22, None)
"""Bytes of a read that an item is cut into; None = an extent at a time, which is what the engine does."""
SEQUENTIAL_BYTES = 1 << 24
RANDOM_BYTES = 4096
RANDOM_DEPTHS = (1, 8, 64)
RANDOM_BATCH = 96
"""Reads that are submitted and waited for together: the engram rows of a token are as many."""
RANDOM_JUDGE_DEPTH = 64
"""Depth of the single blocks that rows are compared with."""
TOKEN_ROWS = RANDOM_BATCH // 2
"""Each of a token's rows is two reads."""
ROW_BYTES = (256, 8)
"""A released engram row: its values, and its scales in another tensor."""
TURN_S = 0.25
"""How long an arm is measured in a round; 13 experts at 1 GB/s."""
LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of reading."""

    drive: str
    """A drive's name, or "" for all of them together."""
    pattern: Pattern
    direct: bool
    depth: int
    """Reads in flight on each drive."""
    piece_bytes: int | None
    """Most bytes of one read, or None for whole extents. For rows the page that each of their two reads costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm gave, round by round."""

    arm: Arm
    rates_bytes_s: tuple[float, ...]
    """Payload bytes a second, one for each round."""
    of_sequential: float | None
    """Median of the ratio to the sequential rate of the same drives in the same round; None without one."""
    of_best: float | None
    """Among direct reads of items from the same drives: 1 for the best, less for the others; None for other arms.

    Compared are medians of the rate over the mean rate of all these arms in the same round, which takes the drift out.
    """
    of_random: float | None
    """For rows: median of the ratio to as many single blocks at depth 64 in the same round; None for other arms."""

    @property
    def rate_bytes_s(self) -> float:
        """The median."""
        return statistics.median(self.rates_bytes_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a measurement is."""

    elapsed_s: float
    read_bytes: int


def arms(drives: Sequence[str], *, default_depth: int = DEFAULT_DEPTH) -> list[Arm]:
    """What to measure: everything on all drives together, and on each alone, when there are several, the essentials."""

    def arm(pattern: Pattern, depth: int, piece: int | None, *, drive: str = "", direct: bool = True) -> Arm:
        return Arm(drive=drive, pattern=pattern, direct=direct, depth=depth, piece_bytes=piece)

    chosen = [arm("sequential", 1, SEQUENTIAL_BYTES)]
    chosen += [arm("item", depth, piece) for depth in sorted({*DEPTHS, default_depth}) for piece in PIECES]
    chosen += [arm("item", depth, None, direct=False) for depth in DEPTHS]
    chosen += [arm("item", default_depth, piece, direct=False) for piece in PIECES if piece]
    chosen += [arm("random", depth, RANDOM_BYTES) for depth in RANDOM_DEPTHS]
    chosen += [arm("rows", SMALL_DEPTH, RANDOM_BYTES)]
    for drive in drives if len(drives) > 1 else ():
        chosen += [arm("sequential", 1, SEQUENTIAL_BYTES, drive=drive)]
        chosen += [arm("item", depth, None, drive=drive) for depth in sorted({1, default_depth, DEPTHS[-1]})]
        chosen += [arm("random", depth, RANDOM_BYTES, drive=drive) for depth in RANDOM_DEPTHS]
    return list(dict.fromkeys(chosen))


class OneDrive:
    """The replicas that lie on one drive, as if there were no other."""

    def __init__(self, replicas: Replicas, drive: str, drives: Collection[str]) -> None:
        self._replicas = replicas
        self._others = [other for other in drives if other != drive]

    def choose(self, flat_index: int, extent: Extent, tried: Collection[str]) -> Replica | None:
        """The copy there, unless it was tried."""
        return self._replicas.choose(flat_index, extent, [*self._others, *tried])

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> list[Replica]:
        """The copies there. Raises: MissingShard for an extent the drive has not."""
        chosen = []
        for flat_index, extent in requests:
            replica = self.choose(flat_index, extent, ())
            if replica is None:
                raise MissingShard(f"the drive has no copy of {extent.shard}", shard=extent.shard)
            chosen.append(replica)
        return chosen

    def demote(self, replica: Replica, error: DriveError) -> None:
        """Passed on."""
        self._replicas.demote(replica, error)

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Passed on."""
        self._replicas.record(drive, n_bytes=n_bytes, n_reads=n_reads, busy_s=busy_s, queue_s=queue_s)


class Measurement:
    """Measures arms in turn until the time is up.

    Args:
        chosen: What to measure, from `arms`.
        items: What the items are; those on a drive that lacks one of its shards are left out there.
        direct, buffered: The replicas, read each way.
        drives: Every drive's name.
        block_bytes: What direct reads start and end on.
        turn_s: How long an arm is measured in a round.
        clock: Seconds.
    """

    def __init__(
        self,
        chosen: Sequence[Arm],
        items: Sequence[Item],
        *,
        direct: Replicas,
        buffered: Replicas,
        drives: Sequence[str],
        block_bytes: int,
        turn_s: float = TURN_S,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._arms = list(chosen)
        self._replicas: dict[tuple[str, bool], Replicas] = {}
        self._works: dict[str, _Work] = {}
        self._random = random.Random(seed)
        self._turn_s = turn_s
        self._clock = clock
        self._block_bytes = block_bytes
        self._readers: dict[tuple[str, bool, int], BatchReader] = {}
        for drive in dict.fromkeys(arm.drive for arm in self._arms):
            for replicas, is_direct in ((direct, True), (buffered, False)):
                self._replicas[drive, is_direct] = OneDrive(replicas, drive, drives) if drive else replicas
            mine = [item for item in items if self._has(drive, item)]
            self._works[drive] = _Work(mine, random.Random(self._random.random()))
        pieces = [
            [piece.length for extent in item for piece in _cut(extent, arm.piece_bytes)]
            for item in _extremes(items)
            for arm in self._arms
            if arm.pattern == "item"
        ]
        align_bytes = max(block_bytes, PAGE_BYTES)
        single = stride_for([SEQUENTIAL_BYTES], block_bytes)
        self._stride = max([single, *(stride_for(lengths, block_bytes) for lengths in pieces)])
        self._n_slots = max(arm.depth for arm in self._arms if arm.pattern in ("sequential", "item")) + 2
        self._arena = Arena(self._n_slots, self._stride, align_bytes=align_bytes)

    def run(
        self,
        seconds: float,
        *,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[ArmResult]:
        """Measure for about `seconds`, three rounds at least, and give the arms in the order they came.

        A stop is answered after the turn under way, with the rounds that are complete.
        Raises: StorageError from the drives.
        """
        rates: dict[Arm, list[float]] = {arm: [] for arm in self._arms}
        began, read_bytes, n_rounds = self._clock(), 0, 0
        with ExitStack() as stack:
            stack.callback(self._arena.close)
            for arm in self._arms:
                key = (arm.drive, arm.direct, arm.depth)
                if key not in self._readers:
                    replicas = self._replicas[arm.drive, arm.direct]
                    reader = BatchReader(
                        replicas, block_bytes=self._block_bytes, depth=arm.depth, small_depth=arm.depth
                    )
                    self._readers[key] = stack.enter_context(reader)
            for i in range(self._n_slots):  # memory is there and threads run before anything counts
                self._arena.slot(SlotIndex(i))[::PAGE_BYTES] = bytes(self._stride // PAGE_BYTES)
            for arm in self._arms:
                self._turn(arm, 0.0)
            while n_rounds < LEAST_ROUNDS or self._clock() - began < seconds:
                turns: dict[Arm, float] = {}
                for arm in self._random.sample(self._arms, len(self._arms)):
                    if should_stop():
                        return _results(rates)
                    n_bytes, took_s = self._turn(arm, self._turn_s)
                    turns[arm] = n_bytes / took_s
                    read_bytes += n_bytes
                    elapsed_s = self._clock() - began
                    on_progress(Progress(elapsed_s=elapsed_s, read_bytes=read_bytes))
                n_rounds += 1
                for arm, rate in turns.items():
                    rates[arm].append(rate)
        return _results(rates)

    def _has(self, drive: str, item: Item) -> bool:
        return all(self._replicas[drive, True].choose(0, extent, ()) is not None for extent in item)

    def _turn(self, arm: Arm, turn_s: float) -> tuple[int, float]:
        """Bytes read, and the time from the first request to the end of the last read."""
        work = self._works[arm.drive]
        began = self._clock()
        match arm.pattern:
            case "sequential":
                batches = ([extent] for extent in work.run_of_blocks(SEQUENTIAL_BYTES))
                n_bytes = self._read(arm, batches, 2, began + turn_s)
            case "random":
                n_bytes = self._read_random(arm, work, began + turn_s)
            case "rows":
                n_bytes = self._read_rows(arm, work, began + turn_s)
            case "item":
                cut = ([p for extent in item for p in _cut(extent, arm.piece_bytes)] for item in work.shuffled())
                n_bytes = self._read(arm, cut, arm.depth + 1, began + turn_s)
        return n_bytes, self._clock() - began

    def _read(self, arm: Arm, batches: Iterator[list[Extent]], n_ahead: int, until: float) -> int:
        """Read batches, `n_ahead` of them submitted at any time, until it is late; at least one is read."""
        reader = self._readers[arm.drive, arm.direct, arm.depth]
        under_way: deque[tuple[Ticket, int]] = deque()
        n_bytes = number = 0
        while True:
            while len(under_way) < n_ahead and (not number or self._clock() < until):
                extents = next(batches)
                slot = self._arena.slot(SlotIndex(number % self._n_slots))
                requests = [
                    ReadRequest(
                        extent=extent,
                        target=slot[start : start + align(extent, self._block_bytes).length],
                        flat_index=number,
                    )
                    for extent, start, _ in place(extents, self._block_bytes)
                ]
                under_way.append((reader.submit(requests), sum(extent.length for extent in extents)))
                number += 1
            if not under_way:
                return n_bytes
            ticket, length = under_way.popleft()
            ticket.wait()
            n_bytes += length

    def _read_random(self, arm: Arm, work: "_Work", until: float) -> int:
        """Batches of single blocks, each waited for, as the rows of a token are."""
        reader = self._readers[arm.drive, arm.direct, arm.depth]
        slot = self._arena.slot(SlotIndex(0))
        n_bytes = 0
        while not n_bytes or self._clock() < until:
            requests = [
                ReadRequest(extent=extent, target=slot[i * 2 * RANDOM_BYTES :][: 2 * RANDOM_BYTES], flat_index=i)
                for i, extent in enumerate(work.anywhere(RANDOM_BYTES, RANDOM_BATCH))
            ]
            reader.submit(requests).wait()
            n_bytes += RANDOM_BATCH * RANDOM_BYTES
        return n_bytes

    def _read_rows(self, arm: Arm, work: "_Work", until: float) -> int:
        """The rows of one token after the other, by the engine's own row table with an empty cache.

        Counted as a page for each of the two reads of a row, to be compared with single blocks.
        """
        table = RowTable(work.row_tensors(), self._readers[arm.drive, arm.direct, arm.depth], cache_rows=0)
        n_bytes = 0
        while not n_bytes or self._clock() < until:
            table.issue(self._random.sample(range(table.n_rows), min(TOKEN_ROWS, table.n_rows))).collect()
            n_bytes += RANDOM_BATCH * RANDOM_BYTES
        return n_bytes


class _Work:
    """Where one drive's reads go. Items come in a shuffled order that begins anew only when all had their turn."""

    def __init__(self, items: Sequence[Item], rng: random.Random) -> None:
        assert items, "a drive without an item has nothing to measure"
        self._items = list(items)
        self._random = rng
        self._left: list[Item] = []
        self._runs = merge(extent for item in items for extent in item)
        self._ends = list(accumulate(run.length for run in self._runs))

    def shuffled(self) -> Iterator[Item]:
        """Items without end."""
        while True:
            if not self._left:
                self._left = self._random.sample(self._items, len(self._items))
            yield self._left.pop()

    def run_of_blocks(self, block_bytes: int) -> Iterator[Extent]:
        """Blocks one behind the other from somewhere in a run on, over and over; a short run is one block."""
        run = self._some_run()
        blocks = list(split(run, block_bytes))
        at = self._random.randrange(len(blocks))
        while True:
            yield blocks[at]
            at = (at + 1) % len(blocks)

    def anywhere(self, block_bytes: int, count: int) -> list[Extent]:
        """Single aligned blocks inside the runs, fewer bytes where a run is shorter than that."""
        chosen = []
        for _ in range(count):
            run = self._some_run()
            first, last = -(-run.offset // block_bytes), run.end // block_bytes - 1
            if last < first:
                chosen.append(run.part(0, min(run.length, block_bytes)))
            else:
                at = self._random.randint(first, last) * block_bytes
                chosen.append(Extent(shard=run.shard, offset=at, length=block_bytes))
        return chosen

    def row_tensors(self) -> tuple[TensorEntry, TensorEntry]:
        """The longest run as if it were a table of released rows: a tensor of values and one of scales.

        The tables of a synthetic checkpoint are holes, which never reach the drive.
        """
        run = max(self._runs, key=lambda run: run.length)
        n_rows = max(1, run.length // sum(ROW_BYTES))
        values = run.part(0, n_rows * ROW_BYTES[0])
        scales = run.part(values.length, n_rows * ROW_BYTES[1])
        value_row, scale_row = ROW_BYTES
        return (
            TensorEntry(name="values", dtype="F8_E4M3", shape=(n_rows, value_row), extent=values),
            TensorEntry(name="scales", dtype="F8_E8M0", shape=(n_rows, scale_row), extent=scales),
        )

    def _some_run(self) -> Extent:
        """A run, the longer the likelier."""
        return self._random.choices(self._runs, cum_weights=self._ends)[0]


def _cut(extent: Extent, piece_bytes: int | None) -> list[Extent]:
    return [extent] if piece_bytes is None else list(split(extent, piece_bytes))


def _extremes(items: Sequence[Item]) -> list[Item]:
    """The items that decide how large a slot is: the one with most bytes, the one with most extents."""
    return [max(items, key=lambda item: sum(e.length for e in item)), max(items, key=len)]


def _results(rates: Mapping[Arm, Sequence[float]]) -> list[ArmResult]:
    n_rounds = min(len(some) for some in rates.values())
    if not n_rounds:
        return []
    whole = {arm: tuple(some[:n_rounds]) for arm, some in rates.items()}
    random_limits = {
        arm.drive: some
        for arm, some in whole.items()
        if arm.pattern == "random" and arm.direct and arm.depth == RANDOM_JUDGE_DEPTH
    }
    limits = {arm.drive: some for arm, some in whole.items() if arm.pattern == "sequential"}
    results = []
    for arm, some in whole.items():
        limit = limits.get(arm.drive)
        rivals = {other: rates for other, rates in whole.items() if _rivals(arm, other)}
        scores = {other: _ratio(rates, _means(list(rivals.values()))) for other, rates in rivals.items()}
        results.append(
            ArmResult(
                arm=arm,
                rates_bytes_s=some,
                of_sequential=_ratio(some, limit) if limit is not None else None,
                of_best=scores[arm] / max(scores.values()) if scores else None,
                of_random=(
                    _ratio(some, random_limits[arm.drive])
                    if arm.pattern == "rows" and arm.drive in random_limits
                    else None
                ),
            )
        )
    return results


def _rivals(arm: Arm, other: Arm) -> bool:
    """Whether two arms read items directly from the same drives, and so differ in depth and size only."""
    return all(a.pattern == "item" and a.direct and a.drive == arm.drive for a in (arm, other))


def _ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


def _means(rates: Sequence[Sequence[float]]) -> list[float]:
    """The mean over the arms of each round."""
    return [statistics.geometric_mean(some) for some in zip(*rates, strict=True)]
