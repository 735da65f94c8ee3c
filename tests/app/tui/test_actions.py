"""One table: what is bound, offered, typed and explained is the same everywhere."""

from collections.abc import Iterator

import pytest
from textual.binding import Binding
from textual.pilot import Pilot

from app.actions import ACTIONS, BY_ID, BY_SLASH, Action, Scope, of_scope
from app.keymap import shown_keys
from app.settings import Settings
from app.tui.app import ArtesianApp
from app.tui.palette import ActionProvider, Palette
from app.tui.screens.chat import ChatScreen
from app.tui.screens.help import HelpScreen
from app.tui.screens.mirror import MirrorScreen
from app.tui.screens.model import ModelScreen
from app.tui.screens.panel import PanelScreen
from app.tui.screens.settings import SettingsScreen
from app.tui.screens.transcripts import TranscriptsScreen
from app.tui.widgets.find_bar import FindBar
from app.tui.widgets.page import Page
from app.tui.widgets.prompt import Prompt, PromptEditor
from app.tui.widgets.slash_menu import SlashMenu
from tests.app.tui.snapshot import wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui

OWNERS: dict[Scope, tuple[type, ...]] = {
    "global": (ArtesianApp,),
    "chat": (ChatScreen, PromptEditor),
    "turn": (ChatScreen,),
    "find": (FindBar,),
    "panel": (PanelScreen,),
    "transcripts": (TranscriptsScreen,),
    "settings": (SettingsScreen,),
    "models": (ModelScreen,),
    "mirrors": (MirrorScreen,),
}
"""Who binds the keys of a scope and does its actions."""


def _bindings(owner: type) -> Iterator[Binding]:
    for base in owner.__mro__:
        for binding in vars(base).get("BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id in BY_ID:
                yield binding


def test_ids_and_slash_names_are_unique_and_titles_say_what_is_done() -> None:
    assert len(BY_ID) == len(ACTIONS)
    assert len(BY_SLASH) == sum(bool(action.slash) for action in ACTIONS)
    for action in ACTIONS:
        assert action.title[0].isupper() and not action.title.endswith(".")
        assert action.help.endswith(".") and len(action.title) <= 30


def test_everything_can_be_done_without_an_f_key_and_by_a_plain_terminal() -> None:
    for action in ACTIONS:
        ways = [key for key in action.keys if not (key[0] == "f" and key[1:].isdigit())]
        assert ways or action.slash, f"{action.id} has an F key and nothing else"
        # Tab and Enter arrive for ctrl+i and ctrl+m; ctrl with Enter or a digit not at all.
        for key in action.keys:
            assert key not in ("ctrl+i", "ctrl+m", "ctrl+enter", "ctrl+h", "ctrl+left_square_bracket"), action.id


def test_only_what_makes_no_sense_as_a_command_has_no_slash_name() -> None:
    keys_only = {"send", "new_line", "previous_block", "next_block"}
    assert {a.id for a in ACTIONS if a.scope in ("global", "chat", "turn") and not a.slash} == keys_only


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_is_bound_as_the_table_says_and_can_be_done(action: Action) -> None:
    owners = OWNERS[action.scope]
    method = f"action_{action.id}"
    assert any(method in vars(base) for owner in owners for base in owner.__mro__), f"nobody has {method}"
    # A turn's keys are bound on whatever widget shows the conversation, which the chat's own tests press.
    if action.keys and action.scope != "turn":
        bound = [binding for owner in owners for binding in _bindings(owner) if binding.id == action.id]
        assert {binding.key for binding in bound} == {",".join(action.keys)}
        assert {(b.action, b.description, b.tooltip) for b in bound} == {(action.id, action.title, action.help)}


@pytest.mark.parametrize("owner", [ArtesianApp, ChatScreen, PromptEditor, FindBar, PanelScreen])
def test_nobody_binds_what_belongs_elsewhere(owner: type) -> None:
    own = {action.id for scope, owners in OWNERS.items() if owner in owners for action in of_scope(scope)}
    assert {binding.id for binding in _bindings(owner)} <= own


async def test_the_palette_offers_the_table_of_its_screen() -> None:
    app = Stage()
    async with app.run_test() as pilot:
        provider = ActionProvider(app.screen)
        hits = [hit async for hit in provider.discover()]
        expected = [a for a in ACTIONS if a.in_palette and a.scope in ("global", "chat", "turn")]
        assert [(hit.text, hit.help) for hit in hits] == [(a.title, a.help) for a in expected]
        for hit, action in zip(hits, expected, strict=True):
            shown = str(hit.prompt)
            assert shown_keys(action.keys) in shown and (not action.slash or f"/{action.slash}" in shown)
            hit.command()
        assert app.done == [(action.id, "") for action in expected]
        app.push_screen(TranscriptsScreen())
        await wait_until(pilot, lambda: isinstance(app.screen, TranscriptsScreen))
        texts = [hit.text async for hit in ActionProvider(app.screen).discover()]
        assert BY_ID["rename_transcript"].title in texts and BY_ID["regenerate"].title not in texts


async def test_the_palette_finds_by_slash_name_and_does_it() -> None:
    app = Stage()
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(Palette())
        await pilot.press(*"regen")
        await wait_until(pilot, lambda: app.screen.query("OptionList").first().option_count > 0)  # type: ignore[attr-defined]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.done == [("regenerate", "")])


async def _menu(pilot: Pilot[int], prompt: Prompt, text: str) -> list[str]:
    prompt.set_text(text)
    await pilot.pause()
    return [action.slash for action in prompt.query_one(SlashMenu).offered]


async def test_the_slash_menu_offers_the_table() -> None:
    prompt = Prompt()
    app = Stage(prompt)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert await _menu(pilot, prompt, "/") == list(BY_SLASH)
        for action in BY_SLASH.values():
            assert action.slash in await _menu(pilot, prompt, f"/{action.slash}")


@pytest.mark.parametrize("moved", [None, {"regenerate": "f9", "help": "f2,ctrl+b"}])
async def test_help_says_the_table_with_the_keys_in_force(moved: dict[str, str] | None) -> None:
    app = Stage(screen=HelpScreen(), settings=Settings(keymap=moved))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: bool(app.screen.query_one(Page).shown))
        shown = app.screen.query_one(Page).shown
        for action in ACTIONS:
            is_here = action.scope in ("global", "chat", "turn", "find")
            assert (f"[{action.id}]" in shown) is is_here, action.id
            if is_here:
                line = next(line for line in shown.splitlines() if f"[{action.id}]" in line)
                keys = (moved or {}).get(action.id, "").split(",") if moved and action.id in moved else action.keys
                assert action.title in line
                for key in keys:
                    assert shown_keys((key,)) in line
                assert not action.slash or f"/{action.slash}" in shown


async def test_a_moved_key_acts_and_its_default_does_not() -> None:
    prompt = Prompt()
    app = Stage(prompt)
    async with app.run_test() as pilot:
        app.set_keymap({"send": "ctrl+s"})
        prompt.focus_editor()
        await pilot.press("a", "enter", "b")
        assert prompt.text == "a\nb" and not app.sent
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: app.sent == ["a\nb"])
