"""How long a key takes to show while an engine is at full load: `python -m tests.app.tui.latency`.

The chat runs in a terminal of its own (a pty); a key is sent and the time taken until its letter comes back, one that
neither the model nor the screen writes. Two loads: the real engine on the tiny checkpoint, and a thread that spins in
Python and draws tokens all the while, which is worse than any engine; the latter also beside ten thousand tokens.
"""

import argparse
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

from tests.app.tui.tmux_chat import environ

LETTERS = "абвгдежзиклмнопрстуфхцчшщыэюя"
BOX = "rite a message, or"
"""Stands in the empty box; the cursor is on its first letter."""
_READY = "ß"
"""The child's reply begins with it."""


class Terminal:
    """A child on a pty whose output is read as it comes."""

    def __init__(self, command: list[str], folder: Path, *, columns: int = 80, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._child = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, **environ(folder), "TERM": "xterm-256color"},
        )
        os.close(slave)
        self._seen = b""

    def send(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout_s: float = 60.0) -> float:
        """Seconds until `text` was written, counted from now. Raises: AssertionError."""
        begun, wanted = time.perf_counter(), text.encode()
        while wanted not in self._seen:
            left = timeout_s - (time.perf_counter() - begun)
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"no {text!r} after {timeout_s:.0f} s; the end is {self._seen[-2000:]!r}")
            self._seen = self._seen[-4_000:] + self._read()
        return time.perf_counter() - begun

    def drain(self, seconds: float) -> None:
        """Read what comes for a while, and forget it."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._read()
        self._seen = b""

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 65_536)
        except OSError as error:
            raise AssertionError(f"the child has ended; the end is {self._seen[-2000:]!r}") from error

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        os.close(self._master)


def measure(load: str, transcript_tokens: int, n_keys: int) -> list[float]:
    """Seconds from each key to its letter."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        child = [sys.executable, "-m", "tests.app.tui.loaded_chat", load, str(transcript_tokens), name]
        terminal = Terminal(child, Path(name))
        try:
            terminal.wait_for(BOX)
            terminal.send("go\r")
            terminal.wait_for(_READY, 120)
            times: list[float] = []
            for number in range(n_keys):
                letter = LETTERS[number % len(LETTERS)]
                if number % len(LETTERS) == 0 and number:
                    terminal.send("\x15")  # empties the line, so that no letter is on the screen twice
                # Not in step with the twenty drains a second.
                terminal.drain(0.06 + 0.013 * (number % 7))
                terminal.send(letter)
                times.append(terminal.wait_for(letter, 10))
            return times
        finally:
            terminal.close()


def report(name: str, times: list[float]) -> float:
    """Print one line; the 95th percentile in seconds."""
    p95 = statistics.quantiles(times, n=20)[-1]
    print(f"{name:44} median {statistics.median(times) * 1e3:5.1f} ms   p95 {p95 * 1e3:5.1f} ms   "
          f"worst {max(times) * 1e3:5.1f} ms   {len(times)} keys", flush=True)  # fmt: skip
    return p95


def main() -> int:
    """Measure and compare with the promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=200)
    n_keys = parser.parse_args().keys
    late = []
    for name, load, tokens, limit_s in (
        ("real engine on the tiny checkpoint", "engine", 0, 0.05),
        ("a thread that spins in Python", "spin", 0, 0.05),
        ("the same, beside 10,000 tokens", "spin", 10_000, 0.1),
    ):
        if report(name, measure(load, tokens, n_keys)) > limit_s:
            late.append(name)
    print("late: " + ", ".join(late) if late else "as promised: p95 under 50 ms, 100 ms beside 10,000 tokens")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
