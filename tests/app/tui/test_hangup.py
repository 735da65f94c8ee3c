"""A terminal that goes away without a word."""

import os
import pty
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from app.transcripts.store import TranscriptStore
from app.tui.hangup import LEFT_AS, HangupWatch
from tests.app.tui.latency import BOX
from tests.app.tui.tmux_chat import environ

_HASTY = """
from functools import partial
from app.entry import main
from app.tui import hangup
hangup.HangupWatch = partial(hangup.HangupWatch, look_s=0.1, grace_s=0.2)
main()
"""
"""The command, which waits less long for the usual way out."""


def test_a_hang_up_closes_and_leaves_after_the_usual_way_had_its_time() -> None:
    master, slave = pty.openpty()
    done: list[object] = []
    left = threading.Event()

    def leave(code: int) -> None:
        done.append(code)
        left.set()

    with HangupWatch(slave, lambda: done.append("closed"), leave=leave, look_s=0.01, grace_s=0.05):
        assert not left.wait(0.2) and done == []  # while it is there
        os.close(master)
        assert left.wait(10) and done == ["closed", LEFT_AS]
    os.close(slave)


def test_an_app_that_ends_by_itself_is_left_alone() -> None:
    master, slave = pty.openpty()
    done: list[object] = []
    watch = HangupWatch(slave, lambda: done.append("closed"), leave=done.append, look_s=0.01, grace_s=5.0)
    with watch:
        os.close(master)
    watch._thread.join(10)
    assert not watch._thread.is_alive() and done == []
    os.close(slave)


def test_the_chat_ends_when_a_terminal_that_is_not_its_controlling_one_is_closed(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", _HASTY]
    variables = {**os.environ, **environ(tmp_path), "TERM": "xterm-256color"}
    chat = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=variables)
    os.close(slave)
    try:
        seen, end = b"", time.monotonic() + 60
        while BOX.encode() not in seen and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65_536)
        os.write(master, b"what is a mirror?\r")
        while b"saved" not in seen and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65_536)
        os.close(master)
        assert chat.wait(60) == LEFT_AS
    finally:
        chat.kill()
        chat.wait()
    (info,) = TranscriptStore(next(tmp_path.rglob("transcripts"))).list()
    assert info.title == "what is a mirror?"
