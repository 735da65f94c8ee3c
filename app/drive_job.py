"""One piece of work on drives, measuring, copying or checking, on a thread that outlives the screen that began it.

Hundreds of gigabytes take an hour; whoever began it goes on chatting. The screen looks at it, the app stops it at the
end.
"""

import threading
from collections.abc import Callable

from app.progress import Progress
from storage.mirroring.copying import Copier


class DriveJob:
    """Work under way or done. Made running; the attributes may be read from any thread.

    Attributes:
        what: What it does, as one line for a person.
        progress: How far it is, None before the first step.
        said: What came of it, once it has ended well.
        error: What ended it otherwise.
    """

    def __init__(self, what: str, run: Callable[["DriveJob"], str]) -> None:
        """`run` does it, keeps `progress` up to date, looks at `stopping`, and gives what came of it."""
        self.what = what
        self.progress: Progress | None = None
        self.said = ""
        self.error: Exception | None = None
        self._run = run
        self._stopping = threading.Event()
        self._copier: Copier | None = None
        self._paused = False
        self._thread = threading.Thread(target=self._work, name="drive work", daemon=True)
        self._thread.start()

    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    @property
    def can_pause(self) -> bool:
        """Whether it copies, which can be held up."""
        return self._copier is not None and self.is_running

    @property
    def is_paused(self) -> bool:
        """Whether it is held up."""
        return self._paused

    def use(self, copier: Copier) -> None:
        """What copies for it, so that it can be paused and stopped. From the job's own thread."""
        self._copier = copier
        if self._paused:
            copier.pause()
        if self.stopping():
            copier.stop()

    def pause(self) -> None:
        """Hold it up after the block under way."""
        self._paused = True
        if self._copier is not None:
            self._copier.pause()

    def go_on(self) -> None:
        """End the pause."""
        self._paused = False
        if self._copier is not None:
            self._copier.go_on()

    def stop(self) -> None:
        """Ask it to stop; what it made whole stays, and a copy can be resumed."""
        self._stopping.set()
        self._paused = False
        if self._copier is not None:
            self._copier.stop()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self.said = self._run(self)
        except Exception as error:  # shown by whoever looks; a thread must not end in a traceback on the screen
            self.error = error
