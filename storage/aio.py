"""Linux kernel AIO: many direct reads begun by one system call and collected by another, without a thread for each.

For small reads only: the 96 reads of a token's rows took 14 ms by 16 threads and 4 ms this way on two busy cores, since
each thread has to get a core, and then the interpreter, to say that 512 bytes have come (2.3 ms is what the drive and
the two calls take; io_uring was no faster). For reads of megabytes it makes no difference. The one thing a reader would
get wrong: it is asynchronous for direct reads alone; on a buffered file the first call does the reading.

Source: io_submit(2), io_getevents(2), include/uapi/linux/aio_abi.h. Numbers are those of 64-bit little-endian systems.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K")

_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}
"""io_setup, io_destroy, io_submit, io_getevents by machine."""
_CONTROL_BLOCK = struct.Struct("=QIIHhIQQqQII")
"""struct iocb: data, key, rw_flags, opcode, reqprio, fildes, buf, nbytes, offset, reserved, flags, resfd."""
_EVENT = struct.Struct("=QQqq")
"""struct io_event: data, obj, res, res2."""
_PREAD = 0


class AioRead(NamedTuple):
    """One read; everything a multiple of the file's block."""

    fd: int
    address: int
    length: int
    offset: int


class KernelAio(Generic[K]):
    """A context with room for `capacity` reads in flight, each under a key of the caller's. Made by `new_aio`.

    `submit` must not be called by two threads at once, nor `wait`; one may submit while another waits.
    """

    def __init__(self, capacity: int, numbers: tuple[int, int, int, int]) -> None:
        """Raises: OSError when the system gives none."""
        self._setup, self._destroy, self._submit, self._getevents = numbers
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_uint(capacity), ctypes.byref(self._context))
        self._blocks = ctypes.create_string_buffer(capacity * _CONTROL_BLOCK.size)
        self._events = ctypes.create_string_buffer(capacity * _EVENT.size)
        self._capacity = capacity
        first = ctypes.addressof(self._blocks)
        self._addresses = [first + i * _CONTROL_BLOCK.size for i in range(capacity)]
        self._pointers = (ctypes.c_void_p * capacity)()
        self._free = list(range(capacity))
        self._keys: list[K | None] = [None] * capacity

    def submit(self, reads: Sequence[tuple[K, AioRead]]) -> int:
        """Begin reads in order; how many were: fewer than all when there is no room, or the next one is refused."""
        numbers = [self._free.pop() for _ in range(min(len(reads), len(self._free)))]
        for place, (number, (key, read)) in enumerate(zip(numbers, reads, strict=False)):
            self._keys[number] = key  # before it begins: it may have ended before the call comes back
            _CONTROL_BLOCK.pack_into(
                self._blocks,
                number * _CONTROL_BLOCK.size,
                *(number, 0, 0, _PREAD, 0, read.fd, read.address, read.length, read.offset, 0, 0, 0),
            )
            self._pointers[place] = self._addresses[number]
        begun = 0
        while begun < len(numbers):
            at = ctypes.byref(self._pointers, begun * ctypes.sizeof(ctypes.c_void_p))
            try:
                begun += self._call(self._submit, self._context, ctypes.c_long(len(numbers) - begun), at)
            except InterruptedError:
                continue
            except OSError:
                break
        for number in numbers[begun:]:
            self._release(number)
        return begun

    def wait(self, least: int) -> list[tuple[K, int]]:
        """Wait until `least` reads in flight have ended; the keys of all that have, with their bytes or negative errno.

        Fewer when a signal comes in between; at least one.
        """
        limits = ctypes.c_long(least), ctypes.c_long(self._capacity)
        n_events = 0
        while not n_events:
            try:
                n_events = self._call(self._getevents, self._context, *limits, self._events, None)
            except InterruptedError:
                continue
        ended = []
        for i in range(n_events):
            number, _, result, _ = _EVENT.unpack_from(self._events, i * _EVENT.size)
            ended.append((self._release(number), result))
        return ended

    def close(self) -> None:
        """Give the context back. Nothing may be in flight."""
        self._call(self._destroy, self._context)

    def _release(self, number: int) -> K:
        """The key under `number`, which is free from now on."""
        key = self._keys[number]
        assert key is not None
        self._keys[number] = None
        self._free.append(number)
        return key

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def new_aio(capacity: int) -> "KernelAio[Any] | None":
    """A context, or None where there is none: another system, a sandbox that forbids it, a limit that is reached."""
    numbers = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 1 << 32 or numbers is None:
        return None
    try:
        return KernelAio(capacity, numbers)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENOMEM):
            return None
        raise
