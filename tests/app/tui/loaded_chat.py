"""The chat with an engine that never rests, for `latency`: LOAD TOKENS FOLDER.

LOAD is "engine", the real one on the tiny checkpoint with random weights, which talks to the end of its context; or
"spin", a thread that computes in Python and draws a token every 20 ms.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.backends.base import Backend, TurnRequest
from app.commands.ask import make_local
from app.model_choice import ModelChoice
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.settings import Settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.tui.app import ArtesianApp
from engine.events import Event, TextDelta, TokenDrawn
from engine.sampler_settings import SamplerSettings
from tests.app.tui.long_text import long_reply, pieces
from tests.fakes import ScriptedBackend, turn_done

TINY = Path(__file__).parents[2] / "data" / "tiny-a" / "checkpoint"
TOKEN_S = 0.02
READY = "ß"


class SpinningBackend(ScriptedBackend):
    """Holds the interpreter all the time."""

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """A long reply, a piece every `TOKEN_S`, computing in between."""
        yield TextDelta(text=f"{READY} ")
        total = 0
        for number, piece in enumerate(pieces(long_reply(20_000, seed=2))):
            end = time.perf_counter() + TOKEN_S
            while time.perf_counter() < end:
                total = (total * 31 + number) % 1_000_003
            if should_stop():
                break
            yield TokenDrawn(token=total)
            yield TextDelta(text=piece)
        yield turn_done("stopped")


class Marked:
    """The real engine; its first text is marked."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """What the engine gives, again and again."""
        yield TextDelta(text=f"{READY} ")
        while not should_stop():
            yield from (
                event for event in self._backend.generate(request, should_stop) if type(event) is not type(_END)
            )


_END = turn_done()


def backend_of(load: str, choice: ModelChoice) -> Backend:
    """The backend for a load."""
    if load == "spin":
        return SpinningBackend()
    reading = make_reading(ReadingOptions(), Settings(), choice)
    wishes = make_wishes(MemoryOptions(), Settings(), reading)
    return Marked(make_local(choice, "exact", "published", reading, wishes))  # type: ignore[return-value]


def main(load: str, n_tokens: int, folder: Path) -> None:
    """Run the chat on this terminal."""
    store = TranscriptStore(folder / "transcripts")
    transcript = store.create()
    session = ChatSession(transcript)
    if n_tokens:
        node = session.add_user("tell me everything")
        writer = session.begin_reply(node, session.request(node))
        writer.take(TextDelta(text=long_reply(n_tokens)))
        writer.take(turn_done("stop"))
    choice = ModelChoice(folder=TINY, origin="--model", is_demo=False)
    app = ArtesianApp(
        backend_factory=lambda chosen: backend_of(load, chosen),
        choice=choice,
        store=store,
        settings=Settings(),
        session_of=lambda one, _: ChatSession(one, sampling=SamplerSettings(temperature=1.0)),
        transcript=transcript,
        keeps_drafts=False,
    )
    app.run()
    app.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
