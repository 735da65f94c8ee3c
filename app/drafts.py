"""The draft in the box, kept on disk so that neither a crash nor `kill -9` loses it.

Every window has a draft of its own: it locks a free slot, the first that an earlier window left something in.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from app.private_files import PRIVATE_FILE, make_private_folder, write_whole

_N_SLOTS = 16
_MOST_BYTES = 8_000_000


class DraftFile:
    """One window's draft. Made without touching the disk; `open` takes a slot."""

    def __init__(self, folder: Path | None) -> None:
        """None keeps drafts in memory alone."""
        self.problem: str | None = None
        """Why the draft is not saved, or None."""
        self._folder = folder
        self._path: Path | None = None
        self._lock: int | None = None
        self._saved = ""

    def open(self) -> str:
        """Take a slot; the draft an earlier window left in it, or ""."""
        if self._folder is None:
            return ""
        try:
            make_private_folder(self._folder)
            paths = {slot: self._folder / f"draft-{slot}.txt" for slot in range(1, _N_SLOTS + 1)}
            for slot in sorted(paths, key=lambda slot: not _holds_text(paths[slot])):  # one that was left comes first
                fd = os.open(self._folder / f"draft-{slot}.lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                    continue
                self._lock, self._path = fd, paths[slot]
                break
            if self._path is None or not self._path.exists():
                return ""
            with self._path.open("rb") as file:
                self._saved = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
        except OSError as error:
            self.problem = f"{self._folder}: drafts cannot be kept: {error.strerror or error}"
        return self._saved

    def save(self, text: str) -> None:
        """Keep `text`; may wait for the disk. Trouble is `problem`, and the next call tries again."""
        if self._path is None or text == self._saved:
            return
        try:
            write_whole(self._path, text, mode=PRIVATE_FILE)
            self._saved = text
            self.problem = None
        except OSError as error:
            self.problem = f"{self._path}: the draft cannot be saved: {error.strerror or error}"

    def close(self) -> None:
        """Give the slot back; an empty draft leaves no file. Safe to call twice."""
        if self._path is not None and not self._saved:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _holds_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
