"""Turns, prices and drafts of the chat where they cross each other, with a backend that answers on cue."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.backends.base import OpenEvent
from engine.errors import PromptError
from engine.events import Notice, TextDelta, TokenDrawn
from storage.errors import StorageError
from tests.app.tui.chat_stage import CueBackend, ask, chat, said, screen_text, send
from tests.app.tui.snapshot import wait_until
from tests.fakes import turn_done

pytestmark = pytest.mark.tui


async def test_commands_that_answer_again_can_be_typed(tmp_path: Path) -> None:
    first = [TokenDrawn(token=7), TextDelta(text="Half a "), turn_done("length")]
    async with chat(tmp_path, CueBackend(first, said("sentence."), said("Another."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press(*"/continue", "enter")
        await wait_until(pilot, lambda: "Half a sentence." in screen_text(app))
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        await pilot.press(*"/regenerate", "enter")
        await wait_until(pilot, lambda: "Another." in screen_text(app))


async def test_what_opening_has_to_say_is_said_while_a_message_waits(tmp_path: Path) -> None:
    class Telling(CueBackend):
        def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
            super().open(on_event, should_stop)
            on_event(Notice(text="direct reads are off"))

    backend = Telling(said("Hello."), waits_to_open=True)
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: app.chat.conversation.running is not None)
        backend.let_open()
        await wait_until(pilot, lambda: "Hello." in screen_text(app))
        assert [notice.message for notice in app._notifications] == ["direct reads are off"]


async def test_a_draft_comes_back_when_an_edit_is_left(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("One."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press(*"draft", "ctrl+up", "ctrl+up", "e")
        assert app.chat.prompt.text == "go"
        await pilot.press("escape")
        assert app.chat.prompt.text == "draft"


async def test_a_draft_comes_back_when_an_edit_is_sent(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("One."), said("Two."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press(*"draft", "ctrl+up", "ctrl+up", "e", "x", "enter")
        await wait_until(pilot, lambda: "Two." in screen_text(app))
        assert [node.text for node in app.chat.conversation.transcript.path()] == ["gox", "Two."]
        assert app.chat.prompt.text == "draft"


async def test_a_prompt_that_is_refused_comes_back_wherever_the_cursor_stands(tmp_path: Path) -> None:
    backend = CueBackend(said("One."), [None, PromptError("too long")])  # type: ignore[list-item]
    async with chat(tmp_path, backend) as (app, pilot):
        await ask(pilot, "first")
        await send(pilot, "second")
        await wait_until(pilot, lambda: len(backend.turns) == 2)
        await pilot.press(*["ctrl+up"] * 6)
        at = app.chat.view.at_cursor
        assert at is not None and at[1].source == "first"
        backend.cue()
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        assert app.chat.prompt.text == "second"


async def test_what_is_said_of_saving_goes_when_it_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.write_text("")
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        await ask(pilot, "go")
        app.chat.check_saved()
        await wait_until(pilot, lambda: "Not saved:" in screen_text(app))
        folder.unlink()
        app.chat.check_saved()
        await wait_until(pilot, lambda: app.chat.conversation.transcript.problem is None)
        app.chat.check_saved()
        await wait_until(pilot, lambda: "Not saved:" not in screen_text(app))


async def test_a_draft_that_is_refused_behind_one_branch_can_be_sent_behind_another(tmp_path: Path) -> None:
    backend = CueBackend(said("First."), said("Second."))
    async with chat(tmp_path, backend) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(backend.turns) == 2 and app.chat.conversation.running is None)
        backend.failure_to_measure = PromptError("too long here")
        await pilot.press(*"long")
        await wait_until(pilot, lambda: "too long here" in screen_text(app))
        backend.failure_to_measure = None
        await pilot.press("ctrl+up", "left_square_bracket")
        await wait_until(pilot, lambda: "First." in screen_text(app))
        await pilot.press("escape", "enter")
        await wait_until(pilot, lambda: len(backend.turns) == 3)
        assert [node.text for node in app.chat.conversation.transcript.path()][:3] == ["go", "First.", "long"]


async def test_a_drive_that_fails_while_the_price_is_asked_for_keeps_nothing_from_being_sent(tmp_path: Path) -> None:
    backend = CueBackend()
    backend.failure_to_measure = StorageError("gone for now")
    async with chat(tmp_path, backend) as (app, pilot):
        await pilot.press(*"hello")
        await wait_until(pilot, lambda: "gone for now" in screen_text(app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(backend.turns) == 1)


async def test_a_turn_that_fails_leaves_the_figures_of_the_last_one(tmp_path: Path) -> None:
    failing = [StorageError("gone")]
    async with chat(tmp_path, CueBackend(said("One."), failing)) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, "go")
        figures = app.last_turn
        assert figures is not None
        await pilot.press("ctrl+n")
        await ask(pilot, "go")
        assert app.last_turn is figures


async def test_the_price_of_a_first_message_is_that_of_what_is_sent(tmp_path: Path) -> None:
    backend = CueBackend()
    async with chat(tmp_path, backend) as (_, pilot):
        await send(pilot, "/system Be brief.")
        await pilot.press(*"hello")
        await wait_until(pilot, lambda: "hello" in str(backend.measured[-1:]))
        priced = backend.measured[-1]
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(backend.turns) == 1)
        assert len(priced.messages) == 2 and priced.messages == backend.turns[0].messages
