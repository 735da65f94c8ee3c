"""A chat goes on whatever the drive does, and what was reported as saved is there afterwards."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from app.transcripts.files import FileOps
from app.transcripts.records import Node
from app.transcripts.reply import ReplyWriter
from app.transcripts.transcript import Transcript
from tests.app.transcripts.chats import chat
from tests.app.transcripts.faulty import FaultyFiles

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
_TEXTS = ["Be brief.", "one?", "Hello there.", "two?", "a b ", "one, please?", "Different"]


class _Watch:
    """Notes, whenever the transcript says that all is saved, what that was."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.saved: list[Node] = []

    def __call__(self, writer: ReplyWriter | None) -> None:
        if self._transcript.problem is None and self._transcript.n_unsaved == 0:
            self.saved = [_saved_part(node, writer) for node in self._transcript.nodes()]


def _saved_part(node: Node, writer: ReplyWriter | None) -> Node:
    """Of a reply that is being made only what its writer calls saved; of text none, if that is not all."""
    if writer is None or node.status != "growing" or writer.saved_tokens == len(node.ids):
        return node
    return replace(node, ids=node.ids[: writer.saved_tokens], text="", thinking="")


def _run(folder: Path, files: FaultyFiles) -> tuple[Transcript, list[Node]]:
    transcript = Transcript(folder / "chat.jsonl", files, exists=False)
    watch = _Watch(transcript)
    for _ in chat(transcript, watch):
        pass
    return transcript, watch.saved


def _require_all_of(saved: list[Node], folder: Path) -> None:
    """Every message is there with at least the text, ids and notices that were saved."""
    if not saved:
        return
    with Transcript(folder / "chat.jsonl", FileOps(), exists=True) as again:
        assert again.damage == ()
        found = {node.id: node for node in again.nodes()}
    for node in saved:
        now = found[node.id]
        assert (now.parent, now.role, now.created) == (node.parent, node.role, node.created)
        assert now.text.startswith(node.text) and now.thinking.startswith(node.thinking)
        assert now.ids[: len(node.ids)] == node.ids and now.notices[: len(node.notices)] == node.notices
        if node.status != "growing":
            assert now == node


def _n_points(tmp_path: Path) -> int:
    files = FaultyFiles()
    _run(tmp_path / "clean", files)
    assert {"create", "make_folder", "write", "sync", "sync_folder", "rename"} <= set(files.calls)
    return files.n_calls


@pytest.mark.parametrize("error", _ERRORS)
def test_one_failure_at_any_write_point_loses_nothing(tmp_path: Path, error: int) -> None:
    for point in range(1, _n_points(tmp_path) + 1):
        folder = tmp_path / f"once-{point}"
        transcript, saved = _run(folder, FaultyFiles(fail_on={point}, error=error))
        complete = transcript.nodes()
        assert [node.text for node in complete] == _TEXTS  # the turns finished
        assert transcript.flush() and transcript.problem is None
        transcript.close()
        _require_all_of(saved, folder)
        _require_all_of(complete, folder)


@pytest.mark.parametrize("error", _ERRORS)
def test_a_drive_that_fails_from_any_write_point_on_keeps_what_was_saved(tmp_path: Path, error: int) -> None:
    n_points = _n_points(tmp_path)
    for point in range(1, n_points + 1):
        folder = tmp_path / f"on-{point}"
        files = FaultyFiles(fail_on=range(point, 10**9), error=error)
        transcript, saved = _run(folder, files)
        assert [node.text for node in transcript.nodes()] == _TEXTS
        transcript.close()
        assert transcript.problem is not None and "Not saved" in transcript.problem
        _require_all_of(saved, folder)


def test_what_was_not_saved_is_saved_when_the_drive_takes_it_again(tmp_path: Path) -> None:
    for point in range(1, _n_points(tmp_path) + 1, 3):
        folder = tmp_path / f"again-{point}"
        files = FaultyFiles(fail_on=range(point, 10**9))
        transcript, _ = _run(folder, files)
        assert transcript.n_unsaved > 0
        files.fail_on = ()
        assert transcript.flush() and transcript.n_unsaved == 0
        complete = transcript.nodes()
        transcript.close()
        _require_all_of(complete, folder)


class _PowerWatch(_Watch):
    """Pulls the plug whenever more is reported as saved, and looks at what the drive has."""

    def __init__(self, transcript: Transcript, files: FaultyFiles, images: Path) -> None:
        super().__init__(transcript)
        self.n_images = 0
        self._files = files
        self._images = images

    def __call__(self, writer: ReplyWriter | None) -> None:
        before = self.saved
        super().__call__(writer)
        if self.saved != before:
            self.n_images += 1
            image = self._images.with_name(f"{self._images.name}-{self.n_images}")
            self._files.lose_power(image)
            _require_all_of(self.saved, image)


@pytest.mark.parametrize("failing", ["nothing", "one call", "all from one on"])
def test_what_was_reported_as_saved_survives_a_power_failure(tmp_path: Path, failing: str) -> None:
    """The user's line before the first token, the reply as it grows: whenever all is said to be on the drive, it is."""
    n_points = _n_points(tmp_path)
    for point in [0] if failing == "nothing" else range(1, n_points + 1, 4):
        fail_on = {"nothing": (), "one call": {point}, "all from one on": range(point, 10**9)}[failing]
        folder, files = tmp_path / f"power-{point}", FaultyFiles(fail_on, errno.EIO)
        transcript = Transcript(folder / "chat.jsonl", files, exists=False)
        watch = _PowerWatch(transcript, files, tmp_path / f"image-{point}")
        for _ in chat(transcript, watch):
            pass
        transcript.close()
        assert failing != "nothing" or watch.n_images > 10


@pytest.mark.parametrize("error", _ERRORS)
def test_a_torn_line_stays_apart_whatever_fails_while_the_next_is_written(tmp_path: Path, error: int) -> None:
    path = tmp_path / "chat.jsonl"
    with Transcript(path, FileOps(), exists=False) as transcript:
        first = transcript.add("user", "one", None)
        transcript.add("user", "two", first.id)
    torn = path.read_bytes()[:-20]
    for fail_on in ({1}, {2}, {3}, {1, 2, 3}, {2, 4}, {2, 3, 5}):
        path.write_bytes(torn)
        files = FaultyFiles(fail_on, error)
        transcript = Transcript(path, files, exists=True)
        added = [transcript.add("user", text, first.id) for text in ("a", "b", "c")]
        while not transcript.flush():
            pass
        transcript.close()
        assert path.read_bytes().startswith(torn + b"\n")
        with Transcript(path, FileOps(), exists=True) as again:
            assert again.damage == () and again.nodes() == [first, *added]
