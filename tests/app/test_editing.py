import signal
import stat
import tempfile
from pathlib import Path

import pytest

from app.editing import EditorError, edit, editor_command


def _editor(folder: Path, script: str) -> dict[str, str]:
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"EDITOR": f"'{path}' --wait", "PATH": "/usr/bin:/bin"}


def test_the_text_comes_back_as_it_was_left(tmp_path: Path) -> None:
    # $1 is --wait, $2 the file; editors end a file with a line end that is not part of the message.
    environ = _editor(tmp_path, 'printf "%s, edited\\n" "$(cat "$2")" > "$2"')
    assert edit("d\u00e9j\u00e0 vu", environ) == "d\u00e9j\u00e0 vu, edited"


def test_visual_comes_before_editor(tmp_path: Path) -> None:
    environ = _editor(tmp_path, "true") | {"VISUAL": "true"}
    assert editor_command(environ) == ["true"]


def test_the_file_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    environ = _editor(tmp_path, f'ls -ld "$(dirname "$2")" > {tmp_path}/mode; echo "$2" > {tmp_path}/name')
    edit("secret", environ)
    assert (tmp_path / "mode").read_text().startswith("drwx------")
    assert not Path((tmp_path / "name").read_text().strip()).exists()
    assert stat.S_ISDIR(tmp_path.stat().st_mode)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "ended with code 3"),
        ("printf '\\377' > \"$2\"", "not UTF-8"),
        ('rm "$2"', "No such file"),
        ('truncate -s 17M "$2"', "no context holds that"),
    ],
)
def test_what_cannot_be_taken_is_said(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(EditorError, match=message):
        edit("text", _editor(tmp_path, script))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"VISUAL": "no-such-editor -x"}, "VISUAL names 'no-such-editor'"),
        ({"EDITOR": "'open quote"}, "EDITOR cannot be read"),
    ],
)
def test_an_editor_that_is_not_there_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(EditorError, match=message):
        editor_command(environ)


def test_a_temporary_folder_that_cannot_be_made_is_an_error_of_the_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = _editor(tmp_path, "true")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(EditorError, match="No such file"):
        edit("text", environ)


def test_an_interrupt_while_the_editor_has_the_terminal_is_the_editors(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    environ = _editor(tmp_path, 'trap : INT; kill -INT $PPID; kill -INT $$; printf after > "$2"')
    assert edit("text", environ) == "after"  # it heard of the signal, and we did not end of ours
    assert signal.getsignal(signal.SIGINT) is before
