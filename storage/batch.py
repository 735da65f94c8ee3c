"""Many reads at a planned depth per drive: submit and wait are separate, demand goes before warm-up. No policy.

Each drive has its own threads, as many as its depth, parked while there is nothing to do; a blocking `preadv` waits
without the GIL. The one thing a reader would get wrong: a ticket that failed or was cancelled may still have reads in
flight, so a slot is free for other bytes only when `wait` has come back, with or without an error.

Threads won over io_uring for expert reads on two cores, see the figures at `DEFAULT_DEPTH`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from storage.direct import DirectFile
from storage.errors import ClosedReader, DriveError, ReadCancelled
from storage.extents import Extent

Urgency = Literal["demand", "warm"]
"""Somebody waits for it; or it is read ahead, one at a time, beginning only while its drive has nothing else to do."""

DEFAULT_DEPTH = 4


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


class Replicas(Protocol):
    """Who serves an extent, and who keeps the books of the drives."""

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> Sequence[Replica]:
        """The replica for each (flat index, extent) of a batch that is waited for as a whole.

        `waiting_bytes` is what each drive has yet to read of earlier batches.
        Raises: StorageError when nobody ever had an extent.
        """
        ...

    def choose(self, flat_index: int, extent: Extent, tried: Collection[str]) -> Replica | None:
        """The replica to read `extent` of the item with this flat index from, on none of the `tried` drives.

        None when no drive is left to try.

        Raises: StorageError when nobody ever had it.
        """
        ...

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Take note of a read that ended: bytes delivered, time it took, time it waited. From a reading thread."""
        ...

    def demote(self, replica: Replica, error: DriveError) -> None:
        """Take note that a read failed there. Called from a reading thread."""
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
    """Bytes delivered, those up to the block boundaries included."""
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
        self._jobs: list[_Job] = []
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
            self._end(ReadCancelled("the read was cancelled before it began"))
        return len(dropped)

    def promote(self) -> None:
        """Somebody waits for this after all: its warm-up reads that have not begun become demand reads."""
        for job in self._jobs:
            job.lane.promote(job)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            if error is not None and self._error is None:
                self._error = error
            last = not self._left
        if last:
            self._jobs = []  # the jobs know their ticket: this cycle would keep slots alive until the next collection
            self._done.set()


class _Job:
    """One read on its way, and the lane it is queued in."""

    __slots__ = ("begun_at", "lane", "queued_at", "replica", "request", "ticket", "tried", "urgency", "waiting")

    def __init__(self, request: ReadRequest, ticket: Ticket, urgency: Urgency, replica: Replica, lane: "_Lane") -> None:
        self.request = request
        self.ticket = ticket
        self.urgency = urgency
        self.replica = replica
        self.lane = lane
        self.tried: frozenset[str] = frozenset()
        self.waiting = False
        self.queued_at = self.begun_at = 0.0


class _Lane:
    """One drive's queues and threads.

    A job that was dropped or promoted stays in its old queue as a leftover, recognised when it comes up: that keeps
    both O(1).
    """

    def __init__(
        self, drive: str, depth: int, finish: Callable[[_Job, int, float, BaseException | None], None], block: int
    ) -> None:
        self.drive = drive
        self.depth = depth
        self._finish = finish
        self._block_bytes = block
        self._changed = threading.Condition()
        self._queues: dict[Urgency, deque[_Job]] = {"demand": deque(), "warm": deque()}
        self._closed = False
        self.waiting_bytes = 0
        """Payload of what is queued and in flight."""
        self._in_flight = 0
        self._n_reads = self._payload_bytes = self._read_bytes = self._n_errors = 0
        self._busy_s = self._queue_s = self._busy_since = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"read {drive} {i}", daemon=True) for i in range(depth)
        ]
        for thread in self._threads:
            thread.start()

    def push(self, jobs: Iterable[_Job], *, front: bool = False) -> bool:
        """Queue jobs of one urgency; False when the lane is closed."""
        with self._changed:
            if self._closed:
                return False
            now = time.perf_counter()
            n_jobs = 0
            for job in jobs:
                job.lane, job.waiting, job.queued_at = self, True, now
                self.waiting_bytes += job.request.extent.length
                queue = self._queues[job.urgency]
                (queue.appendleft if front else queue.append)(job)
                n_jobs += 1
            self._changed.notify(n_jobs)
            return True

    def drop(self, job: _Job) -> bool:
        """Take a job out that has not begun; False when it has."""
        with self._changed:
            if not job.waiting or job.lane is not self:
                return False
            job.waiting = False
            self.waiting_bytes -= job.request.extent.length
            return True

    def promote(self, job: _Job) -> None:
        """Move a warm-up job that has not begun to the demand queue."""
        with self._changed:
            if job.waiting and job.lane is self and job.urgency == "warm":
                job.urgency = "demand"
                self._queues["demand"].append(job)
                self._changed.notify()

    def shut(self) -> list[_Job]:
        """Take no more jobs, let the threads end, and return the jobs that have not begun."""
        with self._changed:
            self._closed = True
            left = []
            for urgency in self._queues:
                while (job := self._next(urgency)) is not None:
                    left.append(job)
            self._changed.notify_all()
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

    def _work(self) -> None:
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
            self._end(job, sum(delivered), error)

    def _begin(self) -> _Job | None:
        """Wait for a job and start it; None when the lane closes."""
        with self._changed:
            while (job := self._next("demand") or (None if self._in_flight else self._next("warm"))) is None:
                if self._closed:
                    return None
                self._changed.wait()
            now = time.perf_counter()
            if not self._in_flight:
                self._busy_since = now
            self._in_flight += 1
            self._queue_s += now - job.queued_at
            job.begun_at = now
            return job

    def _end(self, job: _Job, n_read: int, error: BaseException | None) -> None:
        now = time.perf_counter()
        with self._changed:
            self._in_flight -= 1
            self.waiting_bytes -= job.request.extent.length
            if not self._in_flight:
                self._busy_s += now - self._busy_since
            self._read_bytes += n_read
            if error is None:
                self._n_reads += 1
                self._payload_bytes += job.request.extent.length
            else:
                self._n_errors += 1
        self._finish(job, n_read, now, error)

    def _next(self, urgency: Urgency) -> _Job | None:
        queue = self._queues[urgency]
        while queue:
            job = queue.popleft()
            if job.waiting and job.urgency == urgency:
                job.waiting = False
                return job
        return None


