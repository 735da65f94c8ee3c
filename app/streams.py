"""Where output goes when the caller took the place away: a stream that refuses, and one that loses what it must."""

import errno
from typing import Any, TextIO


class ClosedStream:
    """Stands for a stdout that was closed with `>&-`: whatever is written fails, and so does the command."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def write(self, text: str) -> int:
        """Raises: OSError, always."""
        raise OSError(errno.EBADF, "stdout is closed, so there is no place for the result")

    def flush(self) -> None:
        """There is nothing."""

    def isatty(self) -> bool:
        """It is none."""
        return False

    def fileno(self) -> int:
        """Raises: OSError, always."""
        raise OSError(errno.EBADF, "stdout is closed")


class LossyStream:
    """A stderr that may be full or gone: what cannot be written there is lost, which is no reason to lose the answer.

    Everything else is the stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Pass on what can be passed on."""
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
