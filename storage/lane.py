"""One drive's reads: its queues, its threads, and what is under way. No policy.

Large reads have a thread each, small direct ones go through kernel AIO where there is any. The one thing to get right:
a job is in exactly one place, told by `waiting`; what was dropped or promoted stays in its old queue as a leftover and
is passed over when it comes up, which keeps both O(1).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from storage.aio import AioRead, KernelAio
from storage.syscalls import Syscalls, address_of
from storage.ticket import DriveStats, Job, Urgency, closed_reader

SMALL_BYTES = 1 << 19
"""Reads up to this go through kernel AIO: rows and their neighbours do, released experts do not."""


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
                while (job := self._next(queue, urgency)) is not None:
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
            job = self._next(self._small, "demand")
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
            while (left := self._next(self._small, "demand")) is not None:
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

    def _next(self, queue: deque[Job], urgency: Urgency) -> Job | None:
        """The next job that waits in this queue, which then waits no more; what went to another lane is passed over."""
        while queue:
            job = queue.popleft()
            if job.waiting and job.lane is self and job.urgency == urgency:
                job.waiting = False
                return job
        return None

    def _next_large(self) -> Job | None:
        job = self._next(self._queues["demand"], "demand")
        if job is None and not self._in_flight:
            job = self._next(self._queues["warm"], "warm")
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
