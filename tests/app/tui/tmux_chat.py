"""The chat from end to end in a real terminal, on the bundled demo: `python -m tests.app.tui.tmux_chat`.

Types while the model loads, watches an answer stream, stops while the prompt is read, resizes, kills and resumes, goes
on, answers again, branches, finds, searches, copies code, exports, suspends, hangs up and quits, and compares the
terminal's settings before and after.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from engine.events import TextDelta
from tests.app.tui.tmux import Tmux
from tests.demo_answer import ANSWER, QUESTION
from tests.fakes import turn_done

_BOX = "Write a message"
_STOPPED = 147
"""Bash's code for a command that stopped itself by SIGSTOP."""
_AFTER = "echo ended with $?; stty -a > after"
_CODE = "Some code:\n\n```python\nprint('slot')\n```\n\nThat is all."


class Chat:
    """The chat in a terminal, its files in one folder."""

    def __init__(self, tmux: Tmux, folder: Path) -> None:
        self.tmux = tmux
        self.folder = folder
        self.store = TranscriptStore(folder / "data" / "artesian" / "transcripts")

    def start(self, *options: str) -> None:
        """Start it from the shell, with the terminal's settings noted around it."""
        command = shlex.join([sys.executable, "-m", "tests.app.tui.run_artesian", *options])
        self.tmux.run("clear; stty -a > before")
        self.tmux.run(f"{command}; {_AFTER}")
        self.tmux.wait(lambda screen: _BOX in screen, "chat")

    def ended(self, code: int) -> None:
        """It ended with `code`, and the terminal is as it was."""
        self.tmux.wait_for(f"ended with {code}")
        after = self.folder / "after"
        self.tmux.wait(lambda _: after.exists() and bool(after.read_text()), "stty")
        assert after.read_text() == (self.folder / "before").read_text(), "the terminal's settings differ"
        assert not self.tmux.is_alternate(), "the alternate screen is still on"
        after.unlink()

    def quit(self) -> None:
        """Leave it by its key."""
        self.tmux.keys("C-q")
        self.ended(0)

    def pid(self) -> int:
        """Of the chat."""
        found = subprocess.run(["pgrep", "-P", str(self.tmux.pid())], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])

    def kill(self, number: int, code: int) -> None:
        """Send it a signal; it ends with `code`."""
        os.kill(self.pid(), number)
        self.ended(code)

    def command(self, text: str) -> None:
        """Enter a slash command."""
        self.tmux.type(text)
        self.tmux.wait_for(text)
        self.tmux.keys("Enter")


def first_answer(chat: Chat) -> None:
    """Typing is taken while the model loads; the answer comes and is saved; the terminal is left as it was."""
    tmux = chat.tmux
    chat.start("--chunk-tokens", "8")  # so that a long prompt takes a while to read
    assert "ready" not in tmux.screen(), "the model was loaded before the box was there"
    tmux.type(QUESTION)
    tmux.wait_for(QUESTION)
    tmux.keys("Enter")
    tmux.wait_for(f"> {QUESTION}")
    screen = tmux.wait_for("tokens in")
    assert ANSWER[:50] in " ".join(screen.split())
    tmux.wait_for("saved")


def stop_in_prefill(chat: Chat) -> None:
    """A long paste is one message; it is stopped while it is read, kept, and the chat goes on."""
    tmux = chat.tmux
    # The first line has what ends a paste for Textual alone.
    tmux.paste("\x1b[31ma line\x1b\n" + "a line of many\n" * 180)
    tmux.wait_for("tokens to read")
    tmux.keys("Enter")
    tmux.wait_for("reading prompt")
    began = time.monotonic()
    tmux.keys("Escape")
    tmux.wait_for("stopped by you")
    print(f"  stopped after {time.monotonic() - began:.2f} s")


def resize(chat: Chat) -> None:
    """Small, tiny and back."""
    tmux = chat.tmux
    tmux.resize(50, 15)
    tmux.wait(lambda screen: _BOX in screen and len(screen.splitlines()) <= 15, "50x15")
    tmux.resize(28, 6)
    tmux.wait_for("too small")
    tmux.resize(80, 24)
    tmux.wait(lambda screen: _BOX in screen and "stopped by you" in screen, "80x24")


def kill_and_resume(chat: Chat) -> None:
    """Killed in the middle of an answer, it has what it said when it is opened again, and goes on with it."""
    tmux = chat.tmux
    chat.quit()
    chat.start("--draft", "off", "--numerics", "reference")  # slower, so that there is a middle
    tmux.type(QUESTION)
    tmux.keys("Enter")
    pid = chat.pid()
    tmux.wait_for(ANSWER[:10])
    time.sleep(0.6)  # what the transcript promises to have saved is half a second old
    os.kill(pid, signal.SIGKILL)
    tmux.wait_for("ended with 137")
    tmux.run("reset")
    (chat.folder / "after").unlink(missing_ok=True)
    chat.start("--continue", "--draft", "off", "--numerics", "reference")
    tmux.wait(lambda screen: ANSWER[:10] in screen and "cut off" in screen, "what was said before the kill")
    tmux.keys("C-l")
    screen = tmux.wait(lambda screen: "tokens in" in screen, "the rest of the answer")
    assert ANSWER[-30:] in " ".join(screen.split())


