"""Readers for tests of what stands on them: one of memory, under the test's thumb, and the real one over plain
files.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.batch import BatchReader, ReadRequest, Ticket, Urgency
from storage.direct import DirectFile, IoMode
from storage.errors import DriveError, ReadCancelled
from storage.extents import Extent

POISON = 0xEE


class MemoryTicket(Ticket):
    """A read that takes place when it is waited for, unless its reader is held."""

    def __init__(self, reader: "MemoryReader", requests: Sequence[ReadRequest], urgency: Urgency, fails: bool) -> None:
        super().__init__(len(requests))
        self._reader = reader
        self.requests = requests
        self.urgency = urgency
        self.promoted = False
        self.cancelled = False
        self.begun = False
        """Set by a test: no longer to be taken back by `cancel`."""
        self._fails = fails
        self._ended = False

    @property
    def done(self) -> bool:
        return self._ended

    def finish(self) -> None:
        """The read ends: now its bytes are there."""
        self._ended = True
        if not self._fails and not self.cancelled:
            for request in self.requests:
                self._reader.deliver(request)

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._ended:
            if timeout_s is not None and self._reader.held:
                return False
            self.finish()
        if self.cancelled:
            raise ReadCancelled("taken back")
        if self._fails:
            raise DriveError("the drive failed", file=Path("a"), offset=0, errno=5)
        return True

    def cancel(self) -> int:
        if self.begun or self._ended:
            return 0
        self._ended = self.cancelled = True
        return len(self.requests)

    def withdraw(self) -> int:
        return self.cancel()

    def promote(self) -> None:
        self.promoted = True


class MemoryReader:
    """Serves extents out of `shards`. What is submitted is poisoned at once, as a drive may write at any time."""

    def __init__(self, shards: Mapping[str, bytes], block_bytes: int = 16) -> None:
        self.shards = shards
        self.block_bytes = block_bytes
        self.tickets: list[MemoryTicket] = []
        self.fail_on: set[int] = set()
        """Submissions that fail, by number."""
        self.refuse_on: set[int] = set()
        """Submissions that are not taken at all."""
        self.held = False
        """Whether reads wait for `finish` when they are waited for with a time limit."""
        self._n_submitted = 0

    def submit(self, requests: Sequence[ReadRequest], urgency: Urgency = "demand") -> Ticket:
        number = self._n_submitted
        self._n_submitted += 1
        if number in self.refuse_on:
            raise DriveError("nobody has it", file=Path("a"), offset=0, errno=0)
        for request in requests:
            request.target[:] = bytes([POISON]) * len(request.target)
        ticket = MemoryTicket(self, requests, urgency, number in self.fail_on)
        self.tickets.append(ticket)
        return ticket

    def deliver(self, request: ReadRequest) -> None:
        extent = request.extent
        head = extent.offset % self.block_bytes
        payload = self.shards[extent.shard][extent.offset : extent.offset + extent.length]
        assert len(payload) == extent.length
        request.target[head : head + extent.length] = payload


@dataclass(frozen=True)
class _Copy:
    file: DirectFile
    drive: str = "only"


class OneFolder:
    """Replicas with one copy of each shard."""

    def __init__(self, files: Mapping[str, DirectFile]) -> None:
        self._copies = {shard: _Copy(file) for shard, file in files.items()}

    def choose(self, flat_index: int, extent: Extent, tried: Collection[str]) -> _Copy | None:
        return None if tried else self._copies[extent.shard]

    def demote(self, replica: object, error: DriveError) -> None:
        """There is no other."""

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> list[_Copy]:
        return [self._copies[extent.shard] for _, extent in requests]

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Nobody asks."""


@contextmanager
def open_reader(paths: Mapping[str, Path], *, io: IoMode = "auto", depth: int = 4) -> Iterator[BatchReader]:
    """The real reader over plain files."""
    files = {shard: DirectFile.open(path, io) for shard, path in paths.items()}
    block_bytes = max(file.block_bytes for file in files.values())
    with BatchReader(OneFolder(files), block_bytes=block_bytes, depth=depth) as reader:
        yield reader
    for file in files.values():
        file.close()
