"""The one line on stderr that shows what a wait is for. A terminal gets it, a file or a pipe does not."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from app.report import format_bytes, format_per_second, format_rate, format_seconds
from engine.events import LoadProgress, PrefillProgress

_QUIET_S = 1.0
"""A wait shorter than this shows nothing."""
_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProgress:
    """A command is moving bytes."""

    what: str
    """What it does to them, as one word: "writing", "copying"."""
    done_bytes: int
    total_bytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProgress:
    """A command does something for a given time."""

    what: str
    """As one word: "measuring"."""
    elapsed_s: float
    total_s: float
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountProgress:
    """A command works through things that are counted."""

    what: str
    """As one word: "comparing"."""
    unit: str
    """What is counted, as a plural: "positions"."""
    done: int
    total: int
    elapsed_s: float


Progress = LoadProgress | PrefillProgress | WorkProgress | TimedProgress | CountProgress


def progress_text(event: Progress) -> str:
    """What, how much of how much, at which rate, and how long still."""
    if isinstance(event, TimedProgress):
        time_of_time = f"{format_seconds(event.elapsed_s)} of {format_seconds(event.total_s)}"
        rate = format_rate(event.read_bytes, event.elapsed_s)
        return f"{event.what} {time_of_time} | {format_bytes(event.read_bytes)} read | {rate}"
    if isinstance(event, LoadProgress | WorkProgress):
        what = "loading" if isinstance(event, LoadProgress) else event.what
        parts = [f"{what} {format_bytes(event.done_bytes)} of {format_bytes(event.total_bytes)}"]
        parts.append(format_rate(event.done_bytes, event.elapsed_s))
        done, total = event.done_bytes, event.total_bytes
    elif isinstance(event, CountProgress):
        parts = [f"{event.what} {event.done:,} of {event.total:,} {event.unit}"]
        parts.append(format_per_second(event.done, event.elapsed_s))
        done, total = event.done, event.total
    else:
        parts = [f"reading prompt {event.done_tokens:,} of {event.total_tokens:,} tokens"]
        parts.append(format_per_second(event.done_tokens, event.elapsed_s))
        parts.append(f"{format_bytes(event.read_bytes)} from drives" if event.read_bytes else "")
        done, total = event.done_tokens, event.total_tokens
    if 0 < done < total:
        parts.append(f"{format_seconds(event.elapsed_s * (total - done) / done)} left")
    return " | ".join(part for part in parts if part)


class ProgressLine:
    """Rewrites one line with carriage returns and blanks only, so that any terminal can show it."""

    def __init__(
        self, stream: TextIO, *, columns: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """None for `columns` takes the terminal's width."""
        self._stream = stream
        self._columns = max((columns or shutil.get_terminal_size().columns) - 1, 1)
        self._clock = clock
        self._next = 0.0
        self._width = 0
        self._shows = stream.isatty()
        self._lock = threading.Lock()

    def show(self, event: Progress) -> None:
        """Show `event` once the wait has lasted a second, at most ten times a second. From any thread."""
        with self._lock:
            now = self._clock()
            if not self._shows or event.elapsed_s < _QUIET_S or now < self._next:
                return
            self._next = now + _INTERVAL_S
            text = progress_text(event)[: self._columns]
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)

    def clear(self) -> None:
        """Take the line away; nothing if there is none."""
        with self._lock:
            if self._width:
                self._write("\r" + " " * self._width + "\r")
                self._width = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
