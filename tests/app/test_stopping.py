import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys, time
from app.stopping import StopKey
with StopKey() as stop:
    print("ready", flush=True)
    while not stop.pressed():
        time.sleep(0.01)
    print("stopping", flush=True)
    if "twice" in sys.argv:
        time.sleep(60)
print("left", flush=True)
"""


def _start(*arguments: str, stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    return process


def _rest(process: "subprocess.Popen[str]") -> tuple[str, str, int]:
    assert process.stdout is not None and process.stderr is not None
    # Not communicate(): it does not see what readline() has buffered already.
    return process.stdout.read(), process.stderr.read(), process.wait(30)


def test_the_first_ctrl_c_stops_and_the_program_ends_by_itself() -> None:
    process = _start()
    assert _rest(process) == ("left\n", "", 0)


def test_the_second_ctrl_c_quits_at_once() -> None:
    process = _start("twice")
    process.send_signal(signal.SIGINT)
    # Ended by the signal itself, which a shell reports as 130.
    assert _rest(process) == ("", "", -signal.SIGINT)


def test_on_a_terminal_the_first_ctrl_c_is_answered() -> None:
    ours, theirs = pty.openpty()
    try:
        process = _start(stderr=theirs)
        process.wait(30)
        assert b"stopping; Ctrl+C again quits at once" in os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(theirs)
