"""A real terminal for tests: a tmux server of its own, with keys in and what stands on the screen out."""

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

HAS_TMUX = shutil.which("tmux") is not None


class Tmux:
    """One window with a shell in it. Its server has a socket of its own and ends with it."""

    def __init__(self, folder: Path, *, columns: int = 80, rows: int = 24, environ: Mapping[str, str] | None = None):
        """`folder` takes the socket and is the shell's home."""
        self._socket = folder / "tmux.sock"
        self._folder = folder
        variables = {"HOME": str(folder), "TERM": "xterm-256color", **(environ or {})}
        options = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        size = ["-x", str(columns), "-y", str(rows)]
        self._do("-f", "/dev/null", "new-session", "-d", *size, *options, "bash --norc --noprofile")
        self._do("set-option", "-g", "set-clipboard", "on")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._do("kill-server")

    def keys(self, *keys: str) -> None:
        """Press keys by their tmux names."""
        self._do("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type text as it is."""
        self._do("send-keys", "-l", text)

    def paste(self, text: str) -> None:
        """Paste text, in brackets if the program asked for them."""
        self._do("set-buffer", "-b", "paste", text)
        self._do("paste-buffer", "-p", "-d", "-b", "paste")

    def buffer(self) -> str:
        """What a program copied last."""
        return self._do("show-buffer")

    def run(self, command: str) -> None:
        """Type a command and press Enter."""
        self.type(command)
        self.keys("Enter")

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size."""
        self._do("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        """What stands on the screen."""
        return self._do("capture-pane", "-p")

    def cursor_row(self) -> int:
        """Where the terminal's cursor is, counted from 0: a program moves it to where text is entered."""
        return int(self._do("display-message", "-p", "#{cursor_y}"))

    def pid(self) -> int:
        """Of the shell."""
        return int(self._do("display-message", "-p", "#{pane_pid}"))

    def is_alternate(self) -> bool:
        """Whether a program has the whole screen."""
        return self._do("display-message", "-p", "#{alternate_on}").strip() == "1"

    def wait(self, ready: Callable[[str], bool], what: str, timeout_s: float = 60.0) -> str:
        """The screen once `ready(screen)`. Raises: AssertionError with the screen after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not ready(screen := self.screen()):
            if time.monotonic() > end:
                raise AssertionError(f"no {what} after {timeout_s:.0f} s; the screen is\n{screen}")
            time.sleep(0.03)
        return screen

    def wait_for(self, text: str, timeout_s: float = 60.0) -> str:
        """The screen once it has `text`."""
        return self.wait(lambda screen: text in screen, repr(text), timeout_s)

    def wait_gone(self, text: str, timeout_s: float = 60.0) -> str:
        """The screen once it no longer has `text`."""
        return self.wait(lambda screen: text not in screen, f"end of {text!r}", timeout_s)

    def _do(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=self._folder).stdout
