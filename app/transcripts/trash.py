"""Where deleted transcripts wait to be brought back: a folder each inside the folder of transcripts.

A folder's name, `<seconds since 1970>-<id>`, is the token that undoes the deletion. Whatever stands beside a transcript
under its id, such as saved state, goes and comes with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.errors import TranscriptError, TranscriptMissing
from app.sanitize import one_line
from app.transcripts.files import FileOps

KEPT = timedelta(days=30)
"""How long a deleted transcript can be brought back."""

_NAME = ".trash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A deleted transcript."""

    token: str
    id: str
    deleted: datetime


class Trash:
    """The deleted transcripts of one folder."""

    def __init__(self, folder: Path, files: FileOps) -> None:
        self._folder = folder
        self._place = folder / _NAME
        self._files = files

    def put(self, path: Path, now: datetime) -> str:
        """Take a transcript away; the token that brings it back. Raises: TranscriptError."""
        token = f"{int(now.timestamp())}-{path.stem}"
        place = self._place / token
        try:
            self._files.make_folder(self._place)
            self._files.make_folder(place)
            # The transcript last: cut off in between, it is still there.
            ours = [one for one in self._folder.glob(_pattern(path.stem)) if one.stem == path.stem]
            for one in sorted(ours, key=lambda one: one == path):
                self._files.rename(one, place / one.name)
            self._files.sync_folder(place)
            self._files.sync_folder(self._folder)
        except OSError as error:
            raise TranscriptError(f"{path}: cannot be deleted: {error.strerror or error}") from error
        return token

    def bring_back(self, token: str | None = None) -> str:
        """Undo a deletion, or the newest one; the transcript's id.

        Raises: TranscriptMissing when there is none; TranscriptError when its id is taken, or the drive refuses.
        """
        found = {one.token: one for one in self.contents()}
        if token is None and found:
            token = max(found, key=lambda name: (found[name].deleted, name))
        by_id = [one.token for one in found.values() if token and one.id.startswith(token)]
        if token not in found and len(by_id) == 1:
            token = by_id[0]
        if token is None or token not in found:
            what = "nothing was deleted" if token is None else f"no deleted transcript is called {one_line(token)}"
            days = KEPT.days
            raise TranscriptMissing(what, hint=f"They are kept for {days} days." if token else "")
        place = self._place / token
        try:
            names = sorted(place.iterdir(), key=lambda path: path.suffix != ".jsonl")
            for path in names:
                if (self._folder / path.name).exists():
                    raise TranscriptError(f"{self._folder / path.name} is there; it would be overwritten")
            for path in names:
                self._files.rename(path, self._folder / path.name)
            self._files.sync_folder(self._folder)
            place.rmdir()
        except OSError as error:
            raise TranscriptError(f"{place}: cannot be brought back: {error.strerror or error}") from error
        return found[token].id

    def contents(self) -> list[Deleted]:
        """What is there, oldest first."""
        return sorted(self._found(), key=lambda one: (one.deleted, one.token))

    def purge(self, now: datetime) -> int:
        """Delete for good what is older than `KEPT`; how many. What cannot be deleted stays."""
        n_gone = 0
        for one in self.contents():
            if now - one.deleted <= KEPT:
                continue
            place = self._place / one.token
            try:
                for path in place.iterdir():
                    path.unlink()
                place.rmdir()
            except OSError:
                continue
            n_gone += 1
        return n_gone

    def _found(self) -> Iterator[Deleted]:
        try:
            names = [path.name for path in self._place.iterdir()]
        except OSError:
            return
        for name in names:
            seconds, _, transcript_id = name.partition("-")
            if seconds.isascii() and seconds.isdigit() and len(seconds) <= 11 and transcript_id:
                yield Deleted(token=name, id=transcript_id, deleted=datetime.fromtimestamp(int(seconds), UTC))


def _pattern(stem: str) -> str:
    """The files of one transcript, as a glob that takes the stem as it stands."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in stem) + ".*"
