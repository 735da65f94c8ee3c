from pathlib import Path

import pytest

from app.errors import UsageError
from app.model_choice import choose_model, require_folder
from app.paths import demo_folder
from app.settings import Settings
from storage.errors import MissingFolder


def test_the_option_wins_over_the_environment_over_the_settings() -> None:
    settings, environ = Settings(model="/settings"), {"ARTESIAN_MODEL": "/environ"}
    assert choose_model("/option", settings, environ).folder == Path("/option")
    assert choose_model(None, settings, environ).folder == Path("/environ")
    assert choose_model(None, settings, {"ARTESIAN_MODEL": " "}).folder == Path("/settings")


def test_with_nothing_named_it_is_the_demo() -> None:
    choice = choose_model(None, Settings(), {})
    assert (choice.folder, choice.origin, choice.is_demo) == (demo_folder(), "demo", True)
    assert (choice.folder / "config.json").is_file()


def test_an_empty_option_is_refused_and_not_taken_for_the_demo() -> None:
    with pytest.raises(UsageError, match="--model is empty"):
        choose_model("", Settings(model="/settings"), {})


def test_the_demo_is_known_by_its_folder_too(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(demo_folder())
    assert choose_model(str(link), Settings(), {}).is_demo
    assert not choose_model(str(tmp_path), Settings(), {}).is_demo


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose_model("~/m", Settings(), {}).folder == tmp_path / "m"


@pytest.mark.parametrize(("name", "what"), [("nowhere", "does not exist"), ("file", "is not a folder")])
def test_a_folder_that_is_not_there_is_refused_with_what_named_it(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingFolder, match=rf"{name} \(ARTESIAN_MODEL\) {what}"):
        require_folder(choose_model(None, Settings(), {"ARTESIAN_MODEL": str(tmp_path / name)}))
