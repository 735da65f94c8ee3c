"""The system calls the read path makes, in one replaceable object, so that a test can shorten, delay or fail them.

Nothing here retries or interprets: a short count is returned as it is and an `OSError` passes through.
"""

import ctypes
import fcntl
import mmap
import os
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from storage.aio import KernelAio, new_aio

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_F_NOCACHE = 48
"""macOS <sys/fcntl.h>; named by Python's fcntl there only."""
_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_DIO_MEM_ALIGN_AT = 152 // 4
"""Word of stx_dio_mem_align in struct statx, stx_dio_offset_align right behind it: linux/stat.h since 6.1."""


class DioAlignment(NamedTuple):
    """What the kernel says direct reads of a file must be multiples of; both 0 when it refuses them."""

    memory_bytes: int
    offset_bytes: int


_UNCACHED_PAGES = DioAlignment(4096, 4096)
"""macOS: F_NOCACHE takes any alignment, but what is not whole pages goes through the cache after all."""


class Syscalls:
    """The real calls. A fake derives from this class and changes what it wants."""

    def open(self, path: Path, *, direct: bool) -> int:
        """A descriptor for reading; `direct` asks for no page cache, and fails with EINVAL where that cannot be had."""
        # A name that belongs to a pipe must fail the regular-file check of the caller, not wait here for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if direct and sys.platform == "linux":
            flags |= os.O_DIRECT
        fd = os.open(path, flags)
        if direct and sys.platform == "darwin":
            fcntl.fcntl(fd, _F_NOCACHE, 1)
        return fd

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """Fill the front of `target` from `offset`; a short count is possible, 0 is the end. Waits without the GIL."""
        return os.preadv(fd, [target], offset)

    def file_bytes(self, fd: int) -> int:
        """Size of the open file. Raises: OSError when it is no regular file."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        return status.st_size

    def no_read_ahead(self, fd: int) -> None:
        """Ask for no more than what is read: experts lie apart, and what follows one is not wanted."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def forget(self, fd: int, offset: int, length: int) -> None:
        """Tell the page cache that these bytes will not be wanted again; nothing where that cannot be said."""
        if hasattr(os, "posix_fadvise"):
            # The kernel drops whole pages inside the range only, so the range grows to the pages it touches.
            start = offset // PAGE_BYTES * PAGE_BYTES
            end = -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def dio_alignment(self, fd: int) -> DioAlignment | None:
        """What `statx` says of direct reads, or None where it says nothing (an old kernel, another system)."""
        if sys.platform == "darwin":
            return _UNCACHED_PAGES
        statx = _statx()
        record = (ctypes.c_uint32 * (_STATX_BYTES // 4))()
        if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, record) != 0:
            return None
        if not record[0] & _STATX_DIOALIGN:
            return None
        return DioAlignment(record[_DIO_MEM_ALIGN_AT], record[_DIO_MEM_ALIGN_AT + 1])

    def file_system(self, fd: int) -> str:
        """Kind of the file system the open file is on, as the mount table spells it, or ""."""
        device = os.fstat(fd).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            table = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
        except OSError:
            return ""
        for line in table.splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split(" ", 3)[2:3] == [wanted] and kind:
                return kind.split(" ", 1)[0]
        return ""

    def new_aio(self, capacity: int) -> "KernelAio[Any] | None":
        """A way to read without a thread for each read, or None: what `pread` does here must not be gone around."""
        return None


class _System(Syscalls):
    def new_aio(self, capacity: int) -> "KernelAio[Any] | None":
        return new_aio(capacity)


SYSTEM: Syscalls = _System()
"""The calls every reader makes unless it is given others."""


def address_of(memory: memoryview | mmap.mmap) -> int:
    """Where writable `memory` begins in the address space."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@cache
def _statx() -> "ctypes._NamedFuncPointer | None":
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
