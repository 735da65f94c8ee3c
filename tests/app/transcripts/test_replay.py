"""Making replies again: what is run, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import TranscriptError
from app.transcripts.files import FileOps
from app.transcripts.records import Node
from app.transcripts.replay import Compared, compare, steps
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from engine.events import DoneReason, Event, TextDelta, TokenDrawn
from engine.prompt import AssistantMessage
from engine.sampler_settings import SamplerSettings
from tests.app.transcripts.chats import reply_of
from tests.fakes import ScriptedBackend, turn_done

_FACTS = ScriptedBackend().facts()


@pytest.fixture
def session(tmp_path: Path) -> ChatSession:
    transcript = Transcript(tmp_path / "a.jsonl", FileOps(), exists=False)
    return ChatSession(transcript, sampling=SamplerSettings(seed=9), max_tokens=50)


def _answer(session: ChatSession, node: Node, *words: str, reused: int = 0, reason: DoneReason = "stop") -> Node:
    goes_on = node.role == "assistant"
    request = session.continue_request(node) if goes_on else session.request(node)
    writer = session.begin_reply(node, request, _FACTS)
    for event in reply_of(words, first_id=100 + len(node.ids), done=turn_done(reason, reused_tokens=reused)):
        writer.take(event)
    return writer.node


def _compare(session: ChatSession, events: list[Event], **facts: str) -> Compared | None:
    class Changed(ScriptedBackend):
        def facts(self):  # type: ignore[no-untyped-def]
            return replace(super().facts(), **facts)

    (step,) = steps(session.transcript.path())
    return compare(step, Changed(events), lambda: False, lambda event: None)


def test_a_conversation_is_run_from_the_last_reply_that_began_with_nothing(session: ChatSession) -> None:
    """Kept states are part of how a reply was made; where none was used, nothing before it matters."""
    for reused in (0, 12, 0, 20, 30):
        _answer(session, session.add_user("?"), "a", "b", reused=reused)
    path = session.transcript.path()
    assert [step.turn for step in steps(path)] == [3, 4, 5]
    assert [step.turn for step in steps(path, 2)] == [1, 2]
    (alone,) = steps(path, 4, reread=True)
    assert alone.turn == 4 and alone.request.replay
    fourth = steps(path, 4)[-1]
    assert fourth.request == replace(session.request(path[6]), replay=False)
    assert fourth.ids == (100, 101) and fourth.run.sampling.seed == 9


def test_a_reply_that_was_gone_on_with_is_run_in_the_same_pieces(session: ChatSession) -> None:
    session.effort = "high"
    reply = _answer(session, session.add_user("?"), "a", "b", reason="stopped")
    session.effort = None
    _answer(session, reply, "c", reused=7)
    first, second = steps(session.transcript.path())
    assert (first.ids, second.ids) == ((100, 101), (102,))
    # Stopped by hand after two tokens: run for two, so that it ends by itself.
    assert (first.request.max_tokens, second.request.max_tokens) == (2, 50)
    assert second.request.messages[-1] == AssistantMessage(text="ab", ids=(100, 101), prefix=True)
    assert first.request.effort == second.request.effort == "high"


def test_equal_tokens_are_equal(session: ChatSession) -> None:
    _answer(session, session.add_user("?"), "a", "b")
    result = _compare(session, reply_of(["a", "b"]))
    assert result is not None and result.equal and result.n_tokens == 2
    assert (result.token_then, result.token_now, result.changes) == (None, None, ())


@pytest.mark.parametrize(
    ("ids", "n_same", "then", "now"),
    [((100, 7), 1, 101, 7), ((100,), 1, 101, None), ((100, 101, 102), 2, None, 102), ((), 0, 100, None)],
)
def test_the_first_token_that_differs_is_named(
    session: ChatSession, ids: tuple[int, ...], n_same: int, then: int | None, now: int | None
) -> None:
    _answer(session, session.add_user("?"), "a", "b")
    result = _compare(session, [*(TokenDrawn(token=one) for one in ids), turn_done()])
    assert result is not None and not result.equal
    assert (result.n_tokens, result.token_then, result.token_now) == (n_same, then, now)


def test_the_same_tokens_with_another_end_are_not_equal(session: ChatSession) -> None:
    _answer(session, session.add_user("?"), "a", "b")
    result = _compare(session, reply_of(["a", "b"], done=turn_done("length")))
    assert result is not None and not result.equal and result.n_tokens == 2


def test_what_has_changed_since_is_named_and_where_the_model_lies_is_not(session: ChatSession) -> None:
    _answer(session, session.add_user("?"), "a")
    result = _compare(session, reply_of(["b"], first_id=5), fingerprint="e" * 64, kernels="avx2", model="/elsewhere")
    assert result is not None
    assert [(one.name, one.then, one.now) for one in result.changes] == [
        ("fingerprint", "f" * 64, "e" * 64),
        ("kernels", "scripted", "avx2"),
    ]


def test_a_replay_that_is_stopped_says_nothing_of_the_reply(session: ChatSession) -> None:
    _answer(session, session.add_user("?"), "a", "b")
    assert _compare(session, [TokenDrawn(token=100), turn_done("stopped")]) is None


@pytest.mark.parametrize("turn", [0, 3])
def test_a_turn_that_is_not_there_is_refused(session: ChatSession, turn: int) -> None:
    _answer(session, session.add_user("?"), "a")
    with pytest.raises(TranscriptError, match="no turn"):
        steps(session.transcript.path(), turn)


def test_a_reply_without_tokens_cannot_be_compared(session: ChatSession) -> None:
    node = session.add_user("?")
    with pytest.raises(TranscriptError, match="no reply"):
        steps(session.transcript.path())
    writer = session.begin_reply(node, session.request(node), _FACTS)
    writer.take(TextDelta(text="typed in by hand"))
    writer.take(turn_done())
    with pytest.raises(TranscriptError, match="drew no tokens"):
        steps(session.transcript.path())


def test_a_stranger_may_write_anything_of_the_runs(session: ChatSession) -> None:
    _answer(session, session.add_user("?"), "a", "b", reason="stopped")
    path = session.transcript.path_on_disk
    session.transcript.close()
    lines = path.read_text().splitlines()
    for first in ([9, 9, 9], [-1, 0, 0], "x", [1, 50, 50]):
        run = json.dumps({"kind": "run", "id": "m2", "run": {"first": first, "max_tokens": -3, "sampling": 7}})
        path.write_text("\n".join([*lines, run]) + "\n")
        with Transcript(path, FileOps(), exists=True) as again:
            found = steps(again.path())
            assert found
            for step in found:
                assert step.ids and step.request.max_tokens >= 1
