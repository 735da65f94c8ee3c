"""One conversation and its file: private, locked, made late, brought back when it vanishes."""

import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from app.errors import TranscriptError
from app.transcripts.files import FileOps
from app.transcripts.holder import holder_of
from app.transcripts.transcript import Transcript
from tests.app.transcripts.chats import chat
from tests.app.transcripts.faulty import FaultyFiles


def _new(path: Path) -> Transcript:
    return Transcript(path, FileOps(), exists=False)


def _again(path: Path) -> Transcript:
    return Transcript(path, FileOps(), exists=True)


def test_a_conversation_that_never_began_leaves_no_file(tmp_path: Path) -> None:
    with _new(tmp_path / "chats" / "a.jsonl") as transcript:
        assert transcript.path() == [] and transcript.head is None and transcript.title == ""
    assert not (tmp_path / "chats").exists()


def test_a_title_given_before_the_first_message_is_kept(tmp_path: Path) -> None:
    with _new(tmp_path / "a.jsonl") as transcript:
        transcript.rename("Mine")
    with _again(tmp_path / "a.jsonl") as transcript:
        assert transcript.title == "Mine" and transcript.path() == []


def test_file_and_folder_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with _new(tmp_path / "data" / "chats" / "a.jsonl") as transcript:
            transcript.add("user", "hi", None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data" / "chats").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data" / "chats" / "a.jsonl").stat().st_mode) == 0o600


def test_everything_is_the_same_after_opening_again(tmp_path: Path) -> None:
    moments = (datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=n) for n in count())
    with Transcript(tmp_path / "a.jsonl", FileOps(), exists=False, now=lambda: next(moments)) as transcript:
        for _ in chat(transcript):
            pass
    with _again(tmp_path / "a.jsonl") as again:
        assert again.nodes() == transcript.nodes()
        assert again.path() == transcript.path() and again.head == transcript.head
        assert (again.title, again.created, again.damage) == ("A title", transcript.created, ())
        assert [node.status for node in again.nodes()].count("stopped") == 1


