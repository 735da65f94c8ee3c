"""System calls with a hook in the read, which knows the file it reads and may delay, shorten, count or fail it."""

import os
from collections.abc import Callable
from pathlib import Path

from storage.syscalls import Syscalls


class HookedSystem(Syscalls):
    """The real calls, but for `pread`, which is the hook's."""

    def __init__(self, hook: Callable[["HookedSystem", Path, memoryview, int], int]) -> None:
        self._hook = hook
        self._paths: dict[int, Path] = {}
        self._fds: dict[Path, int] = {}
        self.armed = True
        """Whether `failing` fails; a test may let the opening pass first."""
        self.read_bytes: dict[Path, int] = {}
        """Bytes that the real reads brought, by file."""

    def open(self, path: Path, *, direct: bool) -> int:
        """The real one, remembered."""
        fd = super().open(path, direct=direct)
        self._paths[fd] = path
        return fd

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The hook's."""
        path = self._paths[fd]
        self._fds[path] = fd
        return self._hook(self, path, target, offset)

    def real(self, path: Path, target: memoryview, offset: int) -> int:
        """The real read of the file the hook was called for."""
        count = os.preadv(self._fds[path], [target], offset)
        self.read_bytes[path] = self.read_bytes.get(path, 0) + count
        return count


def failing(number: int, *names: str, times: int | None = None) -> HookedSystem:
    """Reads of the named files (any, when none is named) fail with this errno, always or the first `times` times."""
    left = [times]

    def read(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        hit = not names or path.name in names or str(path) in names
        if hit and system.armed and left[0] != 0:
            left[0] = None if left[0] is None else left[0] - 1
            raise OSError(number, os.strerror(number))
        return system.real(path, target, offset)

    return HookedSystem(read)
