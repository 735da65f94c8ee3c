"""Tokens a second with the screen on and off: `python -m tests.app.tui.screen_rate MODEL [TOKENS] [ROUNDS]`.

Both ways the host's thread runs the engine and the transcript is saved; with the screen on the chat runs in a terminal
that is read, and draws every token. The two take turns, and the best of each counts: what disturbs can only slow.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from app.commands.ask import make_local
from app.host import Host, Turn, TurnFailed
from app.model_choice import ModelChoice
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.settings import Settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from app.tui.app import ArtesianApp
from engine.events import TurnDone
from engine.sampler_settings import SamplerSettings
from tests.app.tui.latency import Terminal

_QUESTION = "go on"


def child(model: Path, n_tokens: int, folder: Path, *, screen: bool) -> None:
    """One turn, saved in `folder`."""
    choice = ModelChoice(folder=model, origin="--model", is_demo=False)
    settings = Settings()
    how = make_reading(ReadingOptions(), settings, choice)
    backend = make_local(choice, "exact", "published", how, make_wishes(MemoryOptions(), settings, how))

    def session_of(transcript: Transcript) -> ChatSession:
        return ChatSession(transcript, sampling=SamplerSettings(temperature=0.0, seed=1), max_tokens=n_tokens)

    store = TranscriptStore(folder / "transcripts")
    transcript = store.create()
    if screen:
        app = ArtesianApp(
            backend_factory=lambda chosen: backend, choice=choice, store=store, settings=settings,
            session_of=session_of, transcript=transcript, keeps_drafts=False,
        )  # fmt: skip
        app.run()
        app.close()
        return
    session = session_of(transcript)
    node = session.add_user(_QUESTION)
    request = session.request(node)
    host = Host(lambda: backend)
    host.start()
    host.submit(Turn(number=1, request=request, sink=session.begin_reply(node, request)))
    while not any(isinstance(event, TurnDone | TurnFailed) for event in host.mailbox.take()):
        time.sleep(0.05)
    host.close()
    transcript.close()


def rate(model: Path, n_tokens: int, *, screen: bool) -> float:
    """Tokens a second of one run in a process of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tests.app.tui.screen_rate", str(model), str(n_tokens), "--child", name]
        if screen:
            terminal = Terminal([*command, "--screen"], folder)
            try:
                terminal.wait_for("Write a message")
                terminal.send(f"{_QUESTION}\r")
                terminal.wait_for("tokens in", 600)
                terminal.drain(1.0)
            finally:
                terminal.close()
        else:
            subprocess.run(command, check=True)
        store = TranscriptStore(folder / "transcripts")
        (info,) = store.list()
        head = store.open(info.id).head
        assert head is not None and head.stats is not None, "the turn did not end"
        return (head.stats.answer_tokens + head.stats.thinking_tokens) / head.stats.decode_s


def main() -> int:
    """Measure, or be the child."""
    words = sys.argv[1:]
    model, n_tokens = Path(words[0]), int(words[1]) if len(words) > 1 else 100
    if "--child" in words:
        child(model, n_tokens, Path(words[words.index("--child") + 1]), screen="--screen" in words)
        return 0
    rounds = int(words[2]) if len(words) > 2 else 3
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for screen in (False, True):
            found[screen].append(rate(model, n_tokens, screen=screen))
            print(f"screen {'on ' if screen else 'off'} {found[screen][-1]:.2f} tokens/s", flush=True)
    share = max(found[True]) / max(found[False])
    print(f"with the screen on {share:.1%} of the rate with it off; promised are 97%")
    return 0 if share >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
