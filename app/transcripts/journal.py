"""One file that lines are appended to, and what of it is on the drive.

A line counts as saved when the file has been synced behind it. Until then its bytes stay in memory, and every append
first writes what an earlier one could not. A failed sync leaves nothing certain, so what it should have covered is
written again. Bytes before the last good sync are never touched: what is cut off is only ever a piece of our own that
was never reported as saved.

The one thing a reader would get wrong: the file is made with the first line, not before, so a conversation that never
began leaves none.
"""

import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from app.transcripts.files import FileOps

_COPY_BYTES = 1 << 20
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_NO_WRITING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Journal:
    """The file, and the lines that are not in it yet. From any thread; who flushes waits for who does.

    Attributes:
        path: Where the file is, or will be.
        problem: Why the newest lines are not saved, as the system says it, or None.
        held_elsewhere: Whether another window has the file; then nothing may be appended.
        has_locks: Whether this file system can tell two windows apart.
        closed: Whether the file was given back.
    """

    def __init__(self, path: Path, files: FileOps, *, first_line: bytes) -> None:
        """A file that is not there yet; `first_line` begins it."""
        self.path = path
        self.problem: OSError | None = None
        self.held_elsewhere = False
        self.has_locks = True
        self.closed = False
        self._flushing = threading.RLock()
        self._files = files
        self._first_line = first_line
        self._fd: int | None = None
        self._writable = True
        self._noted: deque[bytes] = deque()  # not looked at yet
        self._pending: list[bytes] = []  # not in the file
        self._unsynced: list[bytes] = []  # in the file, perhaps not on the drive
        self._end = 0  # behind the last whole line of ours
        self._synced_end = 0
        self._loose = False  # whether there may be something of ours behind `_end`
        self._needs_break = False  # whether a piece of a line stands before `_synced_end`

    @classmethod
    def open(cls, path: Path, files: FileOps, *, first_line: bytes, to_read: bool = False) -> "Journal":
        """A file that is there. Without the right to write it can still be read.

        With `to_read` it is only looked at whether another window has it. Raises: OSError.
        """
        journal = cls(path, files, first_line=first_line)
        if to_read:
            journal._fd = files.open(path, os.O_RDONLY)
            # Shared, for which no right to write is needed: network drives ask for that otherwise.
            journal.held_elsewhere = not journal._lock(journal._fd, shared=True)
            if journal.has_locks:
                files.unlock(journal._fd)
            return journal
        try:
            journal._fd = files.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            if error.errno not in _NO_WRITING:
                raise
            journal._fd = files.open(path, os.O_RDONLY)
            journal._writable, journal.problem = False, error
        else:
            journal.held_elsewhere = not journal._lock(journal._fd)
        journal._end = journal._synced_end = files.size(journal._fd)
        return journal

    def read(self, n_bytes: int, offset: int) -> bytes:
        """Bytes of the file; nothing when there is none. Raises: OSError."""
        return b"" if self._fd is None else self._files.read(self._fd, n_bytes, offset)

    def size(self) -> int:
        """Bytes in the file now. Raises: OSError."""
        return 0 if self._fd is None else self._files.size(self._fd)

    def break_torn_line(self) -> None:
        """The file ends within a line: have the next append begin a new one."""
        self._needs_break = True

    @property
    def n_unsaved(self) -> int:
        """Lines that are not known to be on the drive."""
        return len(self._noted) + len(self._pending) + len(self._unsynced)

    def note(self, lines: Sequence[bytes]) -> None:
        """Have lines stand at the end, behind all that were noted before; `flush` puts them there. Never waits."""
        assert not self.held_elsewhere, "another window writes this file"
        self._noted.extend(lines)

    def flush(self, *, sync: bool) -> bool:
        """Put what was noted at the end; with `sync`, return when it is on the drive. Whether that worked.

        Never raises for the drive's sake: the lines wait in memory, `problem` says why, the next call tries again.
        """
        with self._flushing:
            return self._flush(sync) if self.n_unsaved else True

    def close(self) -> None:
        """Save what can be saved and give the file back. Safe to call twice; nothing is written afterwards."""
        with self._flushing:
            if not self.held_elsewhere:
                self.flush(sync=True)
            if self._fd is not None:
                self._files.close(self._fd)
                self._fd = None
            self.closed = True

    def _flush(self, sync: bool) -> bool:
        while self._noted:
            self._pending.append(self._noted.popleft())
        try:
            if self.closed:
                raise OSError(errno.EBADF, "it was closed", str(self.path))
            fd = self._ready()
            if self._loose:
                self._drop_loose(fd)
            if self._pending:
                self._write(fd)
            if sync and self._unsynced:
                self._sync(fd)
        except OSError as error:
            self.problem = error
            return False
        self.problem = None
        return True

    def _ready(self) -> int:
        """The descriptor to write to: the file is there and still where it was."""
        if self._fd is None:
            self._fd = self._begin_file(self.path)
            self._synced_end = self._end = self._files.size(self._fd)
        elif not self._writable:
            self._reopen(self._fd)
        elif not self._files.is_at(self._fd, self.path):
            self._bring_back(self._fd)
        return self._fd

    def _begin_file(self, path: Path, copy_of: int | None = None) -> int:
        """A new file of the user's alone, on the drive with its name, holding the first line or a copy."""
        folder_is_new = self._files.make_folder(path.parent)
        # Under its own name it must never be seen half made.
        hidden = path.with_name(f".{path.name}.new")
        fd = self._files.open(hidden, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if copy_of is None:
                self._files.write_all(fd, self._first_line)
            else:
                self._copy(copy_of, fd)
            self._files.sync(fd)
            self._lock(fd)
            self._files.rename(hidden, path)
        except OSError:
            self._files.close(fd)
            raise
        try:
            self._files.sync_folder(path.parent)
            if folder_is_new:
                self._files.sync_folder(path.parent.parent)
        except OSError:
            self._files.rename(path, hidden)
            self._files.close(fd)
            raise
        return fd

    def _reopen(self, readable: int) -> None:
        """Try to get what opening did not give: the right to write."""
        fd = self._files.open(self.path, os.O_RDWR | os.O_APPEND)
        if not self._lock(fd) or self._files.size(fd) != self._end:
            self._files.close(fd)
            raise OSError(errno.EBUSY, "another window has changed it meanwhile", str(self.path))
        self._files.close(readable)
        self._fd, self._writable = fd, True

    def _bring_back(self, lost: int) -> None:
        """The file was deleted or replaced under us; its bytes are still readable, so write it anew.

        What stands in its place now is somebody's: then this one goes on beside it.
        """
        path, number = self.path, 2
        while path.exists():
            path = self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")
            number += 1
        fd = self._begin_file(path, copy_of=lost)
        self._files.close(lost)
        self._fd, self.path, self._loose = fd, path, False
        self._mark_synced()

    def _copy(self, source: int, target: int) -> None:
        offset = 0
        while offset < self._end:
            block = self._files.read(source, min(_COPY_BYTES, self._end - offset), offset)
            if not block:
                raise OSError(errno.EIO, "the deleted file is shorter than it was", str(self.path))
            self._files.write_all(target, block)
            offset += len(block)

    def _drop_loose(self, fd: int) -> None:
        """Cut off what a failed write or sync left behind the last line that counts."""
        if self._files.size(fd) > self._end:
            self._files.truncate(fd, self._end)
        self._loose = False

    def _write(self, fd: int) -> None:
        data = b"".join(self._pending)
        if self._needs_break and self._end == self._synced_end:
            data = b"\n" + data
        self._loose = True
        self._files.write_all(fd, data)
        self._loose = False
        self._end += len(data)
        self._unsynced += self._pending
        self._pending = []

    def _sync(self, fd: int) -> None:
        try:
            self._files.sync(fd)
        except OSError:
            # The kernel may have dropped the pages it could not write and call the next sync a success.
            self._pending = self._unsynced + self._pending
            self._unsynced = []
            self._end, self._loose = self._synced_end, True
            raise
        self._mark_synced()

    def _mark_synced(self) -> None:
        self._unsynced = []
        self._needs_break &= self._end == self._synced_end
        self._synced_end = self._end

    def _lock(self, fd: int, *, shared: bool = False) -> bool:
        try:
            return self._files.lock(fd, shared=shared)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.has_locks = False
            return True
