from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from app import paths
from app.settings import Settings, known_keys, load_settings
from app.tui.screens.confirm import AskScreen
from app.tui.screens.settings import SettingsScreen
from tests.app.tui.snapshot import wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui

_FILE = "# mine\ntop_k = 3  # few\n\n[keymap]\nstop = 'ctrl+s'\n"


@pytest.fixture
def file() -> Path:
    path = paths.settings_file()
    path.parent.mkdir(parents=True)
    path.write_text(_FILE)
    return path


def _stage(said: str = "") -> Stage:
    return Stage(screen=SettingsScreen(said), settings=load_settings(paths.settings_file()))


def _line(app: Stage, key: str) -> str:
    options = app.screen.query_one(OptionList).options
    return next(str(option.prompt) for option in options if str(option.prompt).startswith(f"{key} "))


async def _ask(pilot: Pilot[int], app: Stage, key: str) -> Input:
    app.screen.query_one(OptionList).highlighted = known_keys().index(key)
    await pilot.press("enter")
    await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
    return app.screen.query_one(Input)


async def test_every_setting_is_shown_with_its_value_and_where_it_comes_from(file: Path) -> None:
    app = _stage()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        assert app.screen.query_one(OptionList).option_count == len(known_keys())
        assert _line(app, "top_k").split() == ["top_k", "3", "(settings)"]
        assert _line(app, "io").split() == ["io", "auto"]
        assert _line(app, "keymap").split() == ["keymap", "stop", "=", "ctrl+s", "(settings)"]


async def test_a_change_is_written_and_everything_else_in_the_file_stays(file: Path) -> None:
    app = _stage()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        box = await _ask(pilot, app, "top_k")
        assert box.value == "3"
        box.value = "many"
        await pilot.press("enter")
        await pilot.pause()
        problem = str(app.screen.query_one("#dialog-problem", Static).render())
        assert isinstance(app.screen, AskScreen) and problem == "top_k cannot be 'many'. It must be a whole number."
        box.value = "40"
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        assert file.read_text() == _FILE.replace("top_k = 3 ", "top_k = 40 ")
        assert app.settings.top_k == 40 and _line(app, "top_k").split()[1] == "40"
        box = await _ask(pilot, app, "think")
        box.value = "low"
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        again = load_settings(file)
        assert (again.think, again.top_k, again.keymap) == ("low", 40, {"stop": "ctrl+s"})
        assert "# mine" in file.read_text() and "# few" in file.read_text()


async def test_a_setting_is_taken_out_again(file: Path) -> None:
    app = _stage()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        app.screen.query_one(OptionList).highlighted = known_keys().index("top_k")
        await pilot.press("d")
        await wait_until(pilot, lambda: app.settings.top_k is None)
        assert "top_k" not in file.read_text() and "[keymap]" in file.read_text()
        before = file.read_text()
        await pilot.press("d")
        await wait_until(pilot, lambda: any(n.message == "top_k is not set." for n in app._notifications))
        assert file.read_text() == before


async def test_a_theme_is_taken_at_once(file: Path) -> None:
    app = _stage("theme artesian-light")
    async with app.run_test(size=(80, 40)) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
        assert app.screen.query_one(Input).value == "artesian-light"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.theme_name == "artesian-light")
        assert load_settings(file).theme == "artesian-light"


async def test_keys_are_moved_at_once(file: Path) -> None:
    app = _stage()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        box = await _ask(pilot, app, "keymap")
        box.value = '{ close = "ctrl+x" }'
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        await wait_until(pilot, lambda: app.settings.keymap == {"close": "ctrl+x"})
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("ctrl+x")
        await wait_until(pilot, lambda: not isinstance(app.screen, SettingsScreen))


async def test_a_change_that_cannot_act_is_refused_and_the_file_stays(file: Path) -> None:
    app = _stage()
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        box = await _ask(pilot, app, "mirror")
        box.value = "/a, /b"
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("has no effect without model" in n.message for n in app._notifications))
        assert file.read_text() == _FILE


async def test_a_key_there_is_not_is_answered_with_the_one_meant(file: Path) -> None:
    app = _stage("tpo_k 3")
    async with app.run_test(size=(80, 40)) as pilot:
        await wait_until(pilot, lambda: any("Did you mean top_k?" in n.message for n in app._notifications))


async def test_hostile_values_are_shown_harmlessly() -> None:
    settings = Settings(model="/m\x1b[31m\u202e[bold]\n[/]", keymap={"stop": "ctrl+s"})
    app = Stage(screen=SettingsScreen(), settings=settings)
    async with app.run_test(size=(80, 40)) as pilot:
        await pilot.pause()
        assert "/m\u241b[31m<U+202E>[bold]\u240a[/]" in _line(app, "model")
        note = str(app.screen.query_one(".panel-note", Static).render())
        assert "\x1b" not in note and "\u202e" not in note
