"""The folder of all transcripts: listing, opening, copying, deleting, bringing back."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import TranscriptError, TranscriptMissing
from app.transcripts.files import FileOps
from app.transcripts.glance import glance
from app.transcripts.load import load_file
from app.transcripts.store import TranscriptStore
from app.transcripts.titles import title_of
from app.transcripts.trash import KEPT
from tests.app.transcripts.chats import chat
from tests.app.transcripts.faulty import FaultyFiles


class _Calendar:
    """A clock of days."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def calendar() -> _Calendar:
    return _Calendar()


@pytest.fixture
def store(tmp_path: Path, calendar: _Calendar) -> TranscriptStore:
    return TranscriptStore(tmp_path / "chats", now=calendar)


def _begun(store: TranscriptStore, text: str = "hi") -> str:
    with store.create() as transcript:
        transcript.add("user", text, None)
        return transcript.id


def test_an_empty_store_has_no_folder_and_nothing_in_it(store: TranscriptStore) -> None:
    assert store.list() == [] and store.latest() is None and store.search("x") == []
    assert not store.folder.exists()


def test_the_list_tells_what_reading_every_file_in_full_would(store: TranscriptStore) -> None:
    for number in range(3):
        with store.create() as transcript:
            for step, _ in enumerate(chat(transcript)):
                if step == number:
                    break
    with store.create() as transcript:
        transcript.add("user", 'a "role":"user" {"kind":"title","title":"no"}\n{"kind":"message",', None)
    with store.create() as transcript:
        transcript.rename("only a title")
    infos = store.list()
    assert len(infos) == 5
    for info in infos:
        tree = load_file(info.path, FileOps()).tree
        assert (info.title, info.created, info.n_messages) == (
            tree.title or title_of(tree.nodes()),
            tree.created,
            len(tree),
        )
        assert info.size_bytes == info.path.stat().st_size


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk\n",
        b'{"format":1,"kind":"artesian-transcript"}\n{"id":"a","role":"user","text":"hi","kind":"message"}\n',
        b'{"kind":"artesian-transcript","format":1}\n{"kind":"message","id":"a","role":"user","text":7}\n',
        b'{"kind":"artesian-transcript","format":1}\n{"kind":"title","title":"cut o',
        b'{"kind":"artesian-transcript",' + bytes(100),
    ],
)
def test_the_list_shows_files_that_were_written_otherwise_or_are_damaged(store: TranscriptStore, data: bytes) -> None:
    store.folder.mkdir()
    (store.folder / "theirs.jsonl").write_bytes(data)
    (info,) = store.list()
    assert info.id == "theirs" and info.title == ("hi" if b'"text":"hi"' in data else "")
    store.open("theirs").close()


