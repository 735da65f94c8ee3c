"""The chat with a backend that answers on cue."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from app.backends.base import Backend, OpenEvent, PromptCost, TurnRequest
from app.model_choice import ModelChoice
from app.paths import demo_folder
from app.settings import Settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from app.tui.app import ArtesianApp
from engine.errors import Stopped
from engine.events import Event, TextDelta, TokenDrawn
from tests.app.tui.snapshot import wait_until
from tests.fakes import ScriptedBackend, turn_done


class CueBackend(ScriptedBackend):
    """Answers each turn with the next script; before an event that is None it waits for `cue`, or for the stop."""

    def __init__(self, *scripts: Sequence[Event | None], waits_to_open: bool = False) -> None:
        super().__init__()
        self.turns: list[TurnRequest] = []
        """What was asked to be generated."""
        self.cost = PromptCost(prompt_tokens=10, reused_tokens=4, context_tokens=4096, expected_s=None)
        self.measured: list[TurnRequest] = []
        self.failure_to_measure: Exception | None = None
        self.failure_to_open: Exception | None = None
        self.loading: list[OpenEvent] = []
        self._scripts = list(scripts)
        self._cues = threading.Semaphore(0)
        self._open_cue = threading.Semaphore(0 if waits_to_open else 1)

    def cue(self) -> None:
        """Let the script go on behind its next None."""
        self._cues.release()

    def let_open(self) -> None:
        """Let the loading end."""
        self._open_cue.release()

    def measure(self, request: TurnRequest) -> PromptCost:
        """What `cost` says."""
        self.measured.append(request)
        if self.failure_to_measure is not None:
            raise self.failure_to_measure
        return self.cost

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        """Report what `loading` holds, and wait for `let_open` where it was asked for."""
        for event in self.loading:
            on_event(event)
        while not self._open_cue.acquire(timeout=0.01):
            if should_stop():
                raise Stopped("stopped")
        if self.failure_to_open is not None:
            failure, self.failure_to_open = self.failure_to_open, None
            self._open_cue.release()
            raise failure
        self.opened = True

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """The next script, cut off with "stopped" when asked."""
        self.turns.append(request)
        for event in self._scripts.pop(0) if self._scripts else said("yes"):
            if event is None:
                while not self._cues.acquire(timeout=0.01):
                    if should_stop():
                        break
            if should_stop():
                yield turn_done("stopped")
                return
            if isinstance(event, Exception):
                raise event
            if event is not None:
                yield event


def said(text: str, *, n_chars: int = 4) -> list[Event | None]:
    """A script that says `text` and ends."""
    events: list[Event | None] = []
    for begin in range(0, len(text), n_chars):
        events += [TokenDrawn(token=begin), TextDelta(text=text[begin : begin + n_chars])]
    return [*events, turn_done("stop", answer_tokens=len(events) // 2)]


@asynccontextmanager
async def chat(
    folder: Path,
    backend: Backend,
    *,
    size: tuple[int, int] = (80, 24),
    theme: str | None = None,
    resume: str | None = None,
    is_demo: bool = True,
) -> AsyncIterator[tuple[ArtesianApp, Pilot[int]]]:
    """The app on `backend`, its transcripts in `folder`."""
    store = TranscriptStore(folder / "transcripts")
    choice = ModelChoice(folder=demo_folder(), origin="demo", is_demo=is_demo)

    def session_of(transcript: Transcript, _: ModelChoice) -> ChatSession:
        return ChatSession(transcript)

    app = ArtesianApp(
        backend_factory=lambda chosen: backend,
        choice=choice,
        store=store,
        settings=Settings(theme=theme),
        session_of=session_of,
        transcript=None if resume is None else store.open(resume),
        keeps_drafts=False,
    )
    app.animation_level = "none"
    app.screen_share = 1.0  # there is no engine that it would be kept from
    try:
        async with app.run_test(size=size) as pilot:
            await wait_until(pilot, lambda: app.screen is app.chat and bool(app.chat.view.messages))
            yield app, pilot
    finally:
        app.close()


def screen_text(app: ArtesianApp) -> str:
    """What stands on the screen."""
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.size) if height and width else []
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


async def send(pilot: Pilot[int], text: str) -> None:
    """Type `text` and press Enter."""
    app = pilot.app
    assert isinstance(app, ArtesianApp)
    app.chat.prompt.set_text(text)
    app.chat.prompt.focus_editor()
    await pilot.press("enter")


async def ask(pilot: Pilot[int], text: str) -> None:
    """Send `text` and wait for the end of the reply."""
    app = pilot.app
    assert isinstance(app, ArtesianApp)
    conversation = app.chat.conversation
    before = len(conversation.transcript.nodes())
    await send(pilot, text)
    await wait_until(pilot, lambda: len(conversation.transcript.nodes()) > before and conversation.running is None)
