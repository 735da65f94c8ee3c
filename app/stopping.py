"""Ctrl+C: once stops the turn and keeps what was written, twice quits."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Self


class StopKey:
    """While entered, the first Ctrl+C sets `pressed()`; the second has its usual effect, at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: Any = None

    def pressed(self) -> bool:
        """Whether the user asked to stop."""
        return self._event.is_set()

    def __enter__(self) -> Self:
        """Take over the signal, unless a parent asked for it to be ignored (`nohup`, a background job)."""
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the signal back."""
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._event.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.stderr.isatty():
            # os.write, as the handler may have interrupted a print to the same stream.
            os.write(sys.stderr.fileno(), b"\nartesian: stopping; Ctrl+C again quits at once\n")
