"""What a chat asks of a transcript: requests for replies, replies saved as they come."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import TranscriptError
from app.transcripts.files import FileOps
from app.transcripts.records import Node
from app.transcripts.reply import SAVE_EVERY_S, SAVE_EVERY_TOKENS
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from engine.events import PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn
from engine.prompt import AssistantMessage, SystemMessage, UserMessage
from engine.sampler_settings import SamplerSettings
from tests.app.transcripts.chats import reply_of
from tests.app.transcripts.faulty import FaultyFiles
from tests.fakes import Clock, ScriptedBackend, turn_done

_FACTS = ScriptedBackend().facts()


@pytest.fixture
def transcript(tmp_path: Path) -> Transcript:
    return Transcript(tmp_path / "a.jsonl", FaultyFiles(), exists=False)


def _answer(session: ChatSession, node: Node, *words: str, reason: str = "stop") -> Node:
    writer = session.begin_reply(node, session.request(node), _FACTS)
    for event in reply_of(words, done=turn_done(reason)):  # type: ignore[arg-type]
        writer.take(event)
    return writer.node


def test_a_request_is_the_conversation_up_to_its_message(transcript: Transcript) -> None:
    session = ChatSession(transcript, system="Be brief.", effort="high", max_tokens=7)
    one = session.add_user("one?")
    _answer(session, one, "1", "!")
    two = session.add_user("two?")
    request = session.request(two)
    assert request.messages == (
        SystemMessage(text="Be brief."),
        UserMessage(parts=("one?",)),
        AssistantMessage(text="1!", ids=(100, 101)),
        UserMessage(parts=("two?",)),
    )
    assert (request.effort, request.max_tokens, request.replay, request.raw_text) == ("high", 7, False, None)
    assert session.request(one).messages == request.messages[:2]


def test_without_a_seed_each_request_draws_one_and_with_one_keeps_it(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    node = session.add_user("hi")
    assert session.request(node).sampling.seed != session.request(node).sampling.seed
    session.sampling = SamplerSettings(seed=5, temperature=0.5)
    assert session.request(node).sampling == SamplerSettings(seed=5, temperature=0.5)


def test_the_limit_of_a_reply_follows_the_effort_when_nobody_says(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    node = session.add_user("hi")
    assert session.request(node).max_tokens == 8_192
    session.effort = "max"
    assert session.request(node).max_tokens == 131_072


def test_the_system_message_begins_a_conversation_once(transcript: Transcript) -> None:
    session = ChatSession(transcript, system="Be brief.")
    first = session.add_user("one")
    session.add_user("two")
    edited = session.edit(first, "one, again")
    assert [node.role for node in transcript.nodes()].count("system") == 1
    assert edited.parent == first.parent and [node.text for node in transcript.path()] == ["Be brief.", "one, again"]


def test_the_first_message_can_be_edited_too(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    first = session.add_user("one")
    second = session.edit(first, "uno")
    assert second.parent is None and transcript.siblings(first) == [first, second]


def test_the_users_line_is_on_the_drive_before_the_first_token(tmp_path: Path) -> None:
    files = FaultyFiles()
    session = ChatSession(Transcript(tmp_path / "chats" / "a.jsonl", files, exists=False), system="Be brief.")
    node = session.add_user("one?")
    files.lose_power(tmp_path / "after")
    with Transcript(tmp_path / "after" / "a.jsonl", FileOps(), exists=True) as found:
        assert found.head == node and found.damage == ()


def test_a_reply_is_on_the_drive_every_half_second_and_every_64_tokens_and_at_the_end(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), Clock()
    session = ChatSession(Transcript(tmp_path / "chats" / "a.jsonl", files, exists=False), clock=clock)
    node = session.add_user("one?")
    writer = session.begin_reply(node, session.request(node), _FACTS)

    def draw(count: int) -> None:
        for _ in range(count):
            writer.take(TokenDrawn(token=len(writer.node.ids)))
            writer.take(TextDelta(text="x"))

    def on_drive(name: str) -> Node:
        files.lose_power(tmp_path / name)
        with Transcript(tmp_path / name / "a.jsonl", FileOps(), exists=True) as found:
            return found.node(writer.node.id)

    draw(3)
    assert writer.saved_tokens == 0
    clock.now_s += SAVE_EVERY_S
    draw(1)
    assert writer.saved_tokens == 4 and on_drive("half a second").ids == (0, 1, 2, 3)
    draw(SAVE_EVERY_TOKENS - 1)
    assert writer.saved_tokens == 4
    draw(1)
    assert writer.saved_tokens == 4 + SAVE_EVERY_TOKENS == len(on_drive("64").ids)
    draw(2)
    writer.take(turn_done())
    assert on_drive("end") == writer.node and writer.node.text == "x" * (6 + SAVE_EVERY_TOKENS)


def test_thinking_answer_notices_and_figures_are_kept(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    node = session.add_user("hi")
    writer = session.begin_reply(node, session.request(node))
    assert writer.node.facts is None
    writer.set_facts(_FACTS)
    writer.take(PrefillProgress(done_tokens=5, total_tokens=5, read_bytes=0, elapsed_s=0.1))
    done = turn_done(answer_tokens=1, thinking_tokens=1)
    for event in (TokenDrawn(token=1), ThinkingDelta(text="Hm."), TokenDrawn(token=2), TextDelta(text="Yes."), done):
        writer.take(event)
    reply = writer.finish()
    assert (reply.thinking, reply.text, reply.ids, reply.status) == ("Hm.", "Yes.", (1, 2), "complete")
    assert reply.stats == done.stats and reply.facts == _FACTS


@pytest.mark.parametrize(
    ("reason", "status"), [("stop", "complete"), ("length", "cut"), ("context", "cut"), ("stopped", "stopped")]
)
def test_how_a_reply_ended_is_kept(transcript: Transcript, reason: str, status: str) -> None:
    session = ChatSession(transcript)
    reply = _answer(session, session.add_user("hi"), "a", reason=reason)
    assert (reply.status, reply.reason) == (status, reason)


def test_a_reply_that_failed_keeps_what_it_had_and_says_why(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    node = session.add_user("hi")
    writer = session.begin_reply(node, session.request(node), _FACTS)
    writer.take(TextDelta(text="Half an"))
    reply = writer.finish("shard 3: cannot be read")
    assert (reply.text, reply.status, reply.error) == ("Half an", "failed", "shard 3: cannot be read")
    # A reply that failed before its first token is no message of the conversation.
    empty = session.begin_reply(node, session.request(node), _FACTS).finish("no memory")
    after = session.add_user("still there?", empty.id)
    assert [type(message) for message in session.request(after).messages] == [UserMessage, UserMessage]


def test_a_reply_whose_process_died_is_shown_as_cut_off(tmp_path: Path) -> None:
    files = FaultyFiles()
    session = ChatSession(Transcript(tmp_path / "chats" / "a.jsonl", files, exists=False))
    node = session.add_user("hi")
    session.begin_reply(node, session.request(node), _FACTS).take(TextDelta(text="lost"))
    files.lose_power(tmp_path / "after")
    with Transcript(tmp_path / "chats" / "a.jsonl", FileOps(), exists=True) as other_window:
        assert other_window.nodes()[1].status == "growing"
    session.transcript.close()
    with Transcript(tmp_path / "chats" / "a.jsonl", FileOps(), exists=True) as later:
        assert (later.nodes()[1].status, later.nodes()[1].reason) == ("cut", None)


def test_regenerating_makes_a_sibling(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    node = session.add_user("hi")
    first, second = _answer(session, node, "a"), _answer(session, node, "b")
    assert transcript.siblings(first) == [first, second] and transcript.head == second
    assert transcript.select(first) == first and transcript.path() == [node, first]


def test_going_on_keeps_the_seed_the_mode_and_the_text_before(transcript: Transcript) -> None:
    session = ChatSession(transcript, effort="low")
    node = session.add_user("count")
    reply = _answer(session, node, "1, ", "2, ", reason="stopped")
    session.effort = "high"
    request = session.continue_request(reply)
    assert request.messages[-1] == AssistantMessage(text="1, 2, ", ids=(100, 101), prefix=True)
    assert request.effort == "low" and request.sampling.seed == reply.runs[0].sampling.seed
    writer = session.begin_reply(reply, request, _FACTS)
    assert writer.node.status == "growing"
    for event in reply_of(["3."], first_id=102):
        writer.take(event)
    whole = writer.node
    assert (whole.id, whole.text, whole.ids, whole.status) == (reply.id, "1, 2, 3.", (100, 101, 102), "complete")
    assert [(run.first, run.first_text, run.reason) for run in whole.runs] == [(0, 0, "stopped"), (2, 6, "stop")]
    transcript.close()
    with Transcript(transcript.path_on_disk, FileOps(), exists=True) as again:
        assert again.nodes() == [node, whole]


def test_a_reply_that_thinks_goes_on_for_as_long_as_one_that_thinks(transcript: Transcript) -> None:
    session = ChatSession(transcript, effort="max")
    reply = _answer(session, session.add_user("count"), "1, ", reason="stopped")
    session.effort = None
    assert session.continue_request(reply).max_tokens == 131_072
    session.max_tokens = 7  # said by the user
    assert session.continue_request(reply).max_tokens == 7


def test_a_reply_that_was_answered_cannot_be_gone_on_with(transcript: Transcript) -> None:
    session = ChatSession(transcript)
    reply = _answer(session, session.add_user("hi"), "a", reason="stopped")
    session.add_user("and?")
    with pytest.raises(TranscriptError, match="has been answered"):
        session.begin_reply(reply, session.continue_request(reply), _FACTS)


def test_a_growing_reply_costs_the_same_however_long_it_is(tmp_path: Path) -> None:
    clock = Clock()
    session = ChatSession(Transcript(tmp_path / "a.jsonl", FaultyFiles(), exists=False), clock=clock)
    node = session.add_user("hi")
    writer = session.begin_reply(node, replace(session.request(node), max_tokens=10**6), _FACTS)
    for number in range(20_000):
        writer.take(TokenDrawn(token=number))
        writer.take(TextDelta(text="word "))
    assert len(writer.finish().ids) == 20_000  # copying the whole with each token would take minutes
