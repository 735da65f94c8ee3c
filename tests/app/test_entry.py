"""Ctrl+C before the command line is even imported."""

import subprocess
import sys

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
