"""Where the `artesian` command begins: quiet on Ctrl+C also while its modules are still being imported.

Imports nothing heavy itself; the import of the command line takes a third of a second in which Python would answer a
Ctrl+C with a traceback, and the end of the interpreter takes some more.
"""

import os
import signal
import sys
from types import FrameType

from app.exits import ExitCode
from app.report import failure
from app.short_memory import lacks_memory, told


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(ExitCode.STOPPED)


def main() -> int:
    """Import the command line and run it; the exit code."""
    before = signal.signal(signal.SIGINT, _leave)
    try:
        from app.cli import main as run  # after the handler is set
    except (ImportError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        print(failure(*told(error)), file=sys.stderr)
        return int(ExitCode.TOO_BIG)
    signal.signal(signal.SIGINT, before)
    try:
        return run()
    except KeyboardInterrupt:  # while it said what had failed
        return int(ExitCode.STOPPED)
    finally:
        # What is left is the interpreter's own end, in which it would answer with a traceback too.
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _leave)
