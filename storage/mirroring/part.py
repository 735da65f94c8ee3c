"""A copy under way: the file under its temporary name, and the journal of the blocks that are safely in it.

The one thing a reader would get wrong: the journal is written after the block is on the drive, never before. A crash at
any moment leaves a journal that names only blocks that are there; whatever lies behind them is cut off on resuming.
Block hashes are those of the bytes as they were read from the source.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage.errors import StorageError, WriteError
from storage.headers import ShardHeader
from storage.mirroring.files import WriteCalls

T = TypeVar("T")

BLOCK_BYTES = 64 << 20
"""What is written, made durable and journalled at a time: a crash loses half a second of a fast drive's work."""
_VERSION = 2
_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_JOURNAL_BYTES = 16 << 20
"""200,000 blocks, 13 TB."""


def part_path(folder: Path, shard: str) -> Path:
    """The temporary name of a copy of `shard` in `folder`: one that no checkpoint reader takes for a shard."""
    return folder / f".{shard}.artesian-part"


def journal_path(folder: Path, shard: str) -> Path:
    """The journal beside it."""
    return folder / f".{shard}.artesian-journal"


def allocated_bytes(folder: Path, shard: str) -> int:
    """What an interrupted copy of `shard` has taken of the drive; 0 without one."""
    try:
        return part_path(folder, shard).stat().st_blocks * 512
    except OSError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """What a journal begins with; a part made of anything else is started again."""

    shard: str
    file_bytes: int
    header_sha256: str
    block_bytes: int
    source_mtime_ns: int | None
    """When the file it is made of was written: one that was fetched again has the header it had."""

    @classmethod
    def of(cls, header: ShardHeader, block_bytes: int, source_mtime_ns: int | None) -> "PartFacts":
        """The facts of a copy of this shard."""
        return cls(
            shard=header.shard,
            file_bytes=header.file_bytes,
            header_sha256=header.digest.hex(),
            block_bytes=block_bytes,
            source_mtime_ns=source_mtime_ns,
        )

    def line(self) -> str:
        """The journal's first line."""
        record = {
            "artesian": "mirror-part",
            "version": _VERSION,
            "shard": self.shard,
            "file_bytes": self.file_bytes,
            "header_sha256": self.header_sha256,
            "block_bytes": self.block_bytes,
            "source_mtime_ns": self.source_mtime_ns,
        }
        return json.dumps(record) + "\n"


class Part:
    """An open copy under way. Made by `open`; `close` leaves it to be resumed, `finish` gives it its name."""

    def __init__(self, folder: Path, facts: PartFacts, writes: WriteCalls, fd: int, journal: int) -> None:
        self._folder = folder
        self._facts = facts
        self._writes = writes
        self._fd = fd
        self._journal = journal
        self._journal_bytes = 0
        self.hashes: list[str] = []
        """SHA-256 of every block that is on the drive, in order."""

    @classmethod
    def open(cls, folder: Path, facts: PartFacts, writes: WriteCalls) -> "Part":
        """Open the copy of `facts.shard`, with the blocks that an interrupted one left. Raises: WriteError."""
        path, journal_file = part_path(folder, facts.shard), journal_path(folder, facts.shard)
        fd = checked(lambda: writes.open(path), path, "open")
        try:
            journal = checked(lambda: writes.open(journal_file), journal_file, "open")
        except StorageError:
            writes.close(fd)
            raise
        part = cls(folder, facts, writes, fd, journal)
        try:
            part._resume()
        except BaseException:
            part.close()
            raise
        return part

    @property
    def path(self) -> Path:
        """The temporary file."""
        return part_path(self._folder, self._facts.shard)

    def append(self, block: memoryview, sha256: str) -> None:
        """Put the next block on the drive, then into the journal. Raises: WriteError."""
        self.write(len(self.hashes), block)
        line = f"{sha256}\n".encode()
        journal_file = journal_path(self._folder, self._facts.shard)
        checked(
            lambda: self._writes.write_all(self._journal, memoryview(line), self._journal_bytes), journal_file, "write"
        )
        self._journal_bytes += len(line)
        self.hashes.append(sha256)

    def write(self, index: int, block: memoryview) -> None:
        """Put a block in its place on the drive; the journal does not change. Raises: WriteError."""

        def put() -> None:
            self._writes.write_all(self._fd, block, index * self._facts.block_bytes)
            self._writes.sync_data(self._fd)

        checked(put, self.path, "write")

    def finish(self) -> Path:
        """Make the copy durable and give it its final name; the new path. Raises: WriteError.

        The journal stays until the copy is on record: it says whose a file without a record is.
        """
        final = self._folder / self._facts.shard
        checked(lambda: self._writes.sync(self._fd), self.path, "write")
        self.close()
        checked(lambda: self._writes.rename(self.path, final), final, "rename")
        checked(lambda: self._writes.sync_folder(self._folder), self._folder, "write")
        return final

    def close(self) -> None:
        """Close both files as they are. A second call does nothing."""
        for fd in (self._fd, self._journal):
            if fd >= 0:
                self._writes.close(fd)
        self._fd = self._journal = -1

    def _resume(self) -> None:
        """Take over what the journal vouches for and cut off the rest."""
        journal_file = journal_path(self._folder, self._facts.shard)
        first, hashes = _read_journal(self._journal)
        n_there = os.fstat(self._fd).st_size
        if first != self._facts.line().rstrip("\n"):
            hashes = ()
        whole = self._facts.file_bytes // self._facts.block_bytes
        n_blocks = min(len(hashes), n_there // self._facts.block_bytes)
        if n_there >= self._facts.file_bytes and len(hashes) > whole:
            n_blocks = whole + 1  # the last block, which is shorter, is there too
        self.hashes = list(hashes[:n_blocks])
        kept_bytes = min(n_blocks * self._facts.block_bytes, self._facts.file_bytes)
        head = (self._facts.line() + "".join(f"{one}\n" for one in self.hashes)).encode()

        def cut() -> None:
            self._writes.truncate(self._fd, kept_bytes)
            self._writes.truncate(self._journal, 0)
            self._writes.write_all(self._journal, memoryview(head), 0)

        checked(cut, journal_file, "write")
        self._journal_bytes = len(head)


def _read_journal(fd: int) -> tuple[str, Sequence[str]]:
    """First line and the block hashes behind it; what is torn or no hash ends it."""
    text = os.pread(fd, _MAX_JOURNAL_BYTES, 0).decode("utf-8", "replace")
    first, *lines = text.split("\n")
    hashes = []
    for line in lines[:-1]:  # the last one has no line end, so it may be torn
        if not _HASH.fullmatch(line):
            break
        hashes.append(line)
    return first, hashes


def checked(call: Callable[[], T], file: Path, doing: str) -> T:
    """What `call` gives. Raises: WriteError when the system refuses."""
    try:
        return call()
    except OSError as error:
        raise WriteError.of(error, file, doing) from error
