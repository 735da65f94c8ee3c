from pathlib import Path

from app.log_tail import tail


def test_the_end_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\nsecond\nthird\n")
    assert tail(path) == "first\nsecond\nthird"
    assert tail(path, most_bytes=16) == "second\nthird"  # the file ends in "st\nsecond\nthird\n"
    assert tail(path, most_bytes=10) == "third"


def test_no_log_is_said_and_controls_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path) == "Nothing has been logged."
    path.write_bytes(b"\x1b[2J\xff\n")
    assert tail(path) == "\u241b[2J\ufffd"
    path.unlink()
    path.mkdir()
    assert tail(path).startswith("The log cannot be read")
