"""Ctrl+C before the command line is even imported."""

import signal
import subprocess
import sys
from pathlib import Path

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
