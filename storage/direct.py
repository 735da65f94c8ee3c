"""One file open for reading, past the page cache where that works, and which of the two ways is in use.

The one thing a reader would get wrong: an open that succeeds with O_DIRECT proves nothing (an overlay may refuse the
first read, some file systems a later one), so alignment is proven by reading a block, and a refusal in the middle of a
run moves this file to buffered reads for good, with the same bytes and one report.
"""

import errno
import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from storage.errors import DirectReadsRefused, DriveError, ShortRead, shown
from storage.syscalls import PAGE_BYTES, SYSTEM, Syscalls, address_of

IoMode = Literal["auto", "direct", "buffered"]
"""Direct where it works; direct or an error; never direct."""

BLOCKS = (512, 4096, 16384)
"""Block sizes tried, smallest first: sectors of old and of new drives, pages of some arm64 systems."""

_REFUSALS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""How a file system says that it has no direct reads, or not at this alignment."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems whose files are page cache: some accept O_DIRECT, and then read the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoPath:
    """How one file is read, and why."""

    file: Path
    direct: bool
    """Whether reads go past the page cache."""
    block_bytes: int
    """What reads start and end on a multiple of; 512 for buffered reads, which need nothing."""
    file_system: str
    """Kind of file system, or "" when the system does not say."""
    reason: str
    """Why it is read this way, as one clause."""


