"""How long the native library was at work: what a forward took beside it is Python, torch and waiting."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.kernels.native_path import NativeKernels


@dataclass(slots=True)
class CallTime:
    """How long the calls of the library took so far."""

    seconds: float = 0.0


class _Timed:
    """The library, with a watch on every function."""

    def __init__(self, library: ctypes.CDLL, spent: CallTime) -> None:
        self._library = library
        self._spent = spent

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, spent = getattr(self._library, name), self._spent

        def timed(*arguments: Any) -> Any:
            before = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                spent.seconds += time.perf_counter() - before

        setattr(self, name, timed)
        return timed


@contextmanager
def timed_calls(kernels: NativeKernels | None) -> Iterator[CallTime]:
    """While entered, the calls of `kernels` are timed; with None nothing is, and the time stays 0."""
    spent = CallTime()
    if kernels is None:
        yield spent
        return
    library = kernels._library
    kernels._library = _Timed(library, spent)  # type: ignore[assignment]
    try:
        yield spent
    finally:
        kernels._library = library