def test_what_is_no_transcript_is_not_listed(store: TranscriptStore, tmp_path: Path) -> None:
    name = _begun(store)
    (store.folder / "notes.txt").write_bytes(b"x")
    (store.folder / ".hidden.jsonl.new").write_bytes(b"x")
    (store.folder / "folder.jsonl").mkdir()
    os.mkfifo(store.folder / "pipe.jsonl")
    (store.folder / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    assert [info.id for info in store.list()] == [name]
    assert glance(store.folder / "gone.jsonl", FileOps()) is None
    for other in ("folder", "pipe", "dangling"):
        with pytest.raises(TranscriptError):
            store.open(other)
    assert [hit.transcript for hit in store.search("hi")] == [name]


def test_the_latest_is_the_one_that_changed_last(store: TranscriptStore) -> None:
    first, second = _begun(store), _begun(store)
    os.utime(store.path_of(second), (1, 1))
    latest = store.latest()
    assert latest is not None and latest.id == first
    latest.close()
    assert [info.id for info in store.list()] == [first, second]


def test_ids_are_cut_short_as_long_as_they_fit_one(store: TranscriptStore) -> None:
    name = _begun(store)
    (store.folder / "zz1.jsonl").write_bytes(store.path_of(name).read_bytes())
    (store.folder / "zz.jsonl").write_bytes(store.path_of(name).read_bytes())
    assert store.path_of("zz1").stem == "zz1" and store.path_of("zz").stem == "zz"
    for wrong in ("z", "", "nothing", "../zz"):
        with pytest.raises(TranscriptMissing):
            store.path_of(wrong)


def test_a_deleted_transcript_comes_back_as_it_was_with_what_lay_beside_it(store: TranscriptStore) -> None:
    name = _begun(store)
    path = store.path_of(name)
    data = path.read_bytes()
    path.with_suffix(".other").write_bytes(b"beside")
    token = store.delete(name)
    assert store.list() == [] and not path.with_suffix(".other").exists()
    assert store.undo(token) == name
    assert path.read_bytes() == data and path.with_suffix(".other").read_bytes() == b"beside"
    with pytest.raises(TranscriptMissing):
        store.undo(token)


def test_another_transcript_whose_id_goes_on_behind_a_dot_stays(store: TranscriptStore) -> None:
    name = _begun(store)
    copied = store.folder / f"{name}.bak.jsonl"
    copied.write_bytes(store.path_of(name).read_bytes())
    token = store.delete(name)
    assert [info.id for info in store.list()] == [f"{name}.bak"]
    assert store.undo(token) == name and copied.exists()


def test_the_deletion_undone_is_the_newest_unless_one_is_named(store: TranscriptStore, calendar: _Calendar) -> None:
    first, second, third = (_begun(store) for _ in range(3))
    for name in (first, second, third):
        store.delete(name)
        calendar.now += timedelta(minutes=1)
    assert store.undo() == third
    assert store.undo(first[:5]) == first
    assert store.undo() == second
    with pytest.raises(TranscriptMissing):
        store.undo()


def test_what_was_deleted_a_month_ago_is_gone_for_good(store: TranscriptStore, calendar: _Calendar) -> None:
    _begun(store, "stays")
    token = store.delete(_begun(store, "secret"))
    calendar.now += KEPT
    store.list()
    assert store.undo(token)
    token = store.delete(store.search("secret")[0].transcript)
    calendar.now += KEPT + timedelta(seconds=1)
    store.list()
    with pytest.raises(TranscriptMissing):
        store.undo(token)
    assert not [path for path in store.folder.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_bringing_back_overwrites_nothing(store: TranscriptStore) -> None:
    name = _begun(store)
    path = store.path_of(name)
    token = store.delete(name)
    path.write_bytes(b"new\n")
    with pytest.raises(TranscriptError, match="overwritten"):
        store.undo(token)
    assert path.read_bytes() == b"new\n"


@pytest.mark.parametrize("token", ["../../etc", "", "x", "1-", "99999999999999999999-a"])
def test_no_token_leads_out_of_the_trash(store: TranscriptStore, token: str) -> None:
    store.delete(_begun(store))
    with pytest.raises(TranscriptMissing):
        store.undo(token)


def test_strange_file_names_are_found_and_deleted_like_others(store: TranscriptStore) -> None:
    name = _begun(store)
    strange = store.folder / "a [b]*?.jsonl"
    strange.write_bytes(store.path_of(name).read_bytes())
    token = store.delete("a [b]*?")
    assert store.path_of(name).exists() and not strange.exists()
    assert store.undo(token) == "a [b]*?" and strange.exists()


def test_what_this_process_has_open_is_renamed_and_not_deleted(store: TranscriptStore) -> None:
    with store.create() as transcript:
        transcript.add("user", "hi", None)
        store.rename(transcript.id, "Mine")
        assert transcript.title == "Mine"
        with pytest.raises(TranscriptError, match="open here"):
            store.delete(transcript.id)
        transcript.add("user", "more", "m1")
        assert transcript.problem is None
    store.delete(transcript.id)


def test_a_look_at_a_conversation_keeps_nobody_from_writing_it(store: TranscriptStore) -> None:
    name = _begun(store)
    with store.view(name) as seen, store.open(name) as written:
        assert written.read_only == ""
        written.add("user", "more", "m1")
        with pytest.raises(TranscriptError, match="only to be read"):
            seen.add("user", "x", None)
        with store.view(name) as later:
            assert later.nodes() == written.nodes() and "has this conversation open" in later.read_only
        store.rename(name, "Still mine")
        assert written.title == "Still mine"
    assert seen.problem is None


def test_a_look_asks_for_no_right_to_write_and_sees_who_writes(tmp_path: Path) -> None:
    class Noting(FileOps):
        def __init__(self) -> None:
            self.shared: list[bool] = []

        def lock(self, fd: int, *, shared: bool = False) -> bool:
            self.shared.append(shared)
            return super().lock(fd, shared=shared)

    files = Noting()
    store = TranscriptStore(tmp_path / "chats", files=files)
    name = _begun(store)
    files.shared.clear()
    with store.view(name) as seen:
        assert files.shared == [True] and "only to be read" in seen.read_only
    with store.open(name), store.view(name) as seen:
        assert files.shared == [True, False, True] and "has this conversation open" in seen.read_only


def test_a_copy_has_the_messages_and_goes_its_own_way(store: TranscriptStore) -> None:
    original = store.create()
    original.add("user", "hi", None)
    with store.copy(original.id) as copied:
        assert copied.id != original.id and copied.nodes() == original.nodes() and copied.read_only == ""
        copied.add("user", "only here", "m1")
    assert len(original.nodes()) == 1
    original.close()


@pytest.mark.parametrize("action", ["delete", "undo", "copy", "rename"])
def test_a_drive_that_refuses_is_reported_and_nothing_is_lost(tmp_path: Path, action: str) -> None:
    files = FaultyFiles()
    store = TranscriptStore(tmp_path / "chats", files=files)
    name = _begun(store)
    token = store.delete(name) if action == "undo" else None
    files.fail_on = range(files.n_calls + 1, 10**9)
    with pytest.raises(TranscriptError, match="No space"):
        if action == "undo":
            store.undo(token)
        elif action == "rename":
            store.rename(name, "x")
        else:
            getattr(store, action)(name)
    files.fail_on = ()
    if token is not None:
        store.undo(token)
    with store.open(name) as transcript:
        assert [node.text for node in transcript.path()] == ["hi"]
    assert [info.id for info in store.list()] == [name]