def test_the_bytes_once_written_never_change(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    transcript, before = _new(path), b""
    for _ in chat(transcript):
        now = path.read_bytes()
        assert now.startswith(before) and len(now) > len(before)
        before = now
    transcript.close()
    with _again(path) as again:
        again.select(again.nodes()[0])
    assert path.read_bytes().startswith(before)


def test_a_file_shown_with_cat_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with _new(tmp_path / "a.jsonl") as transcript:
        transcript.add("user", "\x1b[2J\x9b1m\u202e\u200b\ue000\U000e0041\ud800 \u4f60\u597d", None)
    text = (tmp_path / "a.jsonl").read_text("utf-8")
    assert "\u4f60\u597d" in text
    assert text.replace("\n", "").isprintable()


def test_a_second_window_can_only_read_and_is_told_who_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = _new(path)
    first.add("user", "one", None)
    second = _again(path)
    assert f"process {os.getpid()}" in second.read_only and second.problem is None
    assert second.nodes() == first.nodes()
    for change in (lambda: second.add("user", "x", None), lambda: second.rename("x")):
        with pytest.raises(TranscriptError, match="can only be read"):
            change()
    assert not second.refresh()
    added = first.add("user", "two", "m1")
    assert second.refresh() and second.head == added and not second.refresh()
    second.select("m1")
    second.close()
    first.close()
    with _again(path) as third:
        assert third.read_only == "" and third.nodes() == first.nodes()


def test_two_processes_never_write_into_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = (
        "import sys; from pathlib import Path\n"
        "from app.transcripts.files import FileOps\n"
        "from app.transcripts.transcript import Transcript\n"
        "transcript = Transcript(Path(sys.argv[1]), FileOps(), exists=True)\n"
        "print(bool(transcript.read_only), flush=True)\n"
        "sys.stdin.readline()\n"
        "if not transcript.read_only:\n"
        "    for n in range(20): transcript.add('user', str(n), None)\n"
    )
    with _new(path) as transcript:
        transcript.add("user", "hi", None)
    command = [sys.executable, "-c", code, str(path)]
    both = []
    for _ in range(2):
        both.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert both[-1].stdout is not None
        assert both[-1].stdout.readline() == f"{len(both) == 2}\n"
    for process in both:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    with _again(path) as transcript:
        assert [node.text for node in transcript.nodes()] == ["hi", *map(str, range(20))]
        assert transcript.damage == ()


def test_the_holder_of_a_lock_is_read_from_what_linux_says(tmp_path: Path) -> None:
    file, locks = tmp_path / "a", tmp_path / "locks"
    file.write_bytes(b"")
    inode = file.stat().st_ino
    locks.write_text(
        f"1: POSIX  ADVISORY  WRITE 7 08:01:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n"
    )
    assert holder_of(file, locks) == "Another window (process 4711)"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 0 08:01:{inode} 0 EOF\n")
    assert holder_of(file, locks) == "Another window"
    assert holder_of(file, tmp_path / "none") == holder_of(tmp_path / "gone", locks) == "Another window"


def test_a_deleted_file_is_written_anew_with_all_that_was_in_it(tmp_path: Path) -> None:
    path = tmp_path / "chats" / "a.jsonl"
    transcript = _new(path)
    transcript.add("user", "one", None)
    shutil.rmtree(tmp_path / "chats")
    transcript.add("user", "two", "m1")
    assert transcript.problem is None and transcript.id == "a"
    transcript.close()
    with _again(path) as again:
        assert [node.text for node in again.path()] == ["one", "two"]


def test_a_file_that_was_replaced_is_left_alone_and_ours_goes_on_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    transcript = _new(path)
    transcript.add("user", "one", None)
    path.unlink()
    path.write_bytes(b"somebody's\n")
    transcript.add("user", "two", "m1")
    assert transcript.problem is None and transcript.id == "a-2"
    transcript.close()
    assert path.read_bytes() == b"somebody's\n"
    with _again(tmp_path / "a-2.jsonl") as again:
        assert [node.text for node in again.path()] == ["one", "two"]


def test_where_the_folder_cannot_be_made_the_chat_goes_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_bytes(b"")
    transcript = _new(tmp_path / "in the way" / "a.jsonl")
    first = transcript.add("user", "one", None)
    assert transcript.problem is not None and "in the way" in transcript.problem and transcript.n_unsaved == 1
    (tmp_path / "in the way").unlink()
    second = transcript.add("user", "two", first.id)
    assert transcript.problem is None and transcript.n_unsaved == 0
    transcript.close()
    with _again(tmp_path / "in the way" / "a.jsonl") as again:
        assert again.nodes() == [first, second]


class _ReadOnlyDrive(FaultyFiles):
    """Opens nothing for writing while `is_read_only`."""

    is_read_only = True

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if self.is_read_only and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(self.error, os.strerror(self.error), str(path))
        return super().open(path, flags, mode)


@pytest.mark.parametrize("error", [30, 13])  # EROFS, EACCES
def test_a_file_that_may_not_be_written_is_read_and_written_once_it_may_be(tmp_path: Path, error: int) -> None:
    path = tmp_path / "a.jsonl"
    with _new(path) as transcript:
        first = transcript.add("user", "one", None)
    drive = _ReadOnlyDrive(error=error)
    transcript = Transcript(path, drive, exists=True)
    assert transcript.nodes() == [first] and transcript.problem is not None and transcript.read_only == ""
    second = transcript.add("user", "two", first.id)
    assert transcript.n_unsaved == 1 and not transcript.flush()
    drive.is_read_only = False
    assert transcript.flush() and transcript.problem is None
    transcript.close()
    with _again(path) as again:
        assert again.nodes() == [first, second]


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        _again(tmp_path / "a.jsonl")


def test_where_files_cannot_be_locked_it_goes_on_and_knows(tmp_path: Path) -> None:
    class NoLocks(FileOps):
        def lock(self, fd: int, *, shared: bool = False) -> bool:
            raise OSError(37, "No locks available")

    with Transcript(tmp_path / "a.jsonl", NoLocks(), exists=False) as transcript:
        transcript.add("user", "one", None)
        assert transcript.problem is None and not transcript.has_locks


def test_nothing_is_written_after_closing(tmp_path: Path) -> None:
    transcript = _new(tmp_path / "a.jsonl")
    transcript.add("user", "one", None)
    transcript.close()
    size = (tmp_path / "a.jsonl").stat().st_size
    transcript.add("user", "two", "m1")
    transcript.close()
    assert transcript.problem is not None and (tmp_path / "a.jsonl").stat().st_size == size


def test_siblings_are_walked_and_each_branch_is_found_where_it_was_left(tmp_path: Path) -> None:
    with _new(tmp_path / "a.jsonl") as transcript:
        one = transcript.add("user", "one", None)
        left = transcript.add("user", "left", one.id)
        left_end = transcript.add("user", "left end", left.id)
        other_end = transcript.add("user", "left other end", left.id)
        right = transcript.add("user", "right", one.id)
        assert transcript.siblings(right) == transcript.siblings(left) == [left, right]
        assert transcript.select(left) == other_end
        assert transcript.select(left_end) == left_end
        assert transcript.select(right) == right
        assert transcript.select(left) == left_end
    with _again(tmp_path / "a.jsonl") as again:
        assert again.head == left_end
        assert again.select(right) == right and again.select(left) == left_end


def test_the_title_is_the_first_line_the_user_wrote(tmp_path: Path) -> None:
    with _new(tmp_path / "a.jsonl") as transcript:
        transcript.add("system", "Be brief.", None)
        transcript.add("user", "\n  What   is\ta slot?\nAnd a ring?", "m1")
        assert transcript.title == "What is a slot?"
        transcript.rename("Slots")
        assert transcript.title == "Slots"
        transcript.rename("")
        assert transcript.title == "What is a slot?"
    with _new(tmp_path / "b.jsonl") as transcript:
        transcript.add("user", "word " * 100, None)
        assert len(transcript.title) <= 80 and transcript.title.endswith("\u2026")
