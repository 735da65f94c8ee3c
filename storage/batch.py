"""Many reads at a planned depth per drive: submit and wait are separate, demand goes before warm-up. No policy.

The one thing a reader would get wrong: a ticket that failed or was cancelled may still have reads in flight, so a slot
is free for other bytes only when `wait` has come back, with or without an error.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from storage.defaults import DEFAULT_DEPTH
from storage.errors import DriveError
from storage.extents import Extent
from storage.lane import Ended, Lane
from storage.ticket import DriveStats, Job, ReadRequest, Replica, Ticket, Urgency, closed_reader

__all__ = [
    "DEFAULT_DEPTH",
    "SMALL_DEPTH",
    "BatchReader",
    "DriveStats",
    "ReadRequest",
    "Replica",
    "Replicas",
    "Ticket",
    "Urgency",
]

SMALL_DEPTH = 128
"""Small reads in flight on a drive: the 96 of a token at once."""


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
        """The replica to read `extent` of the item with this flat index from, on none of the `tried` drives unless it
        has a second one.

        None when none is left to try.

        Raises: StorageError when nobody ever had it.
        """
        ...

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Take note of reads that ended: bytes delivered, and the times they took and waited. From a reading thread."""
        ...

    def demote(self, replica: Replica, error: DriveError) -> None:
        """Take note that a read failed there. Called from a reading thread."""
        ...


class BatchReader:
    """Reads extents from the drives that have them, so many at a time on each. Thread-safe.

    Args:
        replicas: Says where an extent is read, and hears of reads and failures. Its files are not closed by the reader.
        block_bytes: What reads start and end on: the largest block of the replicas' files.
        depth: Large reads in flight, for every drive or by drive name.
        small_depth: Small reads in flight on each drive.
    """

    def __init__(
        self,
        replicas: Replicas,
        *,
        block_bytes: int,
        depth: int | Mapping[str, int] = DEFAULT_DEPTH,
        small_depth: int = SMALL_DEPTH,
    ) -> None:
        self.block_bytes = block_bytes
        self._replicas = replicas
        self._depth = depth
        self._small_depth = small_depth
        self._lanes: dict[str, Lane] = {}
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
        lanes = {drive: self._lane(drive) for drive in {replica.drive for replica in chosen}}
        jobs: dict[Lane, list[Job]] = {lane: [] for lane in lanes.values()}
        for request, replica in zip(requests, chosen, strict=True):
            lane = lanes[replica.drive]
            jobs[lane].append(Job(request, ticket, urgency, replica, lane))
        ticket.hold([job for some in jobs.values() for job in some])
        for lane, some in jobs.items():
            if not lane.push(some):
                for _ in some:
                    ticket.end(closed_reader())
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
                job.ticket.end(closed_reader())
        for lane in lanes:
            lane.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lane(self, drive: str) -> Lane:
        with self._lock:
            if self._closed:
                raise closed_reader()
            lane = self._lanes.get(drive)
            if lane is None:
                depth = self._depth if isinstance(self._depth, int) else self._depth.get(drive, DEFAULT_DEPTH)
                lane = self._lanes[drive] = Lane(drive, depth, self._small_depth, self._finish, self.block_bytes)
            return lane

    def _finish(self, drive: str, ended: Sequence[Ended], now: float) -> None:
        """What comes after reads: the next replica if the drive failed, else the ticket. Runs in a lane's thread."""
        fault: BaseException | None = None
        try:
            self._replicas.record(
                drive,
                n_bytes=sum(read.n_bytes for read in ended),
                n_reads=len(ended),
                busy_s=sum(now - read.job.begun_at for read in ended),
                queue_s=sum(read.job.begun_at - read.job.queued_at for read in ended),
            )
        except BaseException as caught:
            fault = caught  # as in the lane: it belongs to whoever waits
        for job, _, error in ended:
            try:
                if isinstance(error, DriveError) and self._retry(job, error):
                    continue
            except BaseException as caught:
                error = caught
            job.ticket.end(error or fault)

    def _retry(self, job: Job, error: DriveError) -> bool:
        self._replicas.demote(job.replica, error)
        job.tried |= {job.replica.drive}
        replica = self._replicas.choose(job.request.flat_index, job.request.extent, job.tried)
        if replica is None:
            return False
        job.replica = replica
        return self._lane(replica.drive).push([job], front=True)
