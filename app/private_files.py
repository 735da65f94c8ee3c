"""Small files that are the user's alone: written whole or not at all, readable by nobody else. Makes their folder."""

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_private_folder(folder: Path) -> None:
    """Make `folder`, closed to others if it is new. Raises: OSError."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)


def write_whole(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace `path` by `text`, in one step: a reader, or a crash, sees the old file or the new one.

    The file keeps the mode it has; a new one gets 0600. A symbolic link stays, and what it points to is replaced.
    Raises: OSError; then the old file is untouched and nothing else is left behind.
    """
    target = Path(os.path.realpath(path))
    make_private_folder(target.parent)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else PRIVATE_FILE
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace", newline="") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
