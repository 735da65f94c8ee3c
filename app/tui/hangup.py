"""Ends the chat when its terminal is gone and nothing else says so.

A closed window or a dropped connection sends SIGHUP, but only to what has the terminal as its controlling one;
`setsid`, some containers and some launchers have none. The one thing a reader would get wrong: the event loop cannot be
asked to end then. Textual's writer has died with the terminal, its queue is full, and the loop waits in it for ever. So
this is a thread, and what it does last is leave the process.
"""

import os
import select
import threading
from collections.abc import Callable

LEFT_AS = 129
"""128 and the number of SIGHUP: how a program ends that was hung up on."""
LOOK_S = 1.0
GRACE_S = 3.0
"""For the usual way out, where SIGHUP was sent too."""


class HangupWatch:
    """Watches a terminal on a thread. Use as a context manager around the app's run."""

    def __init__(
        self,
        fd: int,
        close: Callable[[], object],
        *,
        leave: Callable[[int], object] = os._exit,
        look_s: float = LOOK_S,
        grace_s: float = GRACE_S,
    ) -> None:
        """`close` stops the engine and closes the conversation; then `leave` ends the process."""
        self._fd = fd
        self._close = close
        self._leave = leave
        self._look_s = look_s
        self._grace_s = grace_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="terminal watch", daemon=True)

    def __enter__(self) -> "HangupWatch":
        """Begin to watch, where the system can tell."""
        if hasattr(select, "poll"):
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """The app has ended by itself."""
        self._over.set()

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._fd, 0)  # nothing is asked for: a hang-up is told in any case
        while not self._over.wait(self._look_s):
            state = poller.poll(0)
            if not state:
                continue
            if state[0][1] & (select.POLLHUP | select.POLLERR) and not self._over.wait(self._grace_s):
                self._close()
                self._leave(LEFT_AS)
            return  # it ended in time, or this system cannot tell of a terminal (POLLNVAL)
