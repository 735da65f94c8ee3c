"""A short chat of everything that writes, for tests that break the file under it."""

from collections.abc import Callable, Iterator, Sequence

from app.transcripts.reply import ReplyWriter
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from engine.events import Event, Notice, TextDelta, ThinkingDelta, TokenDrawn, TurnDone
from tests.fakes import Clock, ScriptedBackend, turn_done

Ack = Callable[[ReplyWriter | None], None]
"""Gets the writer of the reply that is being made."""


def nothing(writer: ReplyWriter | None) -> None:
    """Nobody wants to know."""


def reply_of(
    words: Sequence[str], *, first_id: int = 100, thought: str = "", done: TurnDone | None = None
) -> list[Event]:
    """The events of a reply of these words, a token each."""
    events: list[Event] = [TokenDrawn(token=1), ThinkingDelta(text=thought)] if thought else []
    for number, word in enumerate(words):
        events += [TokenDrawn(token=first_id + number), TextDelta(text=word)]
    return [*events, done or turn_done(answer_tokens=len(words))]


def chat(transcript: Transcript, after_each: Ack = nothing) -> Iterator[None]:
    """Two turns, one with a notice and one stopped, an edit, a branch gone back to, a title. Yields between steps.

    `after_each` runs after each call that writes.
    """
    clock = Clock()
    session = ChatSession(transcript, system="Be brief.", clock=clock)

    def answer(question: str, events: Sequence[Event], parent: str | None = None) -> str:
        node = session.add_user(question) if parent is None else session.add_user(question, parent)
        after_each(None)
        backend = ScriptedBackend(events)
        request = session.request(node)
        writer = session.begin_reply(node, request, backend.facts())
        after_each(writer)
        for event in backend.generate(request, lambda: False):
            clock.now_s += 0.3
            writer.take(event)
            after_each(writer)
        writer.finish()
        after_each(writer)
        return node.id

    first = answer("one?", reply_of(["He", "llo", " there", "."], thought="Hm."))
    yield
    answer("two?", [*reply_of(["a ", "b "])[:-1], Notice(text="drive b fails"), turn_done("stopped")])
    yield
    answer("one, please?", reply_of(["Dif", "ferent"]), transcript.node(first).parent)
    yield
    transcript.select(first)
    after_each(None)
    transcript.rename("A title")
    after_each(None)
    yield
