"""One drive's reads: its queues, its threads, what is under way, and the ticket that whoever waits holds. No policy.

Large reads have a thread each, small direct ones go through kernel AIO where there is any. The one thing to get right:
a job is in exactly one place, told by `waiting`; what was dropped or promoted stays in its old queue as a leftover and
is passed over when it comes up, which keeps both O(1).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from storage.aio import AioRead, KernelAio
from storage.direct import DirectFile
from storage.errors import ClosedReader, ReadCancelled
from storage.extents import Extent
from storage.syscalls import Syscalls, address_of

Urgency = Literal["demand", "warm"]
"""Somebody waits for it; or it is read ahead, one at a time, beginning only while its drive has nothing else to do."""

SMALL_BYTES = 1 << 19
"""Reads up to this go through kernel AIO: rows and their neighbours do, released experts do not."""


class Replica(Protocol):
    """An open file that holds an extent, and the drive it is on."""

    @property
    def drive(self) -> str:
        """The drive's name; reads of one drive share its threads."""
        ...

    @property
    def file(self) -> DirectFile:
        """The file, open until the reader is closed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One extent and where its bytes go."""

    extent: Extent
    target: memoryview
    """The whole blocks around the extent, in memory aligned to a block; the payload begins `offset % block` into it."""
    flat_index: int = 0
    """Number of the item the extent belongs to, by which replicas share the reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveStats:
    """What one drive has done for a reader since it was made."""

    drive: str
    depth: int
    n_reads: int
    """Extents read."""
    payload_bytes: int
    """Bytes asked for."""
    read_bytes: int
    """Bytes delivered: those up to the block boundaries included, and those of reads that then failed."""
    busy_s: float
    """Time with at least one read in flight."""
    queue_s: float
    """Time that reads waited to begin, summed over them."""
    n_errors: int
    """Reads that failed there, whether another replica had the bytes or not."""


class Ticket:
    """The reads of one `submit`."""

    def __init__(self, n_reads: int) -> None:
        self._left = n_reads
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._jobs: list[Job] = []
        if not n_reads:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether every read has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every read has ended, or for `timeout_s`; False when that was too short.

        Raises: the first error of its reads (DriveError with file, offset and errno when no replica had the bytes),
            ReadCancelled, ClosedReader; only after all of them have ended.
        """
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> int:
        """Take back the reads that have not begun; returns how many. The others still have to be waited for."""
        dropped = [job for job in self._jobs if job.lane.drop(job)]
        for _ in dropped:
            self.end(ReadCancelled("the read was cancelled before it began"))
        return len(dropped)

    def promote(self) -> None:
        """Somebody waits for this after all: its warm-up reads that have not begun become demand reads."""
        for job in self._jobs:
            job.lane.promote(job)

    def hold(self, jobs: "list[Job]") -> None:
        """Its reads, before they are queued. For the reader."""
        self._jobs = jobs

    def end(self, error: BaseException | None) -> None:
        """One of its reads has ended. For the reader."""
        with self._lock:
            self._left -= 1
            if error is not None and self._error is None:
                self._error = error
            last = not self._left
        if last:
            self._jobs = []  # the jobs know their ticket: this cycle would keep slots alive until the next collection
            self._done.set()


class Job:
    """One read on its way, and the lane it is in."""

    __slots__ = ("begun_at", "lane", "queued_at", "replica", "request", "ticket", "tried", "urgency", "waiting")

    def __init__(self, request: ReadRequest, ticket: Ticket, urgency: Urgency, replica: Replica, lane: "Lane") -> None:
        self.request = request
        self.ticket = ticket
        self.urgency = urgency
        self.replica = replica
        self.lane = lane
        self.tried: frozenset[str] = frozenset()
        self.waiting = False
        """Whether it is queued and has not begun."""
        self.queued_at = self.begun_at = 0.0


class Ended(NamedTuple):
    """A read that has ended."""

    job: Job
    n_bytes: int
    """What the system delivered."""
    error: BaseException | None


Finish = Callable[[str, Sequence[Ended], float], None]
"""(drive, ended reads, now): what comes after reads. Called from a lane's thread, which holds nothing."""


