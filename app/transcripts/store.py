"""The folder of all transcripts: list, make, open, search, delete and bring back. Its files are the truth."""

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from weakref import WeakValueDictionary

from app.errors import TranscriptError, TranscriptMissing
from app.logs import log
from app.paths import cache_dir, transcripts_dir
from app.sanitize import one_line
from app.transcripts.files import FileOps
from app.transcripts.glance import glance
from app.transcripts.holder import holder_of
from app.transcripts.journal import Journal
from app.transcripts.records import TranscriptInfo
from app.transcripts.search import Hit, scan
from app.transcripts.transcript import SUFFIX, Transcript, state_file, utc_now
from app.transcripts.trash import Trash

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
"""Without the letters and digits that are read as each other."""
_ID_LENGTH = 10
_COPY_BYTES = 1 << 20
_MOST_NEAR = 3
"""Ids that are offered for a mistyped one."""


class TranscriptStore:
    """A folder of transcripts. It need not exist: it is made with the first message."""

    def __init__(
        self,
        folder: Path,
        *,
        index: Path | None = None,
        files: FileOps | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`index` is the file that makes searching fast; without one every transcript is read."""
        self.folder = folder
        self._index = index
        self._files = files or FileOps()
        self._now = now
        self._opened: WeakValueDictionary[Path, Transcript] = WeakValueDictionary()

    def list(self) -> Sequence[TranscriptInfo]:
        """Every transcript that can be read, the one changed last first.

        What was deleted long ago is deleted for good on this occasion. Raises: OSError when the folder cannot be read.
        """
        infos = [info for path in self._paths().values() if (info := glance(path, self._files)) is not None]
        self._purge(Trash(self.folder, self._files))
        self._sweep()
        return sorted(infos, key=lambda info: (info.updated, info.id), reverse=True)

    def create(self) -> Transcript:
        """A new conversation. Its file is made with the first thing there is to save."""
        return self._kept(Transcript(self.folder / f"{_fresh_id()}{SUFFIX}", self._files, exists=False, now=self._now))

    def open(self, transcript_id: str) -> Transcript:
        """The transcript with this id or beginning of an id; only to be read while another window has it.

        Raises: TranscriptMissing; TranscriptError when its file cannot be read.
        """
        return self._kept(self._open(transcript_id, to_read=False))

    def view(self, transcript_id: str) -> Transcript:
        """The same only to be read: whoever wants to write it meanwhile may. Raises: as `open`."""
        return self._open(transcript_id, to_read=True)

    def latest(self) -> Transcript | None:
        """The transcript changed last, or None when there is none. Raises: as `open`."""
        newest = max(self._paths().values(), key=_changed_ns, default=None)
        return None if newest is None else self.open(newest.stem)

    def path_of(self, transcript_id: str) -> Path:
        """The file of the transcript with this id or beginning of an id.

        Raises: TranscriptMissing when none has it, or several begin so.
        """
        paths = self._paths()
        if transcript_id in paths:
            return paths[transcript_id]
        fitting = [name for name in paths if transcript_id and name.startswith(transcript_id.lower())]
        if len(fitting) == 1:
            return paths[fitting[0]]
        if fitting:
            some = ", ".join(one_line(name) for name in sorted(fitting)[:5])
            raise TranscriptMissing(
                f"{len(fitting)} transcripts begin with {one_line(transcript_id)}", hint=f"Give more of one: {some}."
            )
        # What was given is the beginning of an id, so it is compared with beginnings.
        begins = {name[: len(transcript_id)]: name for name in sorted(paths)}
        near = [begins[one] for one in get_close_matches(transcript_id.lower(), list(begins), n=_MOST_NEAR, cutoff=0.5)]
        meant = " or ".join(map(one_line, near))
        hint = f"Did you mean {meant}?" if near else "`artesian transcripts list` shows them all."
        raise TranscriptMissing(f"there is no transcript {one_line(transcript_id)}", hint=hint)

    def rename(self, transcript_id: str, title: str) -> None:
        """Give it a title, on the drive when this returns. Raises: as `open`; TranscriptError when it is not saved."""
        mine = self._mine(self.path_of(transcript_id))
        with contextlib.nullcontext(mine) if mine is not None else self.open(transcript_id) as transcript:
            transcript.rename(title)
            if transcript.problem is not None:
                raise TranscriptError(transcript.problem)

    def copy(self, transcript_id: str) -> Transcript:
        """A new transcript with the messages of another one, also of one that another window has. Raises: as `open`."""
        path = self.path_of(transcript_id)
        target = self.folder / f"{_fresh_id()}{SUFFIX}"
        hidden = target.with_name(f".{target.name}.new")
        try:
            with contextlib.closing(Journal.open(path, self._files, first_line=b"")) as source:
                fd = self._files.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    for offset in range(0, source.size(), _COPY_BYTES):
                        self._files.write_all(fd, source.read(_COPY_BYTES, offset))
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
            self._files.rename(hidden, target)
            self._files.sync_folder(self.folder)
        except OSError as error:
            raise TranscriptError(f"{path}: cannot be copied: {error.strerror or error}") from error
        return self.open(target.stem)

    def delete(self, transcript_id: str) -> str:
        """Take a transcript away for `trash.KEPT`, and for good what has been away for longer; the token for `undo`.

        Raises: TranscriptMissing; TranscriptError when it is open in a window, or the drive refuses.
        """
        path, trash = self.path_of(transcript_id), Trash(self.folder, self._files)
        if self._mine(path) is not None:
            raise TranscriptError("This conversation is open here.", hint="Begin or open another one first.")
        try:
            journal = Journal.open(path, self._files, first_line=b"")
        except OSError as error:
            raise TranscriptError(f"{path}: cannot be opened: {error.strerror or error}") from error
        with contextlib.closing(journal):
            if journal.held_elsewhere:
                raise TranscriptError(f"{holder_of(path)} has this conversation open.", hint="Close it there first.")
            self._purge(trash)
            with contextlib.suppress(OSError):
                state_file(path).unlink(missing_ok=True)  # it holds what was said, and can be made again
            return trash.put(path, self._now())

    def undo(self, token: str | None = None) -> str:
        """Bring a deleted transcript back, by token or id, or the one deleted last; its id.

        Raises: TranscriptMissing; TranscriptError.
        """
        return Trash(self.folder, self._files).bring_back(token)

    def search(self, text: str) -> Sequence[Hit]:
        """The messages that have all the words of `text`, the transcript changed last first; at most 200."""
        paths = self._paths()
        if self._index is not None:
            # Here and not at the top: only searching needs SQLite, and a Python may come without it.
            try:
                from app.transcripts.index import IndexUnusable, search
            except ImportError:
                return scan(paths.values(), text, self._files)
            try:
                return search(self._index, self.folder, paths, text, self._files)
            except IndexUnusable as error:
                log.warning("transcripts are searched without an index: %s", error)
        return scan(paths.values(), text, self._files)

    def _open(self, transcript_id: str, *, to_read: bool) -> Transcript:
        path = self.path_of(transcript_id)
        try:
            return Transcript(path, self._files, exists=True, to_read=to_read, now=self._now)
        except OSError as error:
            raise TranscriptError(f"{path}: cannot be read: {error.strerror or error}") from error

    def _purge(self, trash: Trash) -> None:
        """Delete for good what was deleted long ago, also out of the pages that the index no longer uses."""
        if trash.purge(self._now()) and self._index is not None:
            with contextlib.suppress(OSError):
                self._index.unlink(missing_ok=True)  # the next search makes it again

    def _sweep(self) -> None:
        """Remove files that were being made when their process was killed, a day ago or longer."""
        for path in self.folder.glob(".*.new"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < self._now().timestamp() - 86_400:
                    path.unlink()

    def _kept(self, transcript: Transcript) -> Transcript:
        if self._mine(transcript.path_on_disk) is None:
            self._opened[transcript.path_on_disk] = transcript
        return transcript

    def _mine(self, path: Path) -> Transcript | None:
        """The transcript that this process has open on a file."""
        mine = self._opened.get(path)
        return None if mine is None or mine.closed or mine.read_only else mine

    def _paths(self) -> dict[str, Path]:
        """The files by id."""
        try:
            found = [path for path in self.folder.iterdir() if path.suffix == SUFFIX and path.name[0] != "."]
        except FileNotFoundError:
            return {}
        return {path.stem: path for path in found}


def user_store() -> TranscriptStore:
    """The transcripts of whoever runs Artesian."""
    return TranscriptStore(transcripts_dir(), index=cache_dir() / "transcripts.sqlite")


def _fresh_id() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
