"""The system calls that write copies, in one replaceable object, so that a test can fail, shorten or cut off each."""

import fcntl
import os
import shutil
from pathlib import Path


class WriteCalls:
    """The real calls; an `OSError` passes through."""

    def open(self, path: Path) -> int:
        """A descriptor for reading and writing; the file is made, readable by all, when it is not there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write the front of `data` at `offset`; a short count is possible."""
        return os.pwrite(fd, data, offset)

    def write_all(self, fd: int, data: memoryview, offset: int) -> None:
        """Write all of `data` at `offset`: short counts are continued, interruptions repeated."""
        done = 0
        while done < len(data):
            try:
                done += self.pwrite(fd, data[done:], offset + done)
            except InterruptedError:
                continue

    def truncate(self, fd: int, n_bytes: int) -> None:
        """Cut or fill the file to this size."""
        os.ftruncate(fd, n_bytes)

    def sync_data(self, fd: int) -> None:
        """Return when what was written is on the drive."""
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(fd)

    def sync(self, fd: int) -> None:
        """The same, with everything the file system knows of the file."""
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Return when the folder's entries are on the drive, so that a rename outlives a crash."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file its final name, in place of one that has it."""
        old.replace(new)

    def unlink(self, path: Path) -> None:
        """Take a file away."""
        path.unlink()

    def free_bytes(self, folder: Path) -> int:
        """What this user may still write on the folder's file system."""
        return shutil.disk_usage(folder).free

    def lock(self, fd: int) -> None:
        """Take the file's lock at once. Raises: BlockingIOError when another process holds it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


WRITE: WriteCalls = WriteCalls()
"""The calls every copy makes unless it is given others."""
