import errno
import io
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from app.backends.base import Backend
from app.commands import ask


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or writes the settings, logs or model of whoever runs the tests."""
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ARTESIAN_MODEL", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend], None]:
    """Makes `artesian ask` answer with the given backend."""

    def use(backend: Backend) -> None:
        monkeypatch.setattr(ask, "make_local", lambda *arguments: backend)

    return use


@pytest.fixture
def small_files_only() -> Callable[[int], AbstractContextManager[None]]:
    """Within it no file of this process can grow beyond so many bytes: a drive that is full in mid-write."""

    @contextmanager
    def limited(n_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


class FillingStream(io.StringIO):
    """A stdout on a drive that is full after so many writes of something."""

    def __init__(self, n_writes: int, number: int = errno.ENOSPC) -> None:
        super().__init__()
        self._left = n_writes
        self._number = number

    def write(self, text: str) -> int:
        if text:
            self._left -= 1
        if self._left < 0:
            raise OSError(self._number, os.strerror(self._number))
        return super().write(text)
