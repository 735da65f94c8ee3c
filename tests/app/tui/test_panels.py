"""The screens above the chat that only show something, and the two that ask a question."""

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from app.drafting import DraftOptions
from app.reading import MemoryOptions, ReadingOptions
from app.run_options import RunOptions
from app.settings import Settings
from app.transcripts.store import TranscriptStore
from app.tui.screens.confirm import AskScreen, ConfirmScreen
from app.tui.screens.drives import DrivesScreen
from app.tui.screens.help import HelpScreen
from app.tui.screens.logs import LogsScreen
from app.tui.screens.panel import PanelScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.transcripts import TranscriptsScreen
from app.tui.widgets.key_line import KeyLine
from app.tui.widgets.page import Page
from tests.app.test_turn_report import make_stats
from tests.app.tui.snapshot import NARROW, NORMAL, WIDE, wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui


async def _text(pilot: Pilot[int], app: Stage, part: str = "") -> str:
    await wait_until(pilot, lambda: bool(app.screen.query(Page)) and part in app.screen.query_one(Page).shown)
    return app.screen.query_one(Page).shown


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_escape_goes_back_to_the_chat(key: str) -> None:
    app = Stage(screen=HelpScreen())
    async with app.run_test() as pilot:
        await _text(pilot, app)
        await pilot.press(key)
        await wait_until(pilot, lambda: not isinstance(app.screen, PanelScreen))


async def test_help_on_another_screen_lists_what_works_there(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=TranscriptStore(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        app.push_screen(HelpScreen())
        shown = await _text(pilot, app, "[delete_transcript]")
        assert "[regenerate]" not in shown and "[close]" in shown and "[palette]" in shown


@pytest.mark.parametrize("size", [NARROW, NORMAL, WIDE])
async def test_no_line_of_a_page_is_wider_than_the_screen(size: tuple[int, int]) -> None:
    for screen in (HelpScreen(), DrivesScreen(), PlanScreen()):
        app = Stage(screen=screen, last_turn=make_stats())
        async with app.run_test(size=size) as pilot:
            shown = await _text(pilot, app, "Figures" if isinstance(screen, PlanScreen) else "")
            assert max(map(len, shown.splitlines())) <= size[0] - 2


async def test_a_page_is_laid_out_again_when_the_screen_changes() -> None:
    app = Stage(screen=HelpScreen())
    async with app.run_test(size=NORMAL) as pilot:
        await _text(pilot, app, "[send]")
        await pilot.resize_terminal(*NARROW)
        await wait_until(pilot, lambda: "[send]" not in app.screen.query_one(Page).shown)
        assert max(map(len, app.screen.query_one(Page).shown.splitlines())) <= NARROW[0]


async def test_where_the_time_goes_shows_the_turn_and_the_plan_and_follows() -> None:
    app = Stage(screen=PlanScreen())
    async with app.run_test(size=NORMAL) as pilot:
        shown = await _text(pilot, app, "Expect about")
        assert "No turn has been run yet." in shown and "RAM: " in shown and "What more would buy" in shown
        app.last_turn = make_stats()
        shown = await _text(pilot, app, "waiting for experts")
        assert "No turn has been run yet." not in shown


async def test_the_plan_is_that_of_the_options_of_the_command_line() -> None:
    options = RunOptions(
        memory=MemoryOptions(ram="8GB", context=512),
        reading=ReadingOptions(slots=3),
        drafting=DraftOptions(draft="off"),
        chunk_tokens=16,
    )
    app = Stage(screen=PlanScreen(), options=options, settings=Settings(context=1024, slots=4))
    async with app.run_test(size=WIDE) as pilot:
        shown = await _text(pilot, app, "Expect about")
        assert "of 8.00 GB, never above" in shown and "3 of 32 in each layer" in shown
        assert "512 tokens" in shown and "16 prompt tokens at a time" in shown and "draft head" not in shown


async def test_a_plan_that_cannot_be_made_says_why() -> None:
    app = Stage(screen=PlanScreen(), settings=Settings(ram="1MB"))
    async with app.run_test(size=NORMAL) as pilot:
        shown = await _text(pilot, app, "The plan\n")
        await wait_until(pilot, lambda: "It is being made" not in app.screen.query_one(Page).shown)
        shown = app.screen.query_one(Page).shown
        assert "Expect about" not in shown and len(shown.split("The plan\n")[1]) > 20


async def test_drives_are_shown_harmlessly() -> None:
    app = Stage(screen=DrivesScreen(), last_turn=make_stats())
    async with app.run_test(size=NORMAL) as pilot:
        shown = await _text(pilot, app, "nvme0")
        assert "nvme1\u241b[31m" in shown and "\x1b" not in shown


async def test_the_log_is_followed_and_its_end_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "artesian.log"
    app = Stage(screen=LogsScreen(log))
    async with app.run_test(size=NORMAL) as pilot:
        await _text(pilot, app, "Nothing has been logged.")
        log.write_text("".join(f"line {n} [bold]\x1b[2J\n" for n in range(100)))
        shown = await _text(pilot, app, "line 99")
        assert "\x1b" not in shown and "[bold]" in shown
        page = app.screen.query_one(Page)
        await wait_until(pilot, lambda: page.is_vertical_scroll_end and page.max_scroll_y > 0)
        await pilot.press("home")
        await wait_until(pilot, lambda: page.scroll_y == 0)
        log.write_text("".join(f"line {n}\n" for n in range(200)))
        await _text(pilot, app, "line 199")
        assert page.scroll_y == 0, "a reader who scrolled up is left there"


async def test_the_keys_that_have_room_are_shown_whole() -> None:
    app = Stage(screen=TranscriptsScreen(), store=None)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        line = app.screen.query_one(KeyLine)
        assert str(line.render()) == "Enter resume   / search   Esc back   r rename"
        await pilot.resize_terminal(*NORMAL)
        await wait_until(pilot, lambda: "undo" in str(line.render()))


@pytest.mark.parametrize(("key", "answer"), [("y", True), ("enter", True), ("n", False), ("escape", False)])
async def test_a_question_is_answered_by_a_key(key: str, answer: bool) -> None:
    app = Stage()
    answers: list[bool | None] = []
    async with app.run_test() as pilot:
        question = ConfirmScreen("Read [b]4,200[/b] tokens again?", "read them", details="About 40 s.")
        app.push_screen(question, answers.append)
        await pilot.pause()
        assert str(app.screen.query_one(".dialog-question", Static).render()) == "Read [b]4,200[/b] tokens again?"
        await pilot.press(key)
        await wait_until(pilot, lambda: answers == [answer])


async def test_a_line_is_asked_for_until_it_can_be_used() -> None:
    app = Stage()
    answers: list[str | None] = []
    async with app.run_test() as pilot:
        app.push_screen(AskScreen("Number", "x", check=lambda t: "" if t.isdigit() else "No number."), answers.append)
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(pilot, lambda: "No number." in str(app.screen.query_one("#dialog-problem", Static).render()))
        app.screen.query_one(Input).value = "12"
        await pilot.press("enter")
        await wait_until(pilot, lambda: answers == ["12"])
        app.push_screen(AskScreen("Number"), answers.append)
        await pilot.pause()
        await pilot.press("escape")
        await wait_until(pilot, lambda: answers == ["12", None])


async def test_where_the_time_goes_names_the_demo_not_its_folder() -> None:
    app = Stage(screen=PlanScreen())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert app.choice.is_demo
        heading = app.screen.query_one(".panel-heading", Static)
        assert str(heading.render()) == "Where the time goes  the bundled demo"