def branches(chat: Chat) -> None:
    """Answer again, walk, edit."""
    tmux = chat.tmux
    tmux.keys("C-r")
    tmux.wait_for("reply 2 of 2 | ")  # its figures: the turn has ended
    cursor_up(chat)
    tmux.type("[")
    tmux.wait_for("reply 1 of 2")
    cursor_up(chat)
    tmux.type("]")
    tmux.wait_for("reply 2 of 2")
    cursor_up(chat)
    tmux.type("e")
    tmux.wait(lambda screen: "edited:" in screen or "Editing" in screen, "editing")
    tmux.keys("C-u")
    tmux.type("what is a mirror?")
    tmux.wait_for("edited:")
    tmux.keys("Enter")
    tmux.wait(lambda screen: "> what is a mirror?" in screen and "tokens in" in screen and "2 of 2" in screen, "branch")


def cursor_up(chat: Chat) -> None:
    """Put the block cursor on the last reply. A key right behind it would still be for the box, as no hand types it."""
    chat.tmux.keys("C-Up")
    chat.tmux.wait(lambda screen: f"\n| {ANSWER.split()[0]}" in screen, "block cursor")


def look_around(chat: Chat) -> None:
    """Find in the chat, search in all chats, the plan, the palette."""
    tmux = chat.tmux
    tmux.keys("C-f")
    tmux.wait(lambda screen: re.search(r"^ *find$", screen, re.MULTILINE) is not None, "find line")
    tmux.type("mirror")
    tmux.wait(lambda screen: re.search(r"find +mirror +\d+ of \d+", screen) is not None, "places found")
    tmux.keys("Escape")
    tmux.wait_gone("find")
    tmux.keys("C-g")
    tmux.wait_for("Where the time goes")
    tmux.keys("Escape")
    tmux.wait_gone("Where the time goes")
    tmux.keys("C-p")
    tmux.wait_for("What do you want to do?")
    tmux.keys("Escape")
    tmux.wait_gone("What do you want to do?")
    tmux.keys("C-t")
    tmux.wait_for("Conversations")
    tmux.keys("C-f")
    tmux.wait(lambda _: tmux.cursor_row() == 1, "cursor in the search box")
    tmux.type("python")
    tmux.wait_for("2 places")
    tmux.keys("Enter")
    tmux.wait_for("print('slot')")


def copy_and_export(chat: Chat) -> None:
    """The code goes to tmux, the conversation to a file."""
    tmux = chat.tmux
    chat.command("/code")
    tmux.wait_for("Code sent to")
    assert tmux.buffer() == "print('slot')\n", tmux.buffer()
    chat.command("/export talk.md")
    tmux.wait_for("Written to")
    assert "print('slot')" in (chat.folder / "talk.md").read_text()


def suspend(chat: Chat) -> None:
    """Into the background and back."""
    tmux = chat.tmux
    chat.command("/suspend")
    chat.ended(_STOPPED)  # bash goes on with the line when its command is stopped
    tmux.run(f"fg; {_AFTER}")
    tmux.wait(lambda screen: _BOX in screen and "print('slot')" in screen, "the chat again")


def signals(chat: Chat) -> None:
    """Asked to end, and hung up on, it leaves the terminal as it was and the draft where it is found again."""
    tmux = chat.tmux
    tmux.type("a draft to keep")
    tmux.wait_for("a draft to keep")
    chat.kill(signal.SIGTERM, 128 + signal.SIGTERM)
    tmux.run("clear")
    command = shlex.join([sys.executable, "-m", "tests.app.tui.run_artesian"])
    tmux.run(f"{command}; {_AFTER}")
    tmux.wait_for("a draft to keep")
    chat.kill(signal.SIGHUP, 128 + signal.SIGHUP)


STEPS: tuple[Callable[[Chat], None], ...] = (
    first_answer,
    stop_in_prefill,
    resize,
    kill_and_resume,
    branches,
    look_around,
    copy_and_export,
    suspend,
    signals,
)


def prepare(chat: Chat) -> None:
    """A conversation with code in it, as the demo writes none."""
    with chat.store.create() as transcript:
        session = ChatSession(transcript)
        node = session.add_user("show me some python")
        writer = session.begin_reply(node, session.request(node))
        writer.take(TextDelta(text=_CODE))
        writer.take(turn_done("stop"))


def environ(folder: Path) -> dict[str, str]:
    """Variables that keep everything in `folder`."""
    places = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("DATA", "CONFIG", "CACHE", "STATE")}
    return {**places, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1", "COLORTERM": "truecolor"}


def run(steps: tuple[Callable[[Chat], None], ...]) -> None:
    """Run steps one after another, then quit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with Tmux(folder, environ=environ(folder)) as tmux:
            chat = Chat(tmux, folder)
            prepare(chat)
            for step in steps:
                began = time.monotonic()
                print(f"{step.__name__}: {(step.__doc__ or '').splitlines()[0]}", flush=True)
                step(chat)
                print(f"  {time.monotonic() - began:.1f} s", flush=True)
            if tmux.is_alternate():
                chat.quit()


if __name__ == "__main__":
    run(STEPS)
    print("all well")
