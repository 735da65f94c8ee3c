"""The system calls a transcript is written with, in one place, so that tests can make each of them fail."""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path


class FileOps:
    """The real ones. Every method raises OSError."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """A descriptor that children do not inherit; never waits for the other end of a pipe.

        Raises: OSError also for what is not a regular file.
        """
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return fd

    def close(self, fd: int) -> None:
        """Give the descriptor, and any lock taken through it, back."""
        os.close(fd)

    def make_folder(self, path: Path) -> bool:
        """Make a folder for the user alone, and those above it; whether it was not there yet."""
        if path.is_dir():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        return True

    def write(self, fd: int, data: bytes) -> int:
        """Write at the end; how many bytes were taken."""
        return os.write(fd, data)

    def write_all(self, fd: int, data: bytes) -> None:
        """Write all of it at the end."""
        n_taken = self.write(fd, data)
        while n_taken < len(data):
            n_more = self.write(fd, data[n_taken:])
            if n_more <= 0:
                raise OSError(errno.EIO, "the drive takes no bytes")
            n_taken += n_more

    def read(self, fd: int, n_bytes: int, offset: int) -> bytes:
        """Up to `n_bytes` from `offset`."""
        return os.pread(fd, n_bytes, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when the file's bytes are on the drive."""
        if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync stops at the drive's own cache
            with contextlib.suppress(OSError):  # network drives do not know it
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
        os.fsync(fd)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in the folder are on the drive."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def size(self, fd: int) -> int:
        """Bytes in the file."""
        return os.fstat(fd).st_size

    def is_at(self, fd: int, path: Path) -> bool:
        """Whether `path` still names the open file."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        """Take the file for this descriptor alone, or beside others that share it, if nobody has it; whether that
        worked.
        """
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Let others have it, if this descriptor had."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within one drive."""
        source.rename(target)
