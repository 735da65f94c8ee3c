"""Ctrl+C before the command line is even imported."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPT_THE_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "app.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from app.entry import main
sys.exit(main())
"""


def test_an_interrupt_while_importing_ends_quietly_with_130() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPT_THE_IMPORT], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_command_runs_from_its_entry() -> None:
    code = "import sys; sys.argv = ['artesian', '--version']; from app.entry import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0 and done.stdout.startswith("0.")


_LATE = """
import app.cli, atexit, sys, time
from app.entry import main
def end():
    print("ending", flush=True)
    time.sleep(60)
atexit.register(end)
app.cli.main = lambda: 0
sys.exit(main())
"""


def test_ctrl_c_while_the_interpreter_ends_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _LATE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"ending\n"
    process.send_signal(signal.SIGINT)
    assert (process.stderr.read(), process.wait(30)) == (b"", 130)
    process.stdout.close()
    process.stderr.close()


_INTERRUPTED = """
import app.cli, os, signal, sys
import app.entry
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
class Model:
    def __del__(self):  # nothing can be raised here
        interrupt()
def run():
    if sys.argv[1] == "while the model is taken down":
        Model()
        print("went on")
    else:  # twice, the second while the first is answered
        raise KeyboardInterrupt
    return 0
real = signal.signal
def closing(number, handler):
    if handler is app.entry._leave and sys.argv[1] == "twice" and app.cli.main is run and closing.n:
        interrupt()
    closing.n += 1
    return real(number, handler)
closing.n = 0
signal.signal = closing
app.cli.main = run
sys.exit(app.entry.main())
"""


@pytest.mark.parametrize("moment", ["while the model is taken down", "twice"])
def test_ctrl_c_in_the_last_moments_of_a_command_is_no_traceback(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, moment], capture_output=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_any_other_failure_is_still_shown() -> None:
    code = "import app.cli, sys; from app.entry import main; app.cli.main = lambda: 1 // 0; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
