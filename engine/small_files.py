"""Reads the small files beside a checkpoint without trusting that they are small, or files.

A pipe would wait for a writer and a device would never end; both can stand where a file is expected.
"""

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """A pipe, a device or a folder where a file is expected."""


class TooLongError(OSError):
    """More bytes than the file can have."""


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file, links followed, of at most `most_bytes`; never waits, never reads more than that.

    Raises: FileNotFoundError; NotRegularError; TooLongError; OSError. All carry a `strerror` fit to be shown.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLongError(errno.EFBIG, f"more than the {most_bytes:,} bytes accepted", str(path))
    return data
