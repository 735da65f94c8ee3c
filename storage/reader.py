"""One open shard and the loop that reads it exactly: short reads continued, interruptions retried, failures named.

Reads go through one replaceable function (`ReadAt`), so that tests and tools can delay, shorten, count or fail every
read the program makes. Buffered reads tell the page cache to forget what they brought: a checkpoint is far larger
than memory.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.errors import DriveError, ShardChanged, ShortRead, shown
from storage.headers import missing

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A shard that is open for reading."""

    shard: str
    """Shard file name, relative to the checkpoint folder."""
    path: Path
    fd: int
    file_bytes: int
    """Size when it was opened."""

    def close(self) -> None:
        """Give the descriptor back. Only its owner does this, once."""
        os.close(self.fd)


ReadAt = Callable[[ShardFile, memoryview, int], int]
"""(file, buffer, offset) -> bytes read: fills the front of `buffer` from `offset`; 0 at the end; raises OSError."""


def read_at(file: ShardFile, buffer: memoryview, offset: int) -> int:
    """One `preadv`: what every read is made of unless a test puts something in its place."""
    return os.preadv(file.fd, [buffer], offset)


def open_shard(path: Path, shard: str, expected_bytes: int) -> ShardFile:
    """Open a shard whose header was checked when it had `expected_bytes`.

    Raises: MissingShard, ShardChanged, DriveError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise missing(path, shard) from None
    except OSError as error:
        raise DriveError.of(error, path, None) from error
    size = os.fstat(fd).st_size
    if size != expected_bytes:
        os.close(fd)
        raise changed(shard, size, expected_bytes)
    return ShardFile(shard=shard, path=path, fd=fd, file_bytes=size)


def changed(shard: str, size: int, opened_bytes: int) -> ShardChanged:
    """The error for a shard that no longer has the size its header was checked with."""
    return ShardChanged(
        f"{shown(shard)} has {size:,} bytes now, {opened_bytes:,} when it was opened",
        shard=shard,
        found=size,
        expected=opened_bytes,
        hint="Something writes to the checkpoint. Let it finish, then open the model again.",
    )


def read_exactly(file: ShardFile, buffer: memoryview, offset: int, read: ReadAt = read_at) -> None:
    """Fill `buffer` from byte `offset` of the file. Never reads past the buffer's length.

    Raises: DriveError with file, offset and errno when the system refuses; ShortRead when it gives nothing before the
        end; ShardChanged when that is because the file changed size.
    """
    done = 0
    while done < len(buffer):
        try:
            n_read = read(file, buffer[done:], offset + done)
        except InterruptedError:
            continue
        except OSError as error:
            raise DriveError.of(error, file.path, offset + done) from error
        if n_read <= 0:
            size = os.fstat(file.fd).st_size
            if size != file.file_bytes:
                raise changed(file.shard, size, file.file_bytes)
            raise ShortRead(
                f"{shown(str(file.path))} gave no bytes at {offset + done:,}, though it has {size:,}: "
                f"{done:,} of {len(buffer):,} read",
                file=file.path,
                offset=offset + done,
                errno=0,
                hint="The drive or its file system is not giving what it promised; look at the kernel log (`dmesg`).",
            )
        done += n_read


def forget(file: ShardFile, offset: int, length: int) -> None:
    """Tell the page cache that these bytes will not be wanted again. Does nothing where that cannot be said."""
    if hasattr(os, "posix_fadvise") and length > 0:
        # The kernel drops whole pages inside the range only, so the range grows to the pages it touches.
        start = offset // PAGE_BYTES * PAGE_BYTES
        end = -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
        os.posix_fadvise(file.fd, start, end - start, os.POSIX_FADV_DONTNEED)
