"""What the user entered in earlier sessions, newest last: a file of JSON strings, one a line.

Two windows append to the same file, each a whole line at a time. A torn or foreign line is skipped, never an error.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from app.private_files import PRIVATE_FILE, make_private_folder, write_whole

MOST_ENTRIES = 1_000
"""Kept; older ones are forgotten when the file is next read with more than twice as many."""
MOST_ENTRY_CHARACTERS = 20_000
"""A longer text is in its transcript, and not here."""
_MOST_FILE_BYTES = 40_000_000


class InputHistory:
    """The entries, and a place in them that moves up and down."""

    def __init__(self, path: Path | None) -> None:
        """None keeps nothing beyond this session. Reads nothing yet: `load` does."""
        self.problem: str | None = None
        """Why entries are not saved, or None."""
        self._path = path
        self._entries: list[str] = []
        self._place: int | None = None
        self._draft = ""

    def load(self) -> None:
        """Read the file; without one, or with one that cannot be read, the history is empty."""
        if self._path is None:
            return
        try:
            if self._path.stat().st_size > _MOST_FILE_BYTES:
                raise OSError("it is too large")
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self._path}: the input history cannot be read: {error.strerror or error}"
            return
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        self._entries = entries[-MOST_ENTRIES:]
        if len(lines) > 2 * MOST_ENTRIES:
            with suppress(OSError):
                write_whole(self._path, "".join(map(_line, self._entries)), mode=PRIVATE_FILE)

    def add(self, text: str) -> None:
        """Append `text`, unless it is blank, very long or what was entered last. Trouble with the file is `problem`."""
        self._place = None
        if not text.strip() or len(text) > MOST_ENTRY_CHARACTERS or self._entries[-1:] == [text]:
            return
        self._entries = [*self._entries[1 - MOST_ENTRIES :], text]
        if self._path is None:
            return
        try:
            make_private_folder(self._path.parent)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE_FILE)
            try:
                os.fchmod(fd, PRIVATE_FILE)
                # The blank line ends one that a crash or a full disk has torn.
                os.write(fd, ("\n" + _line(text)).encode())
            finally:
                os.close(fd)
            self.problem = None
        except OSError as error:
            self.problem = f"{self._path}: the input history cannot be written: {error.strerror or error}"

    def older(self, draft: str) -> str | None:
        """The next older entry that contains what stood in the box before the first step; None at the end."""
        if self._place is None:
            self._draft = draft
        start = len(self._entries) if self._place is None else self._place
        return self._step(range(start - 1, -1, -1))

    def newer(self) -> str | None:
        """The next newer entry, at last what stood in the box before the first step; None when nothing was stepped."""
        if self._place is None:
            return None
        found = self._step(range(self._place + 1, len(self._entries)))
        if found is None:
            self._place = None
            return self._draft
        return found

    def leave(self) -> None:
        """Forget the place: what is in the box now is a draft of its own."""
        self._place = None

    @property
    def browsing(self) -> bool:
        """Whether the box shows an entry."""
        return self._place is not None

    def _step(self, places: range) -> str | None:
        wanted = self._draft.casefold()
        for place in places:
            if wanted in self._entries[place].casefold():
                self._place = place
                return self._entries[place]
        return None


def _line(text: str) -> str:
    return json.dumps(text) + "\n"


def _entry(line: bytes) -> str | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) and len(value) <= MOST_ENTRY_CHARACTERS else None
