"""Files written whole or not at all: a full drive leaves what was there, and no piece of what was to come."""

import os
import stat
from contextlib import suppress
from pathlib import Path

NEW_FILE = 0o666
"""What the user's umask takes from, as for any file a program makes at the user's word."""


def replace_file(path: Path, content: bytes, *, mode: int | None = None, new_mode: int = NEW_FILE) -> None:
    """Make `path` hold `content`, in one step: a reader, or a crash, sees the old file or the new one.

    Without `mode` the file keeps the one it has; a new one gets `new_mode`, less the umask. A symbolic link stays, and
    what it points to is replaced; a device or a pipe is written to as it is.
    Raises: OSError with the file and what is left of it.
    """
    target = Path(os.path.realpath(path))
    there = None
    try:
        with suppress(FileNotFoundError):
            there = target.stat()
        if there is not None and not stat.S_ISREG(there.st_mode):
            target.write_bytes(content)
            return
        fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
        kept = mode if mode is not None else None if there is None else there.st_mode & 0o777
        _write(fresh, content, os.O_TRUNC | os.O_NOFOLLOW, new_mode if kept is None else 0o600, kept)
        try:
            fresh.replace(target)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise
    except OSError as error:
        left = "no file was made" if there is None else "what was there is untouched"
        raise _said(error, path, left) from error


def make_file(path: Path, content: bytes, *, mode: int) -> None:
    """Make a new file of `content`. Raises: FileExistsError; OSError with the file, of which nothing is left then."""
    try:
        _write(path, content, os.O_EXCL, mode, None)
    except FileExistsError:
        raise
    except OSError as error:
        raise _said(error, path, "no file was made") from error


def _write(path: Path, content: bytes, flags: int, new_mode: int, mode: int | None) -> None:
    """Write a file of one's own and remove it when that fails. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, new_mode)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _said(error: OSError, path: Path, left: str) -> OSError:
    return OSError(error.errno, f"{error.strerror or error}, so {left}", str(path))
