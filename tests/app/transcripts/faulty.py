"""A file system that fails where the test wants, and a drive that forgets what was not synced."""

import errno
import os
from collections.abc import Container
from pathlib import Path

from app.transcripts.files import FileOps


class FaultyFiles(FileOps):
    """The real calls, numbered from 1 where they write; those in `fail_on` fail, a write after taking half.

    Beside the real files it keeps what a power failure would leave: bytes are on the drive once their file has been
    synced, a name once its folder has. After a sync that failed the kernel takes the bytes for written although they
    are not, and no later sync brings them there; only writing them again does.
    """

    def __init__(self, fail_on: Container[int] = (), error: int = errno.ENOSPC) -> None:
        self.fail_on = fail_on
        self.error = error
        self.n_calls = 0
        self.calls: list[str] = []
        self._synced: dict[int, bytes] = {}
        self._lost: dict[int, tuple[int, int]] = {}
        self._names: dict[str, int] = {}

    def _point(self, what: str) -> None:
        self.n_calls += 1
        self.calls.append(what)
        if self.n_calls in self.fail_on:
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self._point("create")
        fd = super().open(path, flags, mode)
        if flags & os.O_TRUNC:
            self._lost.pop(_inode(fd), None)
        return fd

    def make_folder(self, path: Path) -> bool:
        if not path.is_dir():
            self._point("make_folder")
        return super().make_folder(path)

    def write(self, fd: int, data: bytes) -> int:
        try:
            self._point("write")
        except OSError:
            super().write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        self._point("truncate")
        super().truncate(fd, size)
        first, last = self._lost.get(_inode(fd), (0, 0))
        self._lost[_inode(fd)] = (first, min(last, size))

    def sync(self, fd: int) -> None:
        inode, now = _inode(fd), os.pread(fd, 1 << 30, 0)
        try:
            self._point("sync")
        except OSError:
            self._lost[inode] = (len(self._synced.get(inode, b"")), len(now))
            raise
        first, last = self._lost.get(inode, (0, 0))
        if last > first:
            now = now[:first] + bytes(last - first) + now[last:]
        self._synced[inode] = now

    def sync_folder(self, path: Path) -> None:
        self._point("sync_folder")
        self._names |= {one.name: one.stat().st_ino for one in path.iterdir() if one.is_file()}

    def rename(self, source: Path, target: Path) -> None:
        self._point("rename")
        super().rename(source, target)

    def lose_power(self, folder: Path) -> None:
        """Write what would be found in the folder afterwards into another one."""
        folder.mkdir()
        for name, inode in self._names.items():
            (folder / name).write_bytes(self._synced.get(inode, b""))


def _inode(fd: int) -> int:
    return os.fstat(fd).st_ino
