import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.tui.screens.confirm import AskScreen
from app.tui.screens.transcripts import TranscriptsScreen
from tests.app.tui.snapshot import wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui

TITLES = ("How slots work", "A garden plan", "[bold]markup[/] and \x1b[31mred\u202e", "\u65e5\u672c\u8a9e")


def make_store(folder: Path, titles: tuple[str, ...] = TITLES) -> TranscriptStore:
    """One conversation a title, the last one newest."""
    store = TranscriptStore(folder / "transcripts")
    for number, title in enumerate(titles):
        with store.create() as transcript:
            ChatSession(transcript).add_user(f"{title}\nsome words about number{number} and experts")
            path = transcript.path_on_disk
        when = datetime(2026, 11, 20 + number, 9, 30, tzinfo=UTC).timestamp()
        os.utime(path, (when, when))
    return store


def _shown(app: Stage) -> list[str]:
    options = app.screen.query_one(OptionList).options
    return [str(option.prompt).split("\n")[0] for option in options]


async def _open(pilot: Pilot[int], app: Stage, n: int) -> None:
    await wait_until(pilot, lambda: isinstance(app.screen, TranscriptsScreen) and len(_shown(app)) == n)


async def test_all_are_listed_newest_first_and_shown_harmlessly(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=make_store(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        assert _shown(app) == [
            "\u65e5\u672c\u8a9e",
            "[bold]markup[/] and \u241b[31mred<U+202E>",
            "A garden plan",
            "How slots work",
        ]
        facts = str(app.screen.query_one(OptionList).options[0].prompt).split("\n")[1]
        when = datetime(2026, 11, 23, 9, 30, tzinfo=UTC).astimezone().strftime("%Y-%m-%d %H:%M")
        assert facts.strip().startswith(f"{when} | 1 message | ")


async def test_a_title_as_long_as_a_book_and_a_flood_of_accents_are_shown_in_two_lines(tmp_path: Path) -> None:
    store = make_store(tmp_path, ("a", "b"))
    first, second = store.list()
    store.rename(first.id, "x" * 1_000_000)
    store.rename(second.id, "e" + "\u0301" * 10_000)
    app = Stage(screen=TranscriptsScreen(), store=store)
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 2)
        options = app.screen.query_one(OptionList)
        assert options.virtual_size.height == 4, "a title and its facts each"
        assert all(len(title) <= 300 for title in _shown(app))


async def test_typing_searches_and_shows_where(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=make_store(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("slash", *"number1")
        await _open(pilot, app, 1)
        assert _shown(app) == ["A garden plan"]
        assert "words about number1" in str(app.screen.query_one(OptionList).options[0].prompt)
        await pilot.press("escape")
        await _open(pilot, app, 4)
        assert app.screen.query_one(OptionList).has_focus
        await pilot.press("slash", *"zzzz")
        await wait_until(pilot, lambda: not _shown(app))
        note = app.screen.query_one(".panel-note", Static)
        await wait_until(pilot, lambda: "Nothing has all the words of 'zzzz'" in str(note.render()))


async def test_arrows_move_the_mark_from_the_search_box_and_enter_resumes(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    app = Stage(screen=TranscriptsScreen("experts"), store=store)
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("slash", "down", "down", "up", "down", "enter")
        await wait_until(pilot, lambda: len(app.opened) == 1)
        assert app.opened == [store.list()[2].id]
        assert not isinstance(app.screen, TranscriptsScreen)


async def test_a_title_is_changed_and_taken_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    app = Stage(screen=TranscriptsScreen(), store=store)
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("down", "down", "r")
        await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
        app.screen.query_one(Input).value = "  Beds and borders "
        await pilot.press("enter")
        await wait_until(pilot, lambda: any(info.title == "Beds and borders" for info in store.list()))
        await wait_until(pilot, lambda: isinstance(app.screen, TranscriptsScreen) and "Beds and borders" in _shown(app))
        await pilot.press("r")
        await wait_until(pilot, lambda: isinstance(app.screen, AskScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(app.screen, TranscriptsScreen))
        assert any(info.title == "Beds and borders" for info in store.list())


async def test_deleting_needs_no_question_as_it_can_be_taken_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    app = Stage(screen=TranscriptsScreen(), store=store)
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("down", "down", "d")
        await _open(pilot, app, 3)
        assert "A garden plan" not in _shown(app) and len(store.list()) == 3
        await pilot.press("delete")
        await _open(pilot, app, 2)
        await pilot.press("u")
        await _open(pilot, app, 3)
        await pilot.press("u")
        await _open(pilot, app, 4)
        assert {info.title for info in store.list()} == {info.title for info in make_store(tmp_path / "same").list()}
        await pilot.press("u")
        await wait_until(pilot, lambda: bool(app._notifications))
        await pilot.pause()
        assert len(_shown(app)) == 4


async def test_one_that_is_deleted_gives_its_place_to_the_next(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=make_store(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("down", "d")
        await _open(pilot, app, 3)
        assert app.screen.query_one(OptionList).highlighted == 1
        await pilot.press("d")
        await _open(pilot, app, 2)
        assert _shown(app) == ["\u65e5\u672c\u8a9e", "How slots work"]
        assert app.screen.query_one(OptionList).highlighted == 1, "what was the last gives it to the one before"


async def test_one_that_is_open_is_not_deleted_and_says_so(tmp_path: Path) -> None:
    store = make_store(tmp_path, ("only",))
    with store.open(store.list()[0].id):
        app = Stage(screen=TranscriptsScreen(), store=store)
        async with app.run_test(size=(80, 24)) as pilot:
            await _open(pilot, app, 1)
            await pilot.press("d")
            await wait_until(pilot, lambda: any("is open here. Begin or open" in n.message for n in app._notifications))
            assert len(store.list()) == 1


async def test_an_empty_list_and_a_folder_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    app = Stage(screen=TranscriptsScreen(), store=TranscriptStore(tmp_path / "none"))
    async with app.run_test(size=(80, 24)) as pilot:
        note = app.screen.query_one(".panel-note", Static)
        await wait_until(pilot, lambda: "There are none yet" in str(note.render()))
        await pilot.press("enter", "r", "d", "down", "up")  # nothing to do, and nothing breaks
    (tmp_path / "file").write_text("")
    app = Stage(screen=TranscriptsScreen(), store=TranscriptStore(tmp_path / "file"))
    async with app.run_test(size=(80, 24)) as pilot:
        note = app.screen.query_one(".panel-note", Static)
        await wait_until(pilot, lambda: "cannot be read" in str(note.render()))


async def test_letters_in_the_search_box_are_letters(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    app = Stage(screen=TranscriptsScreen(), store=store)
    async with app.run_test(size=(80, 24)) as pilot:
        await _open(pilot, app, 4)
        await pilot.press("slash", *"duqr?")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "duqr?"
        assert len(store.list()) == 4 and not app.done
