import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from app.whole_files import make_file, replace_file

Limited = Callable[[int], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    replace_file(tmp_path / "new", b"text")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    make_file(tmp_path / "private", b"text", mode=0o600)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "plot.svg"
    link.symlink_to("/dev/null")
    replace_file(link, b"text")
    assert link.is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_without_room_is_named(tmp_path: Path) -> None:
    link = tmp_path / "plot.svg"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device.*'{link}'"):
        replace_file(link, b"text")


def test_a_new_file_that_finds_no_room_is_not_there(tmp_path: Path, small_files_only: Limited) -> None:
    with small_files_only(3), pytest.raises(OSError, match="File too large, so no file was made"):
        make_file(tmp_path / "new", b"text", mode=0o600)
    assert list(tmp_path.iterdir()) == []
    make_file(tmp_path / "new", b"text", mode=0o600)
    with pytest.raises(FileExistsError):
        make_file(tmp_path / "new", b"other", mode=0o600)
    assert (tmp_path / "new").read_bytes() == b"text"


def test_a_folder_that_is_not_there_is_said_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file or directory, so no file was made: '.*gone/x'"):
        replace_file(tmp_path / "gone" / "x", b"text")
