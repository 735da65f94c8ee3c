import errno
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage.aio import AioRead, KernelAio, new_aio
from storage.arena import Arena
from storage.batch import BatchReader, ReadRequest, Replica, Ticket
from storage.direct import DirectFile
from storage.errors import ClosedReader, DriveError, ReadCancelled, ShortRead
from storage.extents import Extent
from storage.ids import SlotIndex
from storage.syscalls import SYSTEM, Syscalls
from storage.ticket import Job
from tests.fakes import FlakyDrive, GatedDrive, SlowDrive

BLOCK = 512
FILE_BYTES = 300_000


@dataclass(frozen=True)
class Copy:
    drive: str
    file: DirectFile


@dataclass
class Copies:
    """One file on some drives: the drive is chosen by the flat index, then the next ones in turn."""

    copies: list[Copy]
    demoted: list[tuple[str, DriveError]] = field(default_factory=list)
    waiting: list[dict[str, int]] = field(default_factory=list)
    recorded: list[tuple[str, int, int]] = field(default_factory=list)

    def choose(self, flat_index: int, extent: Extent, tried: Collection[str]) -> Replica | None:
        turn = [self.copies[(flat_index + i) % len(self.copies)] for i in range(len(self.copies))]
        return next((copy for copy in turn if copy.drive not in tried), None)

    def demote(self, replica: Replica, error: DriveError) -> None:
        self.demoted.append((replica.drive, error))

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> list[Replica]:
        self.waiting.append(dict(waiting_bytes or {}))
        chosen = [self.choose(flat_index, extent, ()) for flat_index, extent in requests]
        return [replica for replica in chosen if replica is not None]

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        assert busy_s > 0 and queue_s >= 0
        self.recorded.append((drive, n_bytes, n_reads))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(random.Random(0).randbytes(FILE_BYTES))
    return path


@pytest.fixture
def slots() -> Iterator[Callable[[int], memoryview]]:
    with Arena(64, 65536, align_bytes=16384) as arena:
        yield lambda index: arena.slot(SlotIndex(index))


