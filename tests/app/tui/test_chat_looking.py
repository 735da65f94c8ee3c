"""Looking around in the chat: finding, folding, and reading along with another window."""

from pathlib import Path

import pytest

from app.tui.app import ArtesianApp
from engine.events import TextDelta, ThinkingDelta
from storage.errors import StorageError
from tests.app.tui.chat_stage import CueBackend, ask, chat, said, screen_text, send
from tests.app.tui.snapshot import wait_until
from tests.fakes import turn_done

pytestmark = pytest.mark.tui


def found(app: ArtesianApp) -> list[str]:
    """What stands at the places that are marked."""
    view = app.chat.view
    return [view.messages[one.message].row(one.row).text[one.start : one.end] for one in view.matches]


async def test_what_was_looked_for_is_found_again_when_the_line_is_opened_again(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("One slot, another slot."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+f", *"slot")
        await wait_until(pilot, lambda: "2 of 2" in screen_text(app))
        await pilot.press("escape")
        assert found(app) == []
        await pilot.press("ctrl+f", "enter")
        await wait_until(pilot, lambda: "1 of 2" in screen_text(app))  # around the end
        assert found(app) == ["slot", "slot"]


async def test_places_are_those_of_what_is_shown(tmp_path: Path) -> None:
    script = [ThinkingDelta(text="Which slot?"), TextDelta(text="A **bold** slot."), turn_done()]
    async with chat(tmp_path, CueBackend(script)) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+f", *"slot")
        await wait_until(pilot, lambda: "1 of 1" in screen_text(app))
        await pilot.press("ctrl+up", "t")
        assert found(app) == ["slot", "slot"]
        await pilot.press("r")
        assert found(app) == ["slot", "slot"]
        await wait_until(pilot, lambda: "A **bold** slot." in screen_text(app) and "1 of 2" in screen_text(app))


async def test_thinking_that_came_to_no_reply_is_over(tmp_path: Path) -> None:
    failing, waiting = [ThinkingDelta(text="Hmm."), StorageError("gone")], [ThinkingDelta(text="Hmm."), None]
    async with chat(tmp_path, CueBackend(failing, waiting)) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, "go")
        await wait_until(pilot, lambda: "! gone" in screen_text(app))
        assert "+ thought" in screen_text(app)
        await send(pilot, "again")
        await wait_until(pilot, lambda: "+ thinking" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopped by you" in screen_text(app))
        assert screen_text(app).count("+ thought") == 2 and "+ thinking" not in screen_text(app)


async def test_what_another_window_adds_moves_nothing_that_is_read_here(tmp_path: Path) -> None:
    lines = "\n\n".join(f"line {number}" for number in range(60))
    async with chat(tmp_path, CueBackend([TextDelta(text=lines), turn_done()])) as (app, pilot):
        await ask(pilot, "go")
        async with chat(tmp_path, CueBackend(), resume=app.chat.conversation.transcript.id) as (other, other_pilot):
            view = other.chat.view
            await other_pilot.press(*["ctrl+up"] * 30)
            rows, place, top = list(view.messages), view.cursor, view.scroll_offset.y
            assert place is not None and 0 < top < view.max_scroll_y
            await ask(pilot, "more")
            other.chat.check_saved()
            await wait_until(other_pilot, lambda: len(view.messages) == len(rows) + 2)
            assert (view.cursor, view.scroll_offset.y) == (place, top)
            assert all(now is before for now, before in zip(view.messages[1:], rows[1:], strict=False))
