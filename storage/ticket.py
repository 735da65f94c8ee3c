"""A batch of reads as whoever asked for it sees it: the request, the ticket, and one read on its way. No threads.

The one thing to get right: a ticket that failed or was cancelled may still have reads in flight; it is done when the
last of them has ended, and not before.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from storage.direct import DirectFile
from storage.errors import ClosedReader, ReadCancelled
from storage.extents import Extent

if TYPE_CHECKING:
    from storage.lane import Lane

Urgency = Literal["demand", "warm"]
"""Somebody waits for it; or it is read ahead, one at a time, beginning only while its drive has nothing else to do."""


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


Check = Callable[[], None]
"""Called again and again while something is waited for; what it raises ends the wait, and the reads go on alone."""

CHECK_S = 0.02
"""How long a wait goes on before it is looked whether somebody stopped it."""


def no_check() -> None:
    """Nothing ends the wait."""


class Ticket:
    """The reads of one `submit`."""

    def __init__(self, n_reads: int) -> None:
        self._n_reads = self._left = n_reads
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

    def wait_checking(self, check: Check) -> None:
        """Wait until every read has ended, however long, but look at `check` fifty times a second.

        Raises: as `wait`; what `check` raises.
        """
        while not self.wait(None if check is no_check else CHECK_S):
            check()

    def cancel(self) -> int:
        """Take back the reads that have not begun; returns how many. The others still have to be waited for."""
        dropped = [job for job in self._jobs if job.lane.drop(job)]
        for _ in dropped:
            self.end(ReadCancelled("the read was cancelled before it began"))
        return len(dropped)

    def withdraw(self) -> int:
        """Take back all its reads if none has begun; returns how many. Otherwise all of them go on: of half an item
        nobody could make anything, and who asks for it next waits for the rest.
        """
        jobs = list(self._jobs)
        # From the end, as the first ones begin first.
        dropped = [job for job in reversed(jobs) if job.lane.drop(job)]
        if len(dropped) < self._n_reads:
            for job in reversed(dropped):
                if not job.lane.push([job]):
                    self.end(closed_reader())
            return 0
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


def closed_reader() -> ClosedReader:
    """The error of a read that was still to be made when its reader was closed."""
    return ClosedReader("the reader was closed before the read was made")