class BadSector(GatedDrive):
    """Cannot be read at one offset; the other reads wait at the gate."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        if offset == self._offset:
            raise OSError(errno.EIO, "bad sector")
        return super().pread(fd, target, offset)


def _copies(path: Path, *systems: Syscalls) -> Copies:
    return Copies([Copy(f"drive {i}", DirectFile.open(path, system=system)) for i, system in enumerate(systems)])


def _request(offset: int, length: int, target: memoryview, flat_index: int = 0) -> ReadRequest:
    extent = Extent(shard="shard", offset=offset, length=length)
    return ReadRequest(extent=extent, target=target, flat_index=flat_index)


def _wait_until(ready: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("n_drives", [1, 3])
def test_every_request_gets_the_bytes_a_plain_read_gives(
    depth: int, n_drives: int, path: Path, slots: Callable[[int], memoryview]
) -> None:
    data, rng = path.read_bytes(), random.Random(depth)
    requests = []
    for i in range(64):
        length = rng.randrange(1, 60_000)
        requests.append(_request(rng.randrange(FILE_BYTES - length), length, slots(i), flat_index=i))
    drives = [FlakyDrive() for _ in range(n_drives)]
    copies = _copies(path, *drives)
    proof_bytes = sum(drive.read_bytes for drive in drives)
    with BatchReader(copies, block_bytes=BLOCK, depth=depth) as reader:
        tickets = [reader.submit(requests[i : i + 16]) for i in range(0, 64, 16)]
        assert all(ticket.wait() for ticket in tickets)
        for request in requests:
            assert reader.payload(request) == data[request.extent.offset : request.extent.end]
        stats = reader.stats()
        assert [(s.drive, s.depth) for s in stats] == [(f"drive {i}", depth) for i in range(n_drives)]
        assert sum(s.n_reads for s in stats) == 64
        assert sum(s.payload_bytes for s in stats) == sum(request.extent.length for request in requests)
        # What the figures say is what the drives saw.
        assert sum(s.read_bytes for s in stats) == sum(drive.read_bytes for drive in drives) - proof_bytes
        assert all(s.busy_s > 0 and s.queue_s > 0 and s.n_errors == 0 for s in stats)
    # What the replica set was told is the same.
    assert len(copies.recorded) == 64
    for s in stats:
        assert sum(n_bytes for drive, n_bytes, _ in copies.recorded if drive == s.drive) == s.read_bytes


def test_as_many_reads_are_in_flight_as_the_depth_says(path: Path, slots: Callable[[int], memoryview]) -> None:
    gates = [GatedDrive(), GatedDrive()]
    copies = _copies(path, *gates)
    for gate in gates:
        gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth={"drive 0": 3, "drive 1": 5}) as reader:
        ticket = reader.submit([_request(i * 4096, 100, slots(i), flat_index=i) for i in range(20)])
        _wait_until(lambda: [len(gate.begun) for gate in gates] == [3, 5])
        assert not ticket.done and not ticket.wait(0.01)
        reader.submit([])
        assert copies.waiting[-1] == {"drive 0": 10 * 100, "drive 1": 10 * 100}
        for gate in gates:
            gate.let(20)
        ticket.wait()
        assert [len(gate.begun) for gate in gates] == [10, 10]
        reader.submit([])
        assert copies.waiting[-1] == {"drive 0": 0, "drive 1": 0}


def test_demand_reads_overtake_warm_up_reads_that_have_not_begun(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=2) as reader:
        warm = reader.submit([_request(i * BLOCK, 100, slots(i)) for i in range(4)], "warm")
        _wait_until(lambda: len(gate.begun) == 1)  # one at a time, though two threads are free
        demand = reader.submit([_request((10 + i) * BLOCK, 100, slots(10 + i)) for i in range(3)])
        _wait_until(lambda: len(gate.begun) == 2)
        gate.let(7)
        demand.wait()
        warm.wait()
    assert [offset // BLOCK for offset in gate.begun[:1]] == [0]
    assert {offset // BLOCK for offset in gate.begun[1:4]} == {10, 11, 12}
    assert [offset // BLOCK for offset in gate.begun[4:]] == [1, 2, 3]


def test_a_warm_up_read_does_not_begin_beside_a_demand_read(path: Path, slots: Callable[[int], memoryview]) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=4) as reader:
        demand = reader.submit([_request(0, 100, slots(0))])
        _wait_until(lambda: len(gate.begun) == 1)
        warm = reader.submit([_request(BLOCK, 100, slots(1))], "warm")
        time.sleep(0.05)
        assert gate.begun == [0]
        gate.let(1)
        demand.wait()
        _wait_until(lambda: gate.begun == [0, BLOCK])
        gate.let(1)
        warm.wait()


def test_a_promoted_warm_up_read_is_read_once_and_at_once(path: Path, slots: Callable[[int], memoryview]) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=1) as reader:
        first = reader.submit([_request(0, 100, slots(0))], "warm")
        second = reader.submit([_request(BLOCK, 100, slots(1))], "warm")
        third = reader.submit([_request(2 * BLOCK, 100, slots(2))], "warm")
        _wait_until(lambda: len(gate.begun) == 1)
        third.promote()
        first.promote()  # under way: nothing to do
        gate.let(3)
        for ticket in (first, second, third):
            ticket.wait()
        third.promote()
    assert gate.begun == [0, 2 * BLOCK, BLOCK]


def test_a_cancelled_ticket_drops_what_has_not_begun_and_ends_when_the_rest_has(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=2) as reader:
        ticket = reader.submit([_request(i * BLOCK, 100, slots(i)) for i in range(6)])
        _wait_until(lambda: len(gate.begun) == 2)
        assert ticket.cancel() == 4
        assert ticket.cancel() == 0
        assert not ticket.done, "two reads may still write into their slots"
        after = reader.submit([_request(50 * BLOCK, 100, slots(9))])
        gate.let(3)
        with pytest.raises(ReadCancelled):
            ticket.wait()
        after.wait()
        assert sorted(gate.begun) == [0, BLOCK, 50 * BLOCK]
        assert ticket.cancel() == 0


def test_a_ticket_is_withdrawn_as_a_whole_or_goes_on_as_a_whole(path: Path, slots: Callable[[int], memoryview]) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=1) as reader:
        begun = reader.submit([_request(i * BLOCK, 100, slots(i)) for i in range(3)])
        waiting = reader.submit([_request(i * BLOCK, 100, slots(i)) for i in range(3, 6)])
        warm = reader.submit([_request(i * BLOCK, 100, slots(i)) for i in range(6, 8)], "warm")
        _wait_until(lambda: gate.begun == [0])
        assert begun.withdraw() == 0 and waiting.withdraw() == 3 and waiting.withdraw() == 0
        with pytest.raises(ReadCancelled):
            waiting.wait()
        gate.let(4)
        assert begun.wait(10.0)
        _wait_until(lambda: gate.begun[-1] == 7 * BLOCK)
        assert warm.withdraw() == 0
        gate.let(1)
        assert warm.wait(10.0) and warm.withdraw() == 0
    assert gate.begun == [i * BLOCK for i in (0, 1, 2, 6, 7)]
    data = path.read_bytes()
    for i in (0, 1, 2, 6, 7):
        assert bytes(slots(i)[:100]) == data[i * BLOCK : i * BLOCK + 100]


def test_a_ticket_for_nothing_is_done() -> None:
    with BatchReader(Copies([]), block_bytes=BLOCK) as reader:
        ticket = reader.submit([])
        assert ticket.done and ticket.wait(0) and ticket.cancel() == 0


@pytest.mark.parametrize("fault", ["once", "always", "short"])
def test_a_failing_read_is_made_on_another_replica_and_the_drive_demoted(
    fault: str, path: Path, slots: Callable[[int], memoryview]
) -> None:
    bad = FlakyDrive()
    copies = _copies(path, bad, SYSTEM)
    if fault == "short":
        bad.longest = lambda n_bytes: 0
        bad.pread = lambda fd, target, offset: 0  # type: ignore[method-assign]
    else:
        bad.fail_on = range(bad.n_reads + 1, bad.n_reads + 2) if fault == "once" else range(10**9)
    with BatchReader(copies, block_bytes=BLOCK, depth=2) as reader:
        requests = [_request(i * 5000, 4000, slots(i), flat_index=i) for i in range(8)]
        reader.submit(requests).wait()
        data = path.read_bytes()
        assert all(reader.payload(r) == data[r.extent.offset : r.extent.end] for r in requests)
        n_failed = 1 if fault == "once" else 4
        assert [drive for drive, _ in copies.demoted] == ["drive 0"] * n_failed
        expected = ShortRead if fault == "short" else DriveError
        assert all(isinstance(error, expected) for _, error in copies.demoted)
        first, second = reader.stats()
        assert (first.n_errors, first.n_reads, second.n_reads) == (n_failed, 4 - n_failed, 4 + n_failed)


def test_without_another_copy_the_error_has_file_offset_and_errno_and_comes_when_all_reads_have_ended(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    gate = BadSector(8 * BLOCK)
    copies = _copies(path, gate)
    gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=4) as reader:
        ticket = reader.submit([_request(8 * BLOCK + 1, 10, slots(0)), _request(0, 100, slots(1))])
        _wait_until(lambda: bool(copies.demoted))
        assert not ticket.done, "the other read still writes into its slot"
        gate.let(1)
        with pytest.raises(DriveError) as caught:
            ticket.wait()
        assert (caught.value.file, caught.value.errno) == (path, errno.EIO)
        assert caught.value.offset is not None and caught.value.offset // BLOCK == 8
        gate.let(1)
        reader.submit([_request(0, 100, slots(1))]).wait()  # the reader goes on


def test_a_read_that_went_to_another_drive_is_not_taken_by_what_it_left_in_its_first_queue(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    bad, other = BadSector(8 * BLOCK), GatedDrive()
    copies = _copies(path, bad, other)
    for gate in (bad, other):
        gate.shut()
    with BatchReader(copies, block_bytes=BLOCK, depth=1) as reader:
        busy = reader.submit([_request(0, 100, slots(0), flat_index=1)])  # the other drive has its hands full
        ticket = reader.submit([_request(BLOCK, 100, slots(1)), _request(8 * BLOCK, 100, slots(2))])
        _wait_until(lambda: (bad.begun, other.begun) == ([BLOCK], [0]))
        assert ticket.withdraw() == 0  # the second read goes into the queue a second time
        after = reader.submit([_request(20 * BLOCK, 100, slots(3))])
        bad.let(1)
        _wait_until(lambda: len(bad.begun) + len(other.begun) == 3)
        begun = (bad.begun[:], other.begun[:])
        for gate in (bad, other):
            gate.let(9)
        assert all(one.wait(10.0) for one in (busy, ticket, after))
        assert begun == ([BLOCK, 20 * BLOCK], [0])
        assert bytes(slots(2)[:100]) == path.read_bytes()[8 * BLOCK :][:100]
        reader.submit([])
        assert copies.waiting[-1] == {"drive 0": 0, "drive 1": 0}


def test_what_a_replica_set_raises_reaches_whoever_waits(path: Path, slots: Callable[[int], memoryview]) -> None:
    bad = FlakyDrive()
    copies = _copies(path, bad)
    bad.fail_on = range(10**9)

    def demote(replica: Replica, error: DriveError) -> None:
        raise RuntimeError("a bug of ours")

    copies.demote = demote  # type: ignore[method-assign]
    with BatchReader(copies, block_bytes=BLOCK, depth=1) as reader:
        with pytest.raises(RuntimeError, match="a bug of ours"):
            reader.submit([_request(0, 100, slots(0))]).wait()
        bad.fail_on = ()
        assert reader.submit([_request(0, 100, slots(0))]).wait()


def test_closing_waits_for_what_is_in_flight_and_fails_the_rest(path: Path, slots: Callable[[int], memoryview]) -> None:
    gate = GatedDrive()
    copies = _copies(path, gate)
    gate.shut()
    reader = BatchReader(copies, block_bytes=BLOCK, depth=1)
    running = reader.submit([_request(0, 100, slots(0))])
    _wait_until(lambda: len(gate.begun) == 1)
    queued = [reader.submit([_request(BLOCK, 100, slots(1))], urgency) for urgency in ("demand", "warm")]
    closing = threading.Thread(target=reader.close)
    closing.start()
    for ticket in queued:
        with pytest.raises(ClosedReader):
            ticket.wait()
    assert not running.done and closing.is_alive()
    gate.let(1)
    closing.join(10)
    assert not closing.is_alive() and running.wait()
    assert reader.payload(_request(0, 100, slots(0))) == path.read_bytes()[:100]
    with pytest.raises(ClosedReader):
        reader.submit([_request(0, 100, slots(0))])
    reader.close()


def test_waiting_threads_take_no_processor_time(path: Path, slots: Callable[[int], memoryview]) -> None:
    with BatchReader(_copies(path, SYSTEM), block_bytes=BLOCK, depth=16) as reader:
        reader.submit([_request(0, 100, slots(0))]).wait()
        before, began = time.process_time(), time.monotonic()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1 * (time.monotonic() - began)


class ShakyAio(KernelAio[Job]):
    """Kernel AIO of which every third read fails, comes short, or is not begun; the others are real."""

    def __init__(self, fault: str) -> None:
        real = new_aio(16)
        if real is None:
            pytest.skip("this system gives no kernel AIO")
        self._real, self._fault, self._n = real, fault, 0
        self.n_begun = self.n_faults = 0

    def submit(self, reads: Sequence[tuple[Job, AioRead]]) -> int:
        if self._fault == "refused":
            self._n += 1
            if self._n % 3 == 0:
                self.n_faults += 1
                return 0
        n_begun = self._real.submit(reads)
        self.n_begun += n_begun
        return n_begun

    def wait(self, least: int) -> list[tuple[Job, int]]:
        ended = self._real.wait(least)
        return [(job, self._shaken(result)) for job, result in ended]

    def _shaken(self, result: int) -> int:
        self._n += 1
        if self._fault == "refused" or self._n % 3:
            return result
        self.n_faults += 1
        return -errno.EIO if self._fault == "error" else 1

    def close(self) -> None:
        self._real.close()


class WithAio(FlakyDrive):
    """A drive that lets small reads go through the given AIO, the others through `pread`."""

    def __init__(self, aio: KernelAio[Job]) -> None:
        super().__init__()
        self._aio = aio

    def new_aio(self, capacity: int) -> KernelAio[Job]:
        return self._aio


def _needs_direct(copies: Copies) -> None:
    if copies.copies[0].file.direct_fd is None:
        pytest.skip("the temporary folder has no direct reads")


@pytest.mark.directio
@pytest.mark.parametrize("small_depth", [1, 5, 128])
def test_small_reads_without_threads_have_the_same_bytes_and_figures(
    small_depth: int, path: Path, slots: Callable[[int], memoryview]
) -> None:
    data, rng = path.read_bytes(), random.Random(small_depth)
    copies = _copies(path, SYSTEM, SYSTEM)
    _needs_direct(copies)
    with BatchReader(copies, block_bytes=BLOCK, depth=1, small_depth=small_depth) as reader:
        for _ in range(10):
            requests = [
                _request(rng.randrange(FILE_BYTES - 300), rng.randrange(1, 300), slots(i), flat_index=i)
                for i in range(64)
            ]
            requests[-1] = _request(FILE_BYTES - 7, 7, slots(63), flat_index=63)  # the end of the file
            tickets = [reader.submit(requests[i : i + 16]) for i in range(0, 64, 16)]
            assert all(ticket.wait() for ticket in tickets)
            assert all(reader.payload(r) == data[r.extent.offset : r.extent.end] for r in requests)
        assert sum(s.n_reads for s in reader.stats()) == 640
        assert sum(n_reads for _, _, n_reads in copies.recorded) == 640
        for s in reader.stats():
            assert s.read_bytes == sum(n_bytes for drive, n_bytes, _ in copies.recorded if drive == s.drive)
            assert s.payload_bytes < s.read_bytes <= s.payload_bytes + 2 * BLOCK * s.n_reads
            assert s.busy_s > 0 and s.n_errors == 0
        assert not any(lane.waiting_bytes for lane in reader._lanes.values())


@pytest.mark.directio
@pytest.mark.parametrize("fault", ["error", "short", "refused"])
def test_a_small_read_that_fails_is_made_again_by_a_thread(
    fault: str, path: Path, slots: Callable[[int], memoryview]
) -> None:
    aio = ShakyAio(fault)
    drive = WithAio(aio)
    copies = _copies(path, drive)
    _needs_direct(copies)
    before = drive.n_reads
    data = path.read_bytes()
    with BatchReader(copies, block_bytes=BLOCK, depth=2, small_depth=16) as reader:
        for n in range(6):
            requests = [_request(1000 * i + n, 900, slots(i)) for i in range(40)]
            assert reader.submit(requests).wait(30)
            assert all(reader.payload(r) == data[r.extent.offset : r.extent.end] for r in requests)
        (stats,) = reader.stats()
        assert (stats.n_reads, stats.n_errors) == (240, 0)
    assert copies.demoted == []
    assert aio.n_faults > 0 and aio.n_begun > 0
    n_by_thread = drive.n_reads - before
    assert n_by_thread + aio.n_begun == 240 + (0 if fault == "refused" else aio.n_faults)


@pytest.mark.directio
def test_a_small_read_that_fails_by_thread_too_goes_to_the_other_replica(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    drive = WithAio(ShakyAio("error"))
    copies = _copies(path, drive, SYSTEM)
    _needs_direct(copies)
    drive.fail_on = range(10**9)
    with BatchReader(copies, block_bytes=BLOCK, depth=1, small_depth=16) as reader:
        requests = [_request(1000 * i, 900, slots(i), flat_index=0) for i in range(9)]
        assert reader.submit(requests).wait(30)
        data = path.read_bytes()
        assert all(reader.payload(r) == data[r.extent.offset : r.extent.end] for r in requests)
    assert [drive for drive, _ in copies.demoted] == ["drive 0"] * 3


@pytest.mark.directio
def test_closing_waits_for_small_reads_and_cancelled_ones_do_not_begin(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    for _ in range(20):
        copies = _copies(path, SYSTEM)
        _needs_direct(copies)
        reader = BatchReader(copies, block_bytes=BLOCK, depth=1, small_depth=2)
        tickets = [reader.submit([_request(1000 * i, 900, slots(i)) for i in range(20)]) for _ in range(3)]
        n_cancelled = tickets[1].cancel()
        reader.close()
        assert all(ticket.done for ticket in tickets)
        n_read = reader.stats()[0].n_reads
        assert 2 <= n_read <= 60 - n_cancelled
        copies.copies[0].file.close()


def test_busy_time_is_the_drives_and_not_the_sum_over_its_threads(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    rate = 2_000_000
    copies = _copies(path, SYSTEM)
    copies.copies[0] = Copy("slow", DirectFile.open(path, system=SlowDrive(rate)))
    with BatchReader(copies, block_bytes=BLOCK, depth=8) as reader:
        began = time.monotonic()
        reader.submit([_request(i * 30_208, 30_208, slots(i)) for i in range(8)]).wait()
        took_s = time.monotonic() - began
        (stats,) = reader.stats()
        assert 8 * 30_208 / rate <= stats.busy_s <= took_s
        before = stats.busy_s
        time.sleep(0.05)
        assert reader.stats()[0].busy_s == before, "an idle drive is not busy"


def test_cancelling_and_closing_from_other_threads_never_loses_a_request(
    path: Path, slots: Callable[[int], memoryview]
) -> None:
    """Every ticket ends, whatever happens to it: 300 of them, submitted, cancelled and promoted by four threads."""
    bad = FlakyDrive()
    copies = _copies(path, bad, SYSTEM)
    bad.fail_on = range(0, 10**9, 3)
    reader = BatchReader(copies, block_bytes=BLOCK, depth=3)
    tickets: list[Ticket] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(75):
            requests = [_request(rng.randrange(200) * 1000, 900, slots(rng.randrange(64)), i) for i in range(4)]
            ticket = reader.submit(requests, rng.choice(["demand", "warm"]))  # type: ignore[arg-type]
            tickets.append(ticket)
            action = rng.randrange(4)
            if action == 0:
                ticket.cancel()
            elif action == 1:
                ticket.promote()
            elif action == 2:
                rng.choice(tickets).cancel()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait_until(lambda: all(ticket.done for ticket in tickets))
    assert len(tickets) == 300
    for ticket in tickets:
        try:
            ticket.wait(0)
        except ReadCancelled:
            continue
    reader.close()
