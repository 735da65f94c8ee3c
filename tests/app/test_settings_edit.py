"""Changing single settings without disturbing the file."""

from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import load_settings
from app.settings_edit import edit_settings

_FILE = """\
# my model
model = "/models/v41"   # on the fast drive
temperature = 0.7

# drives
mirror = [
    "/second/mirror",  # the old one
]
"""


def test_one_value_changes_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(_FILE)
    made = edit_settings(path, {"temperature": 0.2, "slots": 12})
    assert (made.temperature, made.slots, made.mirror) == (0.2, 12, ("/second/mirror",))
    assert load_settings(path) == made
    lines = path.read_text().splitlines()
    assert [line for line in _FILE.splitlines() if line not in lines] == ["temperature = 0.7"]


def test_none_takes_a_value_out(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(_FILE)
    assert edit_settings(path, {"mirror": None, "top_k": None}).mirror is None
    assert "# my model" in path.read_text() and "mirror" not in path.read_text()


def test_a_new_file_is_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "settings.toml"
    edit_settings(path, {"model": "/m", "mirror": ("/a", "/b")})
    assert load_settings(path).mirror == ("/a", "/b")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (_FILE, {"temperature": 9.0}, "it must be 0 to 2"),
        (_FILE, {"slots": 0}, "slots = 0 cannot be used"),
        (_FILE, {"slotz": 1}, "unknown key 'slotz'"),
        (_FILE, {"model": None}, "mirror has no effect without model"),
        ("model = [", {"slots": 1}, "not valid TOML"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    tmp_path: Path, text: str, changes: dict[str, object], said: str
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        edit_settings(path, changes)  # type: ignore[arg-type]
    assert path.read_text() == text