class DirectFile:
    """A file and the way it is read. Thread-safe, `close` excepted; reads share no file position.

    Args are those of `open`, which is how one is made.
    """

    def __init__(
        self, path: Path, io: IoMode, system: Syscalls = SYSTEM, on_fallback: Callable[[IoPath], None] | None = None
    ) -> None:
        self.path = path
        self.system = system
        """The calls that read it."""
        self._on_fallback = on_fallback
        self._lock = threading.Lock()
        self._fds: dict[bool, int] = {}  # by `direct`: the buffered descriptor is opened when first needed
        try:
            self._io_path = self._choose(io)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        io: IoMode = "auto",
        *,
        system: Syscalls = SYSTEM,
        on_fallback: Callable[[IoPath], None] | None = None,
    ) -> Self:
        """Open `path` and prove how it can be read.

        `on_fallback` is called once, from the reading thread, when direct reads are refused after they worked.
        Raises: DriveError when it cannot be opened or read; DirectReadsRefused with `io="direct"` where there are none.
        """
        return cls(path, io, system, on_fallback)

    @property
    def io_path(self) -> IoPath:
        """How the file is read at the moment."""
        return self._io_path

    @property
    def direct_fd(self) -> int | None:
        """The descriptor that reads past the page cache, while that is how the file is read."""
        return self._fds[True] if self._io_path.direct else None

    @property
    def block_bytes(self) -> int:
        """What reads start and end on a multiple of; does not change when the file falls back to buffered reads."""
        return self._io_path.block_bytes

    def read(
        self,
        offset: int,
        length: int,
        target: memoryview,
        block_bytes: int | None = None,
        count: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        """Read `length` bytes from `offset` so that the first of them lands at `target[offset % block_bytes]`.

        `target` holds the whole blocks around the bytes and, for direct reads, starts at a multiple of the block in
        memory. `block_bytes` is a multiple of this file's, and this file's unless given. What lies in `target` around
        the payload is undefined afterwards.

        `count` is told the bytes of every system call that delivered some: those around the payload included, and those
        of a read that then fails.

        Raises: DriveError with file, offset and errno; ShortRead when the file ends before the payload does.
        """
        block = block_bytes or self.block_bytes
        assert block % self.block_bytes == 0, (block, self._io_path)
        head = offset % block
        span = -(-(head + length) // block) * block
        assert len(target) >= span, (len(target), span)
        if not length:
            return
        if self._io_path.direct and self._read_direct(offset - head, head + length, target[:span], count):
            return
        self._read_buffered(offset, target[head : head + length], count)

    def forget(self, offset: int, length: int) -> None:
        """Drop what the page cache holds of these bytes, so that the next read comes from the drive; nothing to do when
        reads go past the cache. Raises: DriveError when the file cannot be opened.
        """
        if not self._io_path.direct:
            self.system.forget(self._descriptor(direct=False), offset, length)

    def close(self) -> None:
        """Give the descriptors back. No read may be in flight; a second call does nothing."""
        while self._fds:
            self.system.close(self._fds.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_direct(self, start: int, needed: int, target: memoryview, count: Callable[[int], None]) -> bool:
        """Fill the first `needed` bytes of `target` from `start`; False if that was refused."""
        fd = self._fds[True]
        block = self.block_bytes
        assert address_of(target) % min(block, PAGE_BYTES) == 0, "a misaligned target would look like a refusal"
        done = 0
        while done < needed:
            at = done // block * block  # a short read that ended inside a block is taken up where the block begins
            try:
                n_read = self.system.pread(fd, target[at:], start + at)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise DriveError.of(error, self.path, start + at) from error
                self._fall_back(f"a direct read at byte {start + at:,} was refused ({errno.errorcode[error.errno]})")
                return False
            if n_read <= 0:
                raise self._ended(start + done)
            count(n_read)
            if at + n_read <= done:
                self._fall_back(f"a direct read at byte {start + at:,} stopped inside a block after {n_read:,} bytes")
                return False
            done = at + n_read
        return True

    def _read_buffered(self, offset: int, target: memoryview, count: Callable[[int], None]) -> None:
        fd = self._descriptor(direct=False)
        done = 0
        while done < len(target):
            try:
                n_read = self.system.pread(fd, target[done:], offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise DriveError.of(error, self.path, offset + done) from error
            if n_read <= 0:
                raise self._ended(offset + done)
            count(n_read)
            done += n_read
        if self._io_path.file_system not in _IN_MEMORY:
            self.system.forget(fd, offset, done)

    def _ended(self, offset: int) -> ShortRead:
        return ShortRead(
            f"{shown(str(self.path))} gave no bytes at {offset:,}, before the end of what was asked for",
            file=self.path,
            offset=offset,
            errno=0,
            hint="The file was cut short, or its drive gives less than it says. Run `artesian audit` on the folder.",
        )

    def _descriptor(self, *, direct: bool) -> int:
        with self._lock:
            if direct not in self._fds:
                try:
                    self._fds[direct] = self.system.open(self.path, direct=direct)
                except OSError as error:
                    raise DriveError.of(error, self.path, None) from error
                if not direct:
                    self.system.no_read_ahead(self._fds[direct])
            return self._fds[direct]

    def _fall_back(self, reason: str) -> None:
        """Read this file buffered from now on. Only the first thread to find out reports it."""
        with self._lock:
            if not self._io_path.direct:
                return
            self._io_path = replace(self._io_path, direct=False, reason=reason)
        if self._on_fallback is not None:
            self._on_fallback(self._io_path)

    def _choose(self, io: IoMode) -> IoPath:
        if io == "buffered":
            fd = self._descriptor(direct=False)
            kind = self.system.file_system(fd)
            self._size(fd)
            return self._path_of(direct=False, block=BLOCKS[0], kind=kind, reason="asked for")
        try:
            fd = self._fds[True] = self.system.open(self.path, direct=True)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise DriveError.of(error, self.path, None) from error
            refusal = f"opening for direct reads was refused ({errno.errorcode[error.errno]})"
            return self._refused(io, refusal, self.system.file_system(self._descriptor(direct=False)))
        kind, size = self.system.file_system(fd), self._size(fd)
        if kind in _IN_MEMORY:
            return self._refused(io, f"{kind} keeps its files in the page cache", kind)
        block, reason = self._prove(fd, size)
        if block is None:
            return self._refused(io, reason, kind)
        return self._path_of(direct=True, block=block, kind=kind, reason=reason)

    def _refused(self, io: IoMode, reason: str, kind: str) -> IoPath:
        if io == "direct":
            raise DirectReadsRefused(
                f"{shown(str(self.path))} cannot be read directly: {reason}" + (f", on {kind}" if kind else ""),
                hint="Use `--io auto` to read it through the page cache.",
            )
        self._size(self._descriptor(direct=False))
        return self._path_of(direct=False, block=BLOCKS[0], kind=kind, reason=reason)

    def _path_of(self, *, direct: bool, block: int, kind: str, reason: str) -> IoPath:
        return IoPath(file=self.path, direct=direct, block_bytes=block, file_system=kind, reason=reason)

    def _size(self, fd: int) -> int:
        """Bytes of the open file, which must be a regular one."""
        try:
            return self.system.file_bytes(fd)
        except OSError as error:
            raise DriveError.of(error, self.path, None) from error

    def _prove(self, fd: int, file_bytes: int) -> tuple[int | None, str]:
        """The smallest block that a real read accepts, and how that is known; None with the reason when none does."""
        alignment = self.system.dio_alignment(fd)
        if alignment is not None and not alignment.offset_bytes:
            return None, "the file system says it has no direct reads"
        least = max(alignment, default=0) if alignment is not None else 0
        with mmap.mmap(-1, 2 * BLOCKS[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as scratch:
            for block in sorted({*(size for size in BLOCKS if size >= least), least} - {0}):
                # The second block where there is one: offset 0 and a page in memory are aligned to anything.
                offset = block if file_bytes > block else 0
                if self._accepts(fd, memoryview(scratch), block, offset, min(block, file_bytes - offset)):
                    return block, f"proven by a read of {block:,} bytes at {offset:,}"
        return None, f"no read of {BLOCKS[0]:,} to {BLOCKS[-1]:,} bytes was accepted"

    def _accepts(self, fd: int, scratch: memoryview, block: int, offset: int, expected: int) -> bool:
        with scratch, scratch[block : 2 * block] as target:
            while True:
                try:
                    return self.system.pread(fd, target, offset) == expected
                except InterruptedError:
                    continue
                except OSError as error:
                    if error.errno in _REFUSALS:
                        return False
                    raise DriveError.of(error, self.path, offset) from error
