"""Looks between turns whether a drive that was given up answers again, and has it read again after a check.

On a thread of its own: opening a file on a dead mount can hang for minutes, and no turn shall wait for that.
"""

import threading
from collections.abc import Callable, Mapping

from storage.errors import shown
from storage.headers import ShardHeader
from storage.replica_files import ReplicaFiles


class ReturnWatch:
    """Asks after the demoted drives of one model. `look` from one thread; it never waits."""

    def __init__(self, files: ReplicaFiles, headers: Mapping[str, ShardHeader], say: Callable[[str], None]) -> None:
        """`say` is told, from another thread, of a drive that is read again."""
        self._files = files
        self._headers = headers
        self._say = say
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def look(self) -> None:
        """Begin to ask after the drives that are demoted now, unless that is going on still."""
        if self._thread is not None and self._thread.is_alive():
            return
        drives = self._files.replicas.demoted()
        if drives and not self._closed.is_set():
            self._thread = threading.Thread(target=self._ask, args=(drives,), name="returning drives", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """Ask no more. Waits only so long for an answer under way; one that comes later changes nothing."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _ask(self, drives: tuple[str, ...]) -> None:
        for drive in drives:
            if self._closed.is_set():
                return
            if self._files.take_back(drive, self._headers) is None:
                self._say(f"Drive {shown(drive)} answers again, its files are as they were: it is read again.")
