"""The engine's state beside a transcript: when it is restored and saved, and of what; trouble with it never counts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.backends.base import TurnRequest
from app.host import Host, Opened, Turn
from app.transcripts.records import Node
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from engine.errors import SavedStateError
from engine.events import DoneReason, TextDelta, TokenDrawn
from engine.prompt import AssistantMessage
from tests.app.test_host import Heard
from tests.fakes import ScriptedBackend, turn_done


class Noting(ScriptedBackend):
    """Notes what is saved and restored, and what it is asked to do in which order."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__([TokenDrawn(token=7), TextDelta(text="yes"), turn_done()])
        self.calls: list[tuple[str, object]] = []
        self.refuses = refuses

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]):  # type: ignore[no-untyped-def]
        self.calls.append(("turn", None))
        return super().generate(request, should_stop)

    def save_state(self, path: Path, request: TurnRequest) -> int:
        self.calls.append(("save", request))
        if self.refuses:
            raise SavedStateError(f"{path.name}: the state cannot be saved: no space", hint="Make room.")
        path.write_text("state")
        return 5

    def restore_state(self, path: Path) -> int:
        self.calls.append(("restore", path))
        if self.refuses:
            raise SavedStateError(f"{path.name}: the saved state is of another model", hint="It is read again.")
        return 5


def answered(session: ChatSession, reason: DoneReason = "stop", effort: str | None = None) -> Node:
    """One turn, and its reply."""
    session.effort = effort
    node = session.add_user("hi")
    writer = session.begin_reply(node, session.request(node))
    for event in (TokenDrawn(token=7), TextDelta(text="yes"), turn_done(reason)):
        writer.take(event)
    return writer.finish()


@pytest.fixture
def session(tmp_path: Path) -> ChatSession:
    return ChatSession(TranscriptStore(tmp_path / "chats").create(), saves_state=True)


def test_it_is_saved_once_for_each_message_and_only_when_wanted(session: ChatSession) -> None:
    backend, said = Noting(), list[str]()
    session.states.save(backend, said.append)
    assert backend.calls == []  # of an empty conversation there is nothing
    answered(session)
    session.states.save(backend, said.append)
    session.states.save(backend, said.append)
    assert [what for what, _ in backend.calls] == ["save"]
    answered(session)
    session.states.save(backend, said.append)
    assert [what for what, _ in backend.calls] == ["save", "save"]
    session.states.saves = False
    answered(session)
    session.states.save(backend, said.append)
    assert len(backend.calls) == 2 and said == []


@pytest.mark.parametrize(("reason", "prefix"), [("stop", False), ("stopped", True), ("length", True)])
def test_it_is_of_the_reply_as_the_next_turn_will_see_it(
    session: ChatSession, reason: DoneReason, prefix: bool
) -> None:
    backend = Noting()
    answered(session, reason, effort="low")
    session.effort = "max"  # changed since; the state is of the mode the reply was made in
    session.states.save(backend, lambda _: None)
    ((_, request),) = backend.calls
    assert isinstance(request, TurnRequest)
    assert request.messages[-1] == AssistantMessage(text="yes", ids=(7,), prefix=prefix)
    assert request.effort == "low"


def test_it_is_restored_once_into_each_backend(session: ChatSession) -> None:
    first, second = Noting(), Noting()
    answered(session)
    session.states.restore(first, lambda _: None)
    assert first.calls == []  # there is none yet
    session.states.save(first, lambda _: None)
    for backend in (second, second, first):
        session.states.restore(backend, lambda _: None)
    path = session.transcript.state_path
    assert second.calls == [("restore", path)]
    assert first.calls[1:] == [("restore", path)]


def test_trouble_is_said_and_nothing_more(session: ChatSession) -> None:
    backend, said = Noting(refuses=True), list[str]()
    answered(session)
    session.states.save(backend, said.append)
    session.transcript.state_path.write_text("state")
    session.states.restore(backend, said.append)
    assert [line.split(": ", 1)[1] for line in said] == [
        "the state cannot be saved: no space. Make room.",
        "the saved state is of another model. It is read again.",
    ]


def test_the_engine_thread_restores_before_a_turn_and_saves_when_there_is_time_or_at_the_end(
    session: ChatSession,
) -> None:
    backend = Noting()
    answered(session)
    session.transcript.state_path.write_text("state")
    host = Host(lambda: backend, idle_s=60)
    host.start()
    heard = Heard(host)
    heard.wait_for(Opened)
    node = session.add_user("more")
    request = session.request(node)
    host.submit(Turn(number=1, request=request, sink=session.begin_reply(node, request), states=session.states))
    heard.wait_for(type(turn_done()))
    assert host.close()
    assert [what for what, _ in backend.calls] == ["restore", "turn", "save"]
    assert backend.closed
