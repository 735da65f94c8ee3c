"""Small files that are the user's alone: written whole or not at all, readable by nobody else. Makes their folder."""

import os
from pathlib import Path

from app.whole_files import replace_file

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_private_folder(folder: Path) -> None:
    """Make `folder`, closed to others if it is new. Raises: OSError."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)


def write_whole(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace `path` by `text`, as `replace_file` does: the old file or the new one, never a piece.

    The file keeps the mode it has; a new one gets 0600. Raises: OSError.
    """
    target = Path(os.path.realpath(path))
    make_private_folder(target.parent)
    replace_file(target, text.encode("utf-8", errors="replace"), mode=mode, new_mode=PRIVATE_FILE)
