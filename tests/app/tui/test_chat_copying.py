"""What is copied out of the chat, beside whole messages and the fences that stand by themselves."""

from pathlib import Path

import pytest

from tests.app.tui.chat_stage import CueBackend, ask, chat, said, screen_text, send
from tests.app.tui.snapshot import wait_until

pytestmark = pytest.mark.tui

NESTED = "1. Look:\n\n   ```sh\n   ls -l\n   ```\n\n> ```python\n> x = 1\n> ```"


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes what is copied."""
    for name in ("TMUX", "SSH_CONNECTION", "SSH_TTY", "VTE_VERSION", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize("is_raw", [False, True])
async def test_code_in_a_list_or_a_quotation_is_copied_whichever_way_it_is_shown(tmp_path: Path, is_raw: bool) -> None:
    async with chat(tmp_path, CueBackend(said(NESTED))) as (app, pilot):
        await ask(pilot, "go")
        if is_raw:
            await pilot.press("ctrl+up", "r", "escape")
            await wait_until(pilot, lambda: "> ```python" in screen_text(app))
        await send(pilot, "/code 1")
        await wait_until(pilot, lambda: app.clipboard == "ls -l\n")
        await send(pilot, "/code")
        await wait_until(pilot, lambda: app.clipboard == "x = 1\n")


async def test_of_an_empty_conversation_nothing_is_copied(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        app.copy_to_clipboard("from before")
        await send(pilot, "/copy-all")
        await wait_until(pilot, lambda: "There is nothing to copy yet." in screen_text(app))
        assert app.clipboard == "from before"
