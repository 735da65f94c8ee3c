from collections.abc import Callable
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
