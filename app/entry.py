"""Where the `artesian` command begins: quiet on Ctrl+C from its first moment to its last.

Imports nothing heavy itself; the import of the command line takes a third of a second in which Python would answer a
Ctrl+C with a traceback. The one thing a reader would get wrong: between, Ctrl+C is an exception that the command line
catches, but not where Python cannot raise it: while an object of the command is taken down, it is printed and
forgotten. So what Python would print of it ends the process instead.
"""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from app.exits import ExitCode
from app.report import failure
from app.short_memory import lacks_memory, told

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(ExitCode.STOPPED)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: nobody catches it any more."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(ExitCode.STOPPED)
    sys.__excepthook__(kind, error, trace)


def _unraisable(what: "UnraisableHookArgs") -> None:
    """For `sys.unraisablehook`: where it came, nothing can be raised."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        os._exit(ExitCode.STOPPED)
    sys.__unraisablehook__(what)


def main() -> int:
    """Import the command line and run it; the exit code."""
    before = signal.signal(signal.SIGINT, _leave)
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
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
