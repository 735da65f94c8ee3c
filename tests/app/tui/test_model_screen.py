import shutil
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from app import paths
from app.paths import demo_folder
from app.settings import load_settings
from app.tui.screens.confirm import AskScreen
from app.tui.screens.model import ModelScreen
from tests.app.tui.snapshot import wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    shutil.copytree(demo_folder(), folder / "v41 [bold]x")
    return folder


def _entries(app: Stage) -> list[str]:
    return [str(option.prompt) for option in app.screen.query_one(OptionList).options]


async def _looked(pilot: Pilot[int], app: Stage, said: str) -> None:
    await wait_until(pilot, lambda: said in str(app.screen.query_one(".panel-note", Static).render()))


def _with_settings(models: Path, text: str) -> Stage:
    path = paths.settings_file()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return Stage(screen=ModelScreen(places=[models]), settings=load_settings(path))


async def test_what_is_found_is_judged_with_the_speed_to_expect(models: Path) -> None:
    app = Stage(screen=ModelScreen(places=[models]))
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        found, demo = _entries(app)
        name, state, speed = found.split("\n")
        assert name == str(models / "v41 [bold]x") and state.startswith("Whole: ")
        assert speed.startswith("Expect about ") and "An answer of 200 tokens takes about" in speed
        assert demo.startswith("The bundled demo  (in use)\nA tiny model")


async def test_a_model_is_used_now_and_from_now_on(models: Path) -> None:
    app = Stage(screen=ModelScreen(places=[models]))
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        await pilot.press("home", "enter")
        await wait_until(pilot, lambda: app.opened == [str(models / "v41 [bold]x")])
        assert load_settings(paths.settings_file()).model == str(models / "v41 [bold]x")
        assert app.choice.origin == "settings" and not isinstance(app.screen, ModelScreen)


async def test_the_demo_is_gone_back_to(models: Path) -> None:
    app = _with_settings(models, f'model = "{models}"\ntop_k = 3\n')
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: len(app.opened) == 1)
        settings = load_settings(paths.settings_file())
        assert app.choice.is_demo and settings.model is None and settings.top_k == 3


async def test_what_is_in_use_is_not_loaded_again(models: Path) -> None:
    app = Stage(screen=ModelScreen(places=[models]))
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: not isinstance(app.screen, ModelScreen))
        assert not app.opened and not paths.settings_file().exists()


async def test_nothing_found_says_where_it_looked_and_another_folder_can_be_named(models: Path, tmp_path: Path) -> None:
    app = Stage(screen=ModelScreen(places=[tmp_path / "empty"]))
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "No checkpoint of DeepSeek-V4.1-Flash was found")
        await pilot.press("f")
        await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = str(tmp_path / "nowhere")
        await pilot.press("enter")
        problem = app.screen.query_one("#dialog-problem", Static)
        await wait_until(pilot, lambda: "no such folder" in str(problem.render()))
        app.screen.query_one(Input).value = str(models / "v41 [bold]x")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelScreen) and len(_entries(app)) == 2)


async def test_a_folder_named_with_the_command_is_judged_too(models: Path, tmp_path: Path) -> None:
    app = Stage(screen=ModelScreen(str(models / "v41 [bold]x"), places=[models]))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: len(_entries(app)) == 2)
        await _looked(pilot, app, "1 checkpoint found.")
        assert len(_entries(app)) == 2, "named and found, it is listed once"


async def test_leaving_ends_the_look(models: Path) -> None:
    app = Stage(screen=ModelScreen(places=[models] * 50))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(app.screen, ModelScreen))
        await wait_until(pilot, lambda: all(worker.is_finished for worker in app.workers))


@pytest.mark.parametrize("text", ["~nobody-of-this-name/models", "x" * 5_000, "  "])
async def test_what_is_no_folder_at_all_is_said_and_the_chat_goes_on(models: Path, text: str) -> None:
    app = Stage(screen=ModelScreen(places=[models]))
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        await pilot.press("f")
        await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = text
        await pilot.press("enter")
        problem = app.screen.query_one("#dialog-problem", Static)
        await wait_until(pilot, lambda: "no such folder" in str(problem.render()))


async def test_a_folder_that_holds_no_checkpoint_is_not_used(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    app = Stage(screen=ModelScreen(str(tmp_path / "empty"), places=[]))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: len(_entries(app)) == 2)
        await _looked(pilot, app, "No checkpoint of DeepSeek-V4.1-Flash was found")
        assert _entries(app)[0].count("no config.json") == 1
        await pilot.press("home", "enter")
        await pilot.pause()
        assert isinstance(app.screen, ModelScreen) and not app.opened and not paths.settings_file().exists()


async def test_another_model_takes_the_drives_of_the_old_one_out_of_the_settings(models: Path, tmp_path: Path) -> None:
    text = f'model = "{tmp_path}/old"\nmirror = ["/old"]\ndrive_weight = ["/old=2"]\ntop_k = 3\n'
    app = _with_settings(models, text)
    async with app.run_test(size=(80, 24)) as pilot:
        await _looked(pilot, app, "1 checkpoint found.")
        await pilot.press("home", "enter")
        await wait_until(pilot, lambda: len(app.opened) == 1)
        settings = load_settings(paths.settings_file())
        assert settings.model == str(models / "v41 [bold]x") and settings.top_k == 3
        assert settings.mirror is None and settings.drive_weight is None


async def test_a_model_named_from_where_one_stands_is_remembered_from_the_root(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Stage(screen=ModelScreen("models/v41 [bold]x", places=[]))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: len(_entries(app)) == 2)
        await pilot.press("home", "enter")
        await wait_until(pilot, lambda: len(app.opened) == 1)
        assert load_settings(paths.settings_file()).model == str(models / "v41 [bold]x")
