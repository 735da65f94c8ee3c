"""Who is using a model, so that closing it waits for them.

The one thing a reader would get wrong: a turn is a generator. While whoever asked for it looks at an event, it is in
use and nothing of it runs; closing then has to end it, not to wait for it.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_S = 0.02
_PATIENCE_S = 2.0
"""How long a turn may rest between two events, in another thread, until it is taken to be abandoned."""


class Use:
    """One use of a model at a time. Entered around a use that is a call; a turn goes through `turn`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._turn: Generator[Any] | None = None
        self._turn_thread = 0

    @property
    def is_ending(self) -> bool:
        """Whether somebody waits for the use under way to end."""
        return self._ending.is_set()

    def stopping(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """`should_stop`, or the model is being closed."""
        return lambda: self._ending.is_set() or should_stop()

    def __enter__(self) -> None:
        """Begin a use; there is no other."""
        taken = self._lock.acquire(blocking=False)
        assert taken, "a backend is used from one thread at a time"

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def turn(self, events: Generator[T]) -> Generator[T]:
        """The same events; from the first one on until it ends, the model is in use."""
        turn = self._hold(events)
        if not self._lock.locked():
            self._turn = turn
        return turn

    def _hold(self, events: Generator[T]) -> Generator[T]:
        with self:
            try:
                self._turn_thread = threading.get_ident()
                for event in events:
                    yield event
                    self._turn_thread = threading.get_ident()
            finally:
                events.close()
                self._turn = None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Have the use under way stopped, wait until it has ended, and let none begin inside."""
        self._ending.set()
        try:
            waited_s = 0.0
            while not self._lock.acquire(timeout=_LOOK_S):
                waited_s += _LOOK_S
                turn = self._turn
                if turn is not None and (self._turn_thread == threading.get_ident() or waited_s > _PATIENCE_S):
                    with suppress(ValueError):  # it runs after all
                        turn.close()
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._ending.clear()
