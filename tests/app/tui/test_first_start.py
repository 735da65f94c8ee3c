"""What a first start says beside the demo: which checkpoint there is, or what the released model would be here."""

from pathlib import Path

import pytest

from app.tui import app as app_module
from app.tui.app import ArtesianApp
from tests.app.tui.chat_stage import CueBackend, chat
from tests.app.tui.snapshot import NARROW, NORMAL, wait_until

pytestmark = pytest.mark.tui

_SAID = "The real model takes 510 GB on the drives. On this machine: expect about 7 tokens a second once warm."


def shown(app: ArtesianApp) -> str:
    """The conversation's rows as they are painted."""
    view = app.chat.view
    return " ".join("".join(segment.text for segment in view.render_line(y)).strip() for y in range(view.size.height))


async def test_without_a_checkpoint_it_says_what_the_real_model_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "find_checkpoints", lambda places, stop: iter(()))
    monkeypatch.setattr(app_module, "real_model_text", lambda settings, options, folder: _SAID)
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        app._look_for_models()
        await wait_until(pilot, lambda: _SAID in shown(app))
        assert "`artesian plan --released` shows how." in shown(app)
        await pilot.press(*"hello", "enter")
        await wait_until(pilot, lambda: "hello" in shown(app))
        app.chat.tell_of_real_model("Too late.")  # a conversation that has begun is not disturbed
        await pilot.pause()
        assert "hello" in shown(app) and "Too late." not in shown(app)


async def test_a_checkpoint_that_is_there_is_named_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "find_checkpoints", lambda places, stop: iter([tmp_path / "V4.1"]))
    monkeypatch.setattr(app_module, "real_model_text", lambda *arguments: pytest.fail("nobody needs it"))
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        app._look_for_models()
        await wait_until(pilot, lambda: any("V4.1: /model shows it" in note.message for note in app._notifications))


async def test_in_a_small_window_a_new_conversation_begins_with_what_answers_there(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(), size=NARROW) as (app, pilot):
        app.chat.tell_of_real_model(_SAID)
        await wait_until(pilot, lambda: "This is the bundled demo" in shown(app))
        app.chat.view.focus()
        await pilot.press("end")
        await wait_until(pilot, lambda: "f1 keys" in " ".join(shown(app).split()))
        await pilot.resize_terminal(*NORMAL)
        await wait_until(pilot, lambda: "This is the bundled demo" in shown(app))