class Lane:
    """The reads of one drive.

    Args:
        drive: Its name.
        depth: Large reads in flight, each with a thread.
        small_depth: Small reads in flight.
        finish: Called with every read that has ended.
        block_bytes: What reads start and end on.
    """

    def __init__(self, drive: str, depth: int, small_depth: int, finish: Finish, block_bytes: int) -> None:
        self.drive = drive
        self.depth = depth
        self.waiting_bytes = 0
        """Payload of what is queued and in flight."""
        self._small_depth = small_depth
        self._finish = finish
        self._block_bytes = block_bytes
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._small_begun = threading.Condition(lock)
        self._queues: dict[Urgency, deque[Job]] = {"demand": deque(), "warm": deque()}
        self._small: deque[Job] = deque()
        self._aio: KernelAio[Job] | None = None
        self._aio_of: Syscalls | None = None
        self._closed = False
        self._in_flight = self._small_in_flight = 0
        self._n_reads = self._payload_bytes = self._read_bytes = self._n_errors = 0
        self._busy_s = self._queue_s = self._busy_since = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"read {drive} {i}", daemon=True) for i in range(depth)
        ]
        for thread in self._threads:
            thread.start()

    def push(self, jobs: Iterable[Job], *, front: bool = False) -> bool:
        """Queue jobs, ahead of the others with `front`; False when the lane is closed."""
        with self._changed:
            if self._closed:
                return False
            now = time.perf_counter()
            for job in jobs:
                job.lane, job.waiting, job.queued_at = self, True, now
                self.waiting_bytes += job.request.extent.length
                self._enqueue(job, front=front)
            self._begin_small()
            return True

    def drop(self, job: Job) -> bool:
        """Take a job out that has not begun; False when it has."""
        with self._changed:
            if not job.waiting or job.lane is not self:
                return False
            job.waiting = False
            self.waiting_bytes -= job.request.extent.length
            return True

    def promote(self, job: Job) -> None:
        """Move a warm-up job that has not begun to the demand queue."""
        with self._changed:
            if job.waiting and job.lane is self and job.urgency == "warm":
                job.urgency = "demand"
                self._enqueue(job, front=False)
                self._begin_small()

    def shut(self) -> list[Job]:
        """Take no more jobs, let the threads end, and return the jobs that have not begun."""
        with self._changed:
            self._closed = True
            left = []
            for queue, urgency in ((self._small, "demand"), *((self._queues[u], u) for u in self._queues)):
                while (job := _next(queue, urgency)) is not None:
                    left.append(job)
            self._changed.notify_all()
            self._small_begun.notify_all()
        return left

    def join(self) -> None:
        """After `shut`: wait for what is in flight."""
        for thread in self._threads:
            thread.join()

    def stats(self) -> DriveStats:
        """The figures so far."""
        with self._changed:
            busy_s = self._busy_s + (time.perf_counter() - self._busy_since if self._in_flight else 0.0)
            return DriveStats(
                drive=self.drive,
                depth=self.depth,
                n_reads=self._n_reads,
                payload_bytes=self._payload_bytes,
                read_bytes=self._read_bytes,
                busy_s=busy_s,
                queue_s=self._queue_s,
                n_errors=self._n_errors,
            )

    # What follows holds the lock of `_changed`, but for the two threads' loops.

    def _enqueue(self, job: Job, *, front: bool) -> None:
        # A retry has a thread: its call says exactly what is wrong.
        if not front and self._is_small(job):
            self._small.append(job)
            return
        queue = self._queues[job.urgency]
        (queue.appendleft if front else queue.append)(job)
        self._changed.notify()

    def _is_small(self, job: Job) -> bool:
        if job.urgency == "warm" or job.request.extent.length > SMALL_BYTES:
            return False
        file = job.replica.file
        if file.direct_fd is None:
            return False
        if self._aio_of is None:
            self._aio_of = file.system
            self._aio = file.system.new_aio(self._small_depth)
            if self._aio is not None:
                thread = threading.Thread(target=self._collect, name=f"collect {self.drive}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return self._aio is not None and self._aio_of is file.system

    def _start(self, job: Job, now: float) -> None:
        if not self._in_flight:
            self._busy_since = now
        self._in_flight += 1
        self._queue_s += now - job.queued_at
        job.begun_at = now

    def _stop(self, ended: Ended, now: float) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._busy_s += now - self._busy_since
            if self._queues["warm"]:
                self._changed.notify()
        self._read_bytes += ended.n_bytes
        self.waiting_bytes -= ended.job.request.extent.length
        if ended.error is None:
            self._n_reads += 1
            self._payload_bytes += ended.job.request.extent.length
        else:
            self._n_errors += 1

    def _begin_small(self) -> None:
        """Hand as many of the small reads to the kernel as the depth allows; to a thread what the kernel refuses."""
        if self._aio is None or not self._small:
            return
        now = time.perf_counter()
        begun: list[tuple[Job, AioRead]] = []
        while len(begun) < self._small_depth - self._small_in_flight:
            job = _next(self._small, "demand")
            if job is None:
                break
            fd = job.replica.file.direct_fd
            if fd is None:  # its file has fallen back to buffered reads meanwhile
                self._to_thread(job)
                continue
            extent, block = job.request.extent, self._block_bytes
            start, end = extent.offset // block * block, -(-extent.end // block) * block
            begun.append((job, AioRead(fd, address_of(job.request.target), end - start, start)))
            self._start(job, now)
        n_begun = self._aio.submit(begun) if begun else 0
        self._small_in_flight += n_begun
        if n_begun:
            self._small_begun.notify()
        for job, _ in begun[n_begun:]:
            self._in_flight -= 1
            self._to_thread(job)
        if n_begun < len(begun):
            # With nothing in flight nobody would come back for the rest.
            while (left := _next(self._small, "demand")) is not None:
                self._to_thread(left)

    def _to_thread(self, job: Job) -> None:
        job.waiting = True
        self._enqueue(job, front=True)

    def _work(self) -> None:
        """A reading thread: takes jobs and makes their reads."""
        while (job := self._begin()) is not None:
            extent, error = job.request.extent, None
            delivered: list[int] = []
            try:
                job.replica.file.read(
                    extent.offset, extent.length, job.request.target, self._block_bytes, delivered.append
                )
            except BaseException as caught:
                # Whatever it is, it belongs to whoever waits; swallowed here it would hang them for ever.
                error = caught
            ended, now = Ended(job, sum(delivered), error), time.perf_counter()
            with self._changed:
                self._stop(ended, now)
            self._finish(self.drive, [ended], now)

    def _begin(self) -> Job | None:
        """Wait for a job and start it; None when the lane closes."""
        with self._changed:
            while (job := self._next_large()) is None:
                if self._closed:
                    return None
                self._changed.wait()
            self._start(job, time.perf_counter())
            return job

    def _next_large(self) -> Job | None:
        job = _next(self._queues["demand"], "demand")
        if job is None and not self._in_flight:
            job = _next(self._queues["warm"], "warm")
        return job

    def _collect(self) -> None:
        """The thread that takes in small reads as the kernel ends them."""
        aio = self._aio
        assert aio is not None
        while True:
            with self._changed:
                while not self._small_in_flight:
                    if self._closed:
                        aio.close()
                        return
                    self._small_begun.wait()
                # Woken for each read alone, this thread would fight the waiting one for the interpreter. With more to
                # hand on, half of them free their places for the next.
                least = self._small_in_flight if not self._small else -(-self._small_in_flight // 2)
            results = aio.wait(least)
            now = time.perf_counter()
            ended = []
            with self._changed:
                self._small_in_flight -= len(results)
                for job, result in results:
                    extent = job.request.extent
                    whole = result >= extent.offset % self._block_bytes + extent.length
                    if whole or self._closed:  # closed, there is no thread any more to look into it
                        ended.append(Ended(job, max(result, 0), None if whole else closed_reader()))
                        self._stop(ended[-1], now)
                    else:  # an error, or the read is short: a thread finds out which, and what to do
                        self._in_flight -= 1
                        self._read_bytes += max(result, 0)
                        self._to_thread(job)
                self._begin_small()
            if ended:
                self._finish(self.drive, ended, now)


def closed_reader() -> ClosedReader:
    """The error of a read that was still to be made when its reader was closed."""
    return ClosedReader("the reader was closed before the read was made")


def _next(queue: deque[Job], urgency: Urgency) -> Job | None:
    """The next job that waits in this queue, which then waits no more."""
    while queue:
        job = queue.popleft()
        if job.waiting and job.urgency == urgency:
            job.waiting = False
            return job
    return None