class BatchReader:
    """Reads extents from the drives that have them, `depth` at a time on each. Thread-safe.

    Args:
        replicas: Says where an extent is read, and hears of failures. Its files are not closed by the reader.
        block_bytes: What reads start and end on: the largest block of the replicas' files.
        depth: Reads in flight, for every drive or by drive name.
    """

    def __init__(self, replicas: Replicas, *, block_bytes: int, depth: int | Mapping[str, int] = DEFAULT_DEPTH) -> None:
        self.block_bytes = block_bytes
        self._replicas = replicas
        self._depth = depth
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, requests: Sequence[ReadRequest], urgency: Urgency = "demand") -> Ticket:
        """Queue `requests` and return at once.

        Raises: what choosing a replica raises, before anything is queued; ClosedReader.
        """
        with self._lock:
            waiting = {drive: lane.waiting_bytes for drive, lane in self._lanes.items()}
        chosen = self._replicas.share([(request.flat_index, request.extent) for request in requests], waiting)
        ticket = Ticket(len(requests))
        jobs: dict[_Lane, list[_Job]] = {}
        for request, replica in zip(requests, chosen, strict=True):
            lane = self._lane(replica.drive)
            job = _Job(request, ticket, urgency, replica, lane)
            jobs.setdefault(lane, []).append(job)
            ticket._jobs.append(job)
        for lane, some in jobs.items():
            if not lane.push(some):
                for _ in some:
                    ticket._end(_closed())
        return ticket

    def payload(self, request: ReadRequest) -> memoryview:
        """The extent's bytes inside the request's target; valid once its ticket has been waited for."""
        head = request.extent.offset % self.block_bytes
        return request.target[head : head + request.extent.length]

    def stats(self) -> tuple[DriveStats, ...]:
        """Figures of each drive that was used, by name."""
        with self._lock:
            lanes = sorted(self._lanes.items())
        return tuple(lane.stats() for _, lane in lanes)

    def close(self) -> None:
        """Wait for what is in flight, fail what has not begun with ClosedReader. A second call does nothing."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            for job in lane.shut():
                job.ticket._end(_closed())
        for lane in lanes:
            lane.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lane(self, drive: str) -> _Lane:
        with self._lock:
            if self._closed:
                raise _closed()
            lane = self._lanes.get(drive)
            if lane is None:
                depth = self._depth if isinstance(self._depth, int) else self._depth.get(drive, DEFAULT_DEPTH)
                lane = self._lanes[drive] = _Lane(drive, depth, self._finish, self.block_bytes)
            return lane

    def _finish(self, job: _Job, n_read: int, ended_at: float, error: BaseException | None) -> None:
        """What comes after a read: the next replica if the drive failed, else the ticket. Runs in a lane's thread."""
        try:
            self._replicas.record(
                job.replica.drive,
                n_bytes=n_read,
                busy_s=ended_at - job.begun_at,
                queue_s=job.begun_at - job.queued_at,
            )
            if isinstance(error, DriveError) and self._retry(job, error):
                return
        except BaseException as caught:
            error = caught  # as in the lane: it belongs to whoever waits
        job.ticket._end(error)

    def _retry(self, job: _Job, error: DriveError) -> bool:
        self._replicas.demote(job.replica, error)
        job.tried |= {job.replica.drive}
        replica = self._replicas.choose(job.request.flat_index, job.request.extent, job.tried)
        if replica is None:
            return False
        job.replica = replica
        return self._lane(replica.drive).push([job], front=True)


def _closed() -> ClosedReader:
    return ClosedReader("the reader was closed before the read began")
