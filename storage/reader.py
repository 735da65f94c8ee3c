"""One open shard and the loop that reads it exactly: short reads continued, interruptions retried, failures named.

The system calls come from one replaceable object (`Syscalls`), so that tests and tools can delay, shorten, count or
fail every read the program makes. These are buffered reads that tell the page cache to forget what they brought: a
checkpoint is far larger than memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.errors import DriveError, ShardChanged, ShortRead, shown
from storage.headers import missing
from storage.syscalls import SYSTEM, Syscalls


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A shard that is open for reading."""

    shard: str
    """Shard file name, relative to the checkpoint folder."""
    path: Path
    fd: int
    file_bytes: int
    """Size when it was opened."""
    system: Syscalls

    def read_exactly(
        self, buffer: memoryview, offset: int, count: Callable[[int], None] = lambda n_bytes: None
    ) -> None:
        """Fill `buffer` from byte `offset` of the file. Never asks for more than the buffer holds.

        `count` is told the bytes of every system call that brought some, those of a read that then fails included.
        Raises: DriveError with file, offset and errno when the system refuses; ShortRead when it gives nothing before
            the end; ShardChanged when that is because the file changed size.
        """
        done = 0
        while done < len(buffer):
            try:
                n_read = self.system.pread(self.fd, buffer[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise DriveError.of(error, self.path, offset + done) from error
            if n_read <= 0:
                raise self._ended(offset + done, done, len(buffer))
            count(n_read)
            done += n_read

    def forget(self, offset: int, length: int) -> None:
        """Tell the page cache that these bytes will not be wanted again."""
        if length:
            self.system.forget(self.fd, offset, length)

    def read_afresh(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from the drive, not from what the page cache holds, and leave nothing there.

        Raises: what `read_exactly` does.
        """
        self.forget(offset, len(buffer))
        self.read_exactly(buffer, offset)
        self.forget(offset, len(buffer))

    def close(self) -> None:
        """Give the descriptor back. Only the owner does this, once."""
        self.system.close(self.fd)

    def _ended(self, offset: int, done: int, wanted: int) -> ShardChanged | ShortRead:
        size = self.system.file_bytes(self.fd)
        if size != self.file_bytes:
            return changed(self.shard, size, self.file_bytes)
        return ShortRead(
            f"{shown(str(self.path))} gave no bytes at {offset:,}, though it has {size:,}: {done:,} of {wanted:,} read",
            file=self.path,
            offset=offset,
            errno=0,
            hint="The drive or its file system does not give what it promised; look at the kernel log (`dmesg`).",
        )


def open_shard(path: Path, shard: str, system: Syscalls = SYSTEM, *, expected_bytes: int | None = None) -> ShardFile:
    """Open a shard; with `expected_bytes`, one whose header was checked when the file had that size.

    Raises: MissingShard, ShardChanged, DriveError.
    """
    try:
        fd = system.open(path, direct=False)
    except FileNotFoundError:
        raise missing(path, shard) from None
    except OSError as error:
        raise DriveError.of(error, path, None) from error
    try:
        size = system.file_bytes(fd)
    except OSError as error:
        system.close(fd)
        raise DriveError.of(error, path, None) from error
    if expected_bytes not in (None, size):
        system.close(fd)
        raise changed(shard, size, expected_bytes or 0)
    return ShardFile(shard=shard, path=path, fd=fd, file_bytes=size, system=system)


def changed(shard: str, size: int, opened_bytes: int) -> ShardChanged:
    """The error for a shard that no longer has the size its header was checked with."""
    return ShardChanged(
        f"{shown(shard)} has {size:,} bytes now, {opened_bytes:,} when it was opened",
        shard=shard,
        found=size,
        expected=opened_bytes,
        hint="Something writes to the checkpoint. Let it finish, then open the model again.",
    )
