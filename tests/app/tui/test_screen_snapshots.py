"""How the screens above the chat look. `snapshots/` has the pictures; `ARTESIAN_SNAPSHOTS=write` makes them anew."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import OptionList

from app.actions import ACTIONS
from app.settings import Settings
from app.transcripts.store import TranscriptStore
from app.tui.palette import Palette
from app.tui.screens import model as model_module
from app.tui.screens.confirm import AskScreen, ConfirmScreen
from app.tui.screens.drives import DrivesScreen
from app.tui.screens.help import HelpScreen
from app.tui.screens.logs import LogsScreen
from app.tui.screens.model import ModelScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.settings import SettingsScreen
from app.tui.screens.transcripts import TranscriptsScreen
from app.tui.widgets.page import Page
from app.tui.widgets.prompt import Prompt
from app.turn_report import Line, Section
from tests.app.test_turn_report import DRAFT, make_stats
from tests.app.tui.snapshot import NARROW, NORMAL, WIDE, check, wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui

_PLAN = (
    Section(
        title="RAM: 46.1 GB of 48.0 GB, never above",
        lines=(
            Line(name="trunk", text="8.30 GB", share=0.17, note="attention, shared experts: every token"),
            Line(name="experts", text="36.1 GB", share=0.75, note="48 of 384 in each layer"),
            Line(name="conversation", text="60.0 MB", share=0.001, note="65,536 tokens"),
        ),
    ),
    Section(
        title="Figures",
        lines=(Line(name="answer", text="2.2/s"), Line(name="experts in memory", text="61%, once warm")),
        note="Expect about 2.2 tokens a second once warm: slower than one reads, faster than one types.",
    ),
)
"""Stands in for a plan: a real one differs from machine to machine."""


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No path of this run, no zone, no free memory in a picture."""
    monkeypatch.setattr("app.tui.screens.plan.explain_choice", lambda choice, settings, options: None)
    monkeypatch.setattr("app.tui.screens.plan.plan_sections", lambda explanation: list(_PLAN))
    monkeypatch.setattr("app.paths.settings_file", lambda: Path("/home/ada/.config/artesian/settings.toml"))


async def _show(app: Stage, size: tuple[int, int], name: str, ready: Callable[[Pilot[int]], bool]) -> None:
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: ready(pilot))
        await pilot.pause()  # what `ready` saw is painted
        check(app, name)


def _page_has(app: Stage, part: str) -> Callable[[object], bool]:
    return lambda _: bool(app.screen.query(Page)) and part in app.screen.query_one(Page).shown


def _list_has(app: Stage, n: int) -> Callable[[object], bool]:
    return lambda _: bool(app.screen.query(OptionList)) and app.screen.query_one(OptionList).option_count == n


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("help", NORMAL, "artesian-dark"), ("help-narrow-light", NARROW, "artesian-light")],
)
async def test_help(name: str, size: tuple[int, int], theme: str) -> None:
    app = Stage(screen=HelpScreen(), theme=theme)
    await _show(app, size, name, _page_has(app, "Send the message"))


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("plan", NORMAL, "artesian-dark"), ("plan-wide-ansi", WIDE, "ansi"), ("plan-narrow", NARROW, "artesian-dark")],
)
async def test_where_the_time_goes(name: str, size: tuple[int, int], theme: str) -> None:
    app = Stage(screen=PlanScreen(), theme=theme, last_turn=make_stats(draft=DRAFT))
    app.choice = type(app.choice)(folder=Path("/models/v41"), origin="settings", is_demo=False)
    await _show(app, size, name, _page_has(app, "Expect about 2.2"))


async def test_drives() -> None:
    app = Stage(screen=DrivesScreen(), last_turn=make_stats())
    await _show(app, NORMAL, "drives", _page_has(app, "nvme0"))


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("settings", NORMAL, "artesian-dark"), ("settings-no-colour", NORMAL, "none")],
)
async def test_settings(name: str, size: tuple[int, int], theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some of them, so that a new setting is no new picture.
    some = ("model", "think", "max_tokens", "temperature", "top_k", "mirror", "io", "theme", "mouse", "keymap")
    monkeypatch.setattr("app.settings_view.known_keys", lambda: some)
    settings = Settings(model="/models/v41", top_k=40, keymap={"stop": "ctrl+s"})
    app = Stage(screen=SettingsScreen(), theme=theme, settings=settings)
    await _show(app, size, name, lambda _: bool(app.screen.query(OptionList)))


_TITLES = ("Where do the experts live?", "[bold]Markup[/] \x1b[31m", "\u65e5\u672c\u8a9e")


class _Listed(TranscriptStore):
    """A list that is the same in every zone and on every file system."""

    def list(self) -> "list":  # type: ignore[type-arg]
        """Three."""
        from datetime import datetime

        from app.transcripts.records import TranscriptInfo

        return [
            TranscriptInfo(
                id=f"id{number}",
                path=Path(f"/t/id{number}.jsonl"),
                title=title,
                created=datetime(2026, 11, 20, 9, 30),
                updated=datetime(2026, 11, 20 - number, 9, 30),
                n_messages=2 + 10 * number,
                size_bytes=4_100 * (number + 1),
            )
            for number, title in enumerate(_TITLES)
        ]


async def test_conversations(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=_Listed(tmp_path))
    await _show(app, NORMAL, "conversations", _list_has(app, 3))


async def test_models(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model_module.Found(
        folder=Path("/mnt/fast/DeepSeek-V4.1-Flash"),
        state="whole",
        said="Whole: 510 GB of 510 GB, 48 of 48 shards complete.",
        speed="Expect about 2.2 tokens a second once warm: slower than one reads, faster than one types.",
    )
    monkeypatch.setattr(model_module, "find_checkpoints", lambda places, stop: iter([found.folder]))
    monkeypatch.setattr(model_module, "judge", lambda folder, settings, options: found)
    app = Stage(screen=ModelScreen(places=[]))
    await _show(app, NORMAL, "models", _list_has(app, 2))


async def test_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("2026-11-29 21:00:00 ERROR engine thread\nTraceback (most recent call last):\n  \x1b[2J[red]\n")
    screen = LogsScreen(log)
    app = Stage(screen=screen)
    screen.say_beside_heading = lambda text: None  # type: ignore[method-assign]
    await _show(app, NORMAL, "log", _page_has(app, "Traceback"))


@pytest.mark.parametrize(
    ("name", "screen"),
    [
        ("ask", AskScreen("Another title", "Where do the experts live?", details="Empty takes the first line.")),
        ("confirm", ConfirmScreen("Change the system message?", "re-read 4,200 tokens", details="About 40 s.")),
    ],
    ids=["ask", "confirm"],
)
async def test_questions(name: str, screen: Screen[object]) -> None:
    app = Stage(screen=screen)
    await _show(app, NORMAL, name, lambda _: app.screen is screen)


async def test_the_palette() -> None:
    app = Stage()
    async with app.run_test(size=NORMAL) as pilot:
        app.push_screen(Palette())
        await wait_until(pilot, lambda: bool(app.screen.query(OptionList)))
        n_offered = sum(a.in_palette and a.scope in ("global", "chat", "turn") for a in ACTIONS)
        await wait_until(pilot, lambda: app.screen.query(OptionList).first().option_count == n_offered)
        await wait_until(pilot, lambda: not app.screen.query("LoadingIndicator.--visible"))
        check(app, "palette")


async def test_the_slash_menu() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test(size=NORMAL) as pilot:
        await pilot.pause()
        prompt.focus_editor()
        await pilot.press("slash", "c", "down")
        await pilot.pause()
        check(app, "slash-menu")
