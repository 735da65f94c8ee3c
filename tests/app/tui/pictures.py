"""Makes the pictures of the README: `python -m tests.app.tui.pictures`, from the root of the repository.

The answer and the plan are those of the bundled demo on this machine. The prompt being read is the real screen with the
figures of a test, as the demo reads its prompts too fast to be seen.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import cast

from textual.widgets import OptionList

from app.commands.ask import make_local
from app.mirroring import MirrorDesk
from app.model_choice import ModelChoice
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.settings import Settings
from app.tui.screens.mirror import MirrorScreen
from tests.app.tui.chat_stage import CueBackend, ask, chat, screen_text, send
from tests.app.tui.mirror_stage import StillDesk
from tests.app.tui.snapshot import picture, wait_until
from tests.app.tui.stage import Stage
from tests.app.tui.test_chat_looks import QUESTION, READING

FOLDER = Path("assets/pictures")
SIZE = (96, 28)


async def reading(folder: Path) -> None:
    """A long prompt on its way in."""
    async with chat(folder, CueBackend([READING, None]), size=SIZE) as (app, pilot):
        await send(pilot, QUESTION)
        await wait_until(pilot, lambda: "reading prompt" in screen_text(app) and "reading |" in screen_text(app))
        (FOLDER / "reading.svg").write_text(picture(app), encoding="utf-8")


async def answering(folder: Path) -> None:
    """An answer with its figures, then where its time went."""
    choice = ModelChoice(folder=Path("assets/demo"), origin="--model", is_demo=True)
    settings = Settings()
    how = make_reading(ReadingOptions(), settings, choice)
    backend = make_local(choice, "exact", "published", how, make_wishes(MemoryOptions(), settings, how))
    async with chat(folder, backend, size=SIZE) as (app, pilot):
        app.choice = choice
        for question in ("what is an expert slot?", "what is a mirror?"):
            await ask(pilot, question)
        await wait_until(pilot, lambda: "saved" in screen_text(app) and "ready |" in screen_text(app), 60.0)
        (FOLDER / "answer.svg").write_text(picture(app), encoding="utf-8")
        app.run_action_id("plan")
        await wait_until(pilot, lambda: "Answering" in screen_text(app) and "being made" not in screen_text(app), 60.0)
        await pilot.pause(0.5)
        (FOLDER / "plan.svg").write_text(picture(app), encoding="utf-8")


async def places() -> None:
    """Where copies could go, on a machine that is made up."""
    app = Stage(screen=MirrorScreen(lambda: cast(MirrorDesk, StillDesk())))
    async with app.run_test(size=(96, 18)) as pilot:
        await wait_until(pilot, lambda: app.screen.query_one(OptionList).option_count == 3)
        await pilot.pause(0.2)
        (FOLDER / "mirror.svg").write_text(picture(app), encoding="utf-8")


async def main() -> int:
    """Make them all."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        await reading(Path(first))
        await answering(Path(second))
    await places()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
