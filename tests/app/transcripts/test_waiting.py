"""A drive that takes its time keeps the thread that generates waiting, and nobody who shows what there is."""

import threading
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.records import Node
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from engine.events import TextDelta, TokenDrawn
from tests.fakes import Clock

_HANGS_S = 60.0


class _SlowDrive(FileOps):
    """Syncs wait, once that is wanted, until they are let go."""

    def __init__(self) -> None:
        self.waits = False
        self.waiting, self.let_go = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        if self.waits:
            self.waiting.set()
            assert self.let_go.wait(_HANGS_S)
        super().sync(fd)


def test_messages_are_shown_while_the_drive_takes_its_time(tmp_path: Path) -> None:
    files, clock = _SlowDrive(), Clock()
    with Transcript(tmp_path / "a.jsonl", files, exists=False) as transcript:
        session = ChatSession(transcript, clock=clock)
        node = session.add_user("one?")
        writer = session.begin_reply(node, session.request(node))
        files.waits = True

        def write() -> None:
            writer.take(TokenDrawn(token=100))
            clock.now_s += 1
            writer.take(TextDelta(text="Hello"))

        seen: list[tuple[Node | None, str, int]] = []
        shown = threading.Event()

        def show() -> None:
            seen.append((transcript.head, transcript.title, len(transcript.path())))
            shown.set()

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        assert files.waiting.wait(_HANGS_S)
        threading.Thread(target=show, daemon=True).start()
        assert shown.wait(10), "it waited for the drive"
        files.let_go.set()
        writing.join(_HANGS_S)
        ((head, title, n_messages),) = seen
        assert head is not None and (head.text, title, n_messages) == ("Hello", "one?", 2)
        assert writer.saved_tokens == 1
