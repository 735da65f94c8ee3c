"""Reads that somebody waits for, and may stop waiting for: they are made by a thread of their own.

A system call that waits for a drive cannot be taken back. So whoever stops waiting leaves the read to end by itself;
the memory it writes into stays until then.
"""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from storage.extents import Extent
from storage.ticket import CHECK_S, Check


class _Read:
    """One read on its way."""

    def __init__(self, extent: Extent, target: memoryview) -> None:
        self.extent = extent
        self.target = target
        self.done = threading.Event()
        self.error: BaseException | None = None


class StoppableReads:
    """One read at a time through `read`, waited for in steps. For one thread."""

    def __init__(self, read: Callable[[Extent, memoryview], None]) -> None:
        self._read = read
        self._wanted: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()
        # Daemonic, for a drive that never answers must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name="load", daemon=True)
        self._thread.start()

    def read_into(self, extent: Extent, target: memoryview, check: Check) -> None:
        """Fill `target` with the extent's bytes, but look at `check` fifty times a second while waiting.

        Raises: what `read` raises; what `check` raises, and the read then goes on alone.
        """
        wanted = _Read(extent, target)
        self._wanted.put(wanted)
        while not wanted.done.wait(CHECK_S):
            check()
        if wanted.error is not None:
            raise wanted.error

    def close(self) -> None:
        """Let the thread end once its last read has. Does not wait."""
        self._wanted.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                self._read(wanted.extent, wanted.target)
            except BaseException as caught:
                wanted.error = caught  # it belongs to whoever waits
            wanted.done.set()
