from pathlib import Path

import pytest

from app.tui.clipboard import MOST_BYTES, TMUX_MOST_BYTES, copy

_XTERM = {"TERM": "xterm-256color"}


def test_a_text_that_fits_goes_to_the_terminal_alone(tmp_path: Path) -> None:
    sent: list[str] = []
    copied = copy("text", "Reply", sent.append, tmp_path / "new", _XTERM)
    assert sent == ["text"] and copied.path is None and not (tmp_path / "new").exists()
    assert copied.said == "Reply sent to the terminal's clipboard, 4 characters."


@pytest.mark.parametrize(
    ("environ", "n_bytes", "reason"),
    [
        (_XTERM, MOST_BYTES + 1, "it is more than the 75.0 kB a terminal takes"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, TMUX_MOST_BYTES + 1, "it is more than the 700 kB"),
        ({"TERM": "linux"}, 1, "the Linux console has no clipboard"),
        ({"TERM": "xterm", "TERM_PROGRAM": "Apple_Terminal"}, 1, "Terminal.app takes no text"),
    ],
)
def test_what_the_terminal_will_not_take_goes_to_a_private_file(
    tmp_path: Path, environ: dict[str, str], n_bytes: int, reason: str
) -> None:
    sent: list[str] = []
    text = "x" * n_bytes
    copied = copy(text, "Reply", sent.append, tmp_path, environ)
    assert sent == [] and copied.path is not None
    assert copied.path.read_text() == text and copied.path.stat().st_mode & 0o777 == 0o600
    assert str(copied.path) in copied.said and reason in copied.said


def test_the_limit_is_counted_in_bytes(tmp_path: Path) -> None:
    # 30,000 signs of three bytes each are more than 74,994 bytes.
    assert copy("\u65e5" * 30_000, "Reply", lambda text: None, tmp_path, _XTERM).path is not None


@pytest.mark.parametrize("doubt", [{"VTE_VERSION": "7600"}, {"SSH_CONNECTION": "1 2 3 4"}])
def test_where_nobody_can_know_it_goes_to_both(tmp_path: Path, doubt: dict[str, str]) -> None:
    sent: list[str] = []
    copied = copy("text", "Code block", sent.append, tmp_path, _XTERM | doubt)
    assert sent == ["text"] and (tmp_path / "clipboard.txt").read_text() == "text"
    assert copied.said.endswith(f"should this one not take it, it is in {tmp_path / 'clipboard.txt'}.")


def test_a_file_that_cannot_be_written_is_said_only_where_it_matters(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "x"
    assert "may not take it" in copy("t", "Reply", lambda t: None, folder, _XTERM | {"SSH_TTY": "x"}).said
    with pytest.raises(OSError, match="Not a directory"):
        copy("t", "Reply", lambda t: None, folder, {"TERM": "linux"})


def test_half_of_a_pair_is_copied_as_a_question_mark(tmp_path: Path) -> None:
    sent: list[str] = []
    copy("a\ud800b", "Reply", sent.append, tmp_path, _XTERM)
    assert sent == ["a?b"]
