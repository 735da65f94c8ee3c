"""Turns over kept states: what is read again, and that what is said is what one state that is never taken back says."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine import kernels
from engine.conversation import Conversations
from engine.events import Event, Notice, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn, TurnDone
from engine.generate import generate
from engine.model import Model
from engine.prompt import AssistantMessage, ImagePart, Message, Rendered, SystemMessage, UserMessage, render
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.state import State
from engine.tokens import ChatTokenizer
from tests.engine.conftest import TINY
from tests.engine.drafting import opened
from tests.engine.test_state import close, same
from tests.geometries import CASES
from tests.maker import make

GREEDY = SamplerSettings(temperature=0)
QUESTIONS = ["what is a slot?", "and where", "who draws it up, and why does it rise?", "go on", "is that all there is"]


class Chat:
    """A conversation as a front end keeps it, over the conversations of one model."""

    def __init__(self, model: Model, *, thinking: bool = False, state_bytes: int = 10**9) -> None:
        self.model = model
        self.tokenizer = ChatTokenizer.load(TINY / "checkpoint")
        self.thinking = thinking
        self.all = Conversations(model, self.tokenizer, context_tokens=4096, chunk_tokens=16, state_bytes=state_bytes)
        self.messages: list[Message] = [SystemMessage(text="You are a deep well.")]
        self.events: list[Event] = []

    def prompt(self, messages: Sequence[Message] | None = None) -> Rendered:
        return render(self.tokenizer, self.messages if messages is None else messages, self.thinking)

    def answer(self, prompt: Rendered, *, max_tokens: int = 4, **options: object) -> AssistantMessage:
        """Run a turn, and what it said as a message."""
        arguments: dict[str, object] = {"sampler": Sampler(GREEDY), "stop_ids": frozenset()} | options
        self.events = list(self.all.answer(prompt, max_tokens=max_tokens, **arguments))  # type: ignore[arg-type]
        text, thinking = (
            "".join(e.text for e in self.events if isinstance(e, kind)) for kind in (TextDelta, ThinkingDelta)
        )
        drawn = tuple(e.token for e in self.events if isinstance(e, TokenDrawn))
        return AssistantMessage(text=text, reasoning=thinking or None, ids=drawn)

    def ask(self, question: str, **options: object) -> AssistantMessage:
        """One more turn of the conversation."""
        self.messages.append(UserMessage(parts=(question,)))
        reply = self.answer(self.prompt(), **options)  # type: ignore[arg-type]
        self.messages.append(reply)
        return reply

    @property
    def done(self) -> TurnDone:
        last = self.events[-1]
        assert isinstance(last, TurnDone)
        return last


def uninterrupted(model: Model, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[list[list[int]], State]:
    """One state from beginning to end, by hand: each prompt's new ids as one prefill, argmax, one-token decodes.

    The last token drawn is not run; the next prompt begins with it.
    """
    state = model.new_state()
    replies = []
    for prompt in prompts:
        result = model.forward(state, prompt[state.n_tokens :], "prefill")
        state.commit(result.step)
        reply = [int(result.logits[-1].argmax())]
        while len(reply) < n_tokens:
            result = model.forward(state, reply[-1:], "decode")
            state.commit(result.step)
            reply.append(int(result.logits[-1].argmax()))
        replies.append(reply)
    return replies, state


def test_five_turns_read_no_old_token_and_say_what_one_uninterrupted_run_says(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    prompts, replies = [], []
    for number, question in enumerate(QUESTIONS):
        held = chat.all.kept.state.n_tokens
        replies.append(list(chat.ask(question).ids))
        prompts.append(list(chat.prompt(chat.messages[:-1]).ids))
        stats = chat.done.stats
        assert (stats.prompt_tokens, stats.reused_tokens) == (len(prompts[-1]), held if number else 0)
        said = [e for e in chat.events if isinstance(e, PrefillProgress)]
        assert {e.reused_tokens for e in said} == {held}
        assert said[-1].done_tokens == said[-1].total_tokens == len(prompts[-1]) - held
    want, state = uninterrupted(tiny_model, prompts, 4)
    assert replies == want
    # To the last bit where a row's sums do not depend on the company it is in.
    assert (close if kernels.native() is None else same)(chat.all.kept.state, state)


def test_where_both_rules_agree_the_turns_say_what_one_decode_of_every_id_says(tmp_path: Path) -> None:
    # Everything compressed is selected in this model, so that reading a prompt and decoding it are one function.
    case = CASES["nothing-cut"]
    with opened(make(tmp_path / "model", case.geometry, seed=case.seed), drafts=False) as model:
        chat = Chat(model)
        for question in QUESTIONS:
            chat.ask(question, max_tokens=3)
        assert chat.done.stats.reused_tokens > 0
        last = chat.prompt(chat.messages[:-1])
        state = model.new_state()
        state.commit(model.forward(state, last.ids[:1], "prefill").step)
        drawn = {first + i for first, end in last.drawn for i in range(end - first)}
        for position, token in enumerate(last.ids[1:], 1):
            result = model.forward(state, [token], "decode")
            state.commit(result.step)
            if position + 1 in drawn:
                assert int(result.logits[-1].argmax()) == last.ids[position + 1]
        assert int(result.logits[-1].argmax()) == chat.messages[-1].ids[0]  # type: ignore[union-attr]


def alone(model: Model, prompt: Rendered, n_tokens: int = 4) -> list[int]:
    """A greedy reply by a state of its own; past answers by the decode rule, as they were drawn.

    An answer's last token and what follows it up to the next answer is one prompt, as in the turns.
    """
    state = model.new_state()
    begin = 0
    for first, end in prompt.drawn:
        state.commit(model.forward(state, prompt.ids[begin:first], "prefill").step)
        for position in range(first, end - 1):
            state.commit(model.forward(state, prompt.ids[position : position + 1], "decode").step)
        begin = end - 1
    result = model.forward(state, prompt.ids[begin:], "prefill")
    state.commit(result.step)
    reply = [int(result.logits[-1].argmax())]
    while len(reply) < n_tokens:
        result = model.forward(state, reply[-1:], "decode")
        state.commit(result.step)
        reply.append(int(result.logits[-1].argmax()))
    return reply


def test_regenerating_reads_one_marker_again_and_gives_the_same(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    first = chat.ask(QUESTIONS[0])
    again = chat.answer(chat.prompt(chat.messages[:-1]))
    assert again == first
    stats = chat.done.stats
    assert stats.prompt_tokens - stats.reused_tokens == 1


def test_an_edited_message_goes_on_from_the_turn_before_it(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    for question in QUESTIONS[:3]:
        chat.ask(question)
    shared = len(chat.prompt(chat.messages[:3]).ids) - 2  # up to the end token of the first reply: no AST, no END
    edited = chat.prompt([*chat.messages[:3], UserMessage(parts=("and whence",))])
    want = alone(tiny_model, edited)
    assert list(chat.answer(edited).ids) == want
    assert chat.done.stats.reused_tokens == shared


def test_ten_branches_cost_what_differs_and_each_is_as_if_it_were_alone(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    chat.ask("a long beginning " * 8)
    kept = chat.all.kept
    shared_tokens, live_bytes = kept.state.n_tokens, kept.state.n_bytes
    before = kept.n_bytes
    prompts = [chat.prompt([*chat.messages, UserMessage(parts=(f"branch {n}",))]) for n in range(10)]
    replies = [list(chat.answer(prompt).ids) for prompt in prompts]
    config = tiny_model.config
    # A branch: two tails (before the reply, behind it) and its own groups; what is shared is in there once.
    own_tokens = max(len(prompt.ids) for prompt in prompts) + 4 - shared_tokens
    rows = sum((config.head_dim + config.index_head_dim) * 4 / config.ratio(s) for s in config.kv_source_layers)
    tail = config.n_layers * config.window_size * config.head_dim * 4
    waiting = sum(2 * (config.ratio(s) - 1) * config.head_dim * 4 for s in config.kv_source_layers)
    # And once the tail behind the end token that all of them begin with.
    most = 10 * (2 * (tail + waiting) + own_tokens * rows) + tail + waiting
    assert before < kept.n_bytes <= before + most
    assert own_tokens < shared_tokens / 4  # so that a copy of the beginning would show
    assert kept.state.n_bytes <= live_bytes * 2  # grown once, whatever the number of branches
    for number in (0, 9):
        assert replies[number] == alone(tiny_model, prompts[number])
        assert list(chat.answer(prompts[number]).ids) == replies[number]
        assert chat.done.stats.prompt_tokens - chat.done.stats.reused_tokens == 1


@pytest.mark.parametrize("sampling", [GREEDY, SamplerSettings(temperature=1.3, seed=5)])
@pytest.mark.parametrize("drawn_before", [1, 4])
def test_a_reply_that_was_stopped_goes_on_as_if_it_had_not_been(
    tiny_model: Model, sampling: SamplerSettings, drawn_before: int
) -> None:
    whole = Chat(tiny_model).ask(QUESTIONS[0], max_tokens=9, sampler=Sampler(sampling))
    chat = Chat(tiny_model)
    n_drawn = 0

    def stop() -> bool:
        return n_drawn >= drawn_before

    chat.messages.append(UserMessage(parts=(QUESTIONS[0],)))
    drawn = []
    for event in chat.all.answer(
        chat.prompt(), sampler=Sampler(sampling), max_tokens=9, stop_ids=frozenset(), should_stop=stop
    ):
        if isinstance(event, TokenDrawn):
            n_drawn += 1
            drawn.append(event.token)
        chat.events.append(event)
    assert chat.done.reason == "stopped" and len(drawn) == drawn_before
    text = "".join(e.text for e in chat.events if isinstance(e, TextDelta))
    begun = AssistantMessage(text=text, ids=tuple(drawn), prefix=True)
    more = chat.answer(chat.prompt([*chat.messages, begun]), max_tokens=9 - drawn_before, sampler=Sampler(sampling))
    assert (*drawn, *more.ids) == whole.ids
    assert text + more.text == whole.text
    # All but the last token had been run.
    assert chat.done.stats.prompt_tokens - chat.done.stats.reused_tokens == 1


def test_a_reply_goes_on_the_same_when_its_state_is_gone(tiny_model: Model) -> None:
    whole = Chat(tiny_model).ask(QUESTIONS[0], max_tokens=12)
    other = Chat(tiny_model)
    text = other.tokenizer.decode(whole.ids[:8]).lstrip("\n")
    messages = [*other.messages, UserMessage(parts=(QUESTIONS[0],))]
    prompt = other.prompt([*messages, AssistantMessage(text=text, ids=whole.ids[:8], prefix=True)])
    assert prompt.n_begun == 8
    assert other.answer(prompt, max_tokens=4).ids == whole.ids[8:]
    assert other.done.stats.reused_tokens == 0


def test_thinking_reads_the_last_answer_again_and_nothing_before_it(tiny_model: Model) -> None:
    chat = Chat(tiny_model, thinking=True)
    end_think = chat.tokenizer.id_of("</think>")
    first = chat.ask(QUESTIONS[0])
    n_first = len(chat.prompt(chat.messages[:-1]).ids)
    # The tiny model never stops thinking by itself.
    answer = chat.tokenizer.encode_plain("it does")
    chat.messages[-1] = replace(first, text="it does", ids=(*first.ids, end_think, *answer))
    chat.messages.append(UserMessage(parts=(QUESTIONS[1],)))
    prompt = chat.prompt()
    chat.answer(prompt)
    assert chat.done.stats.reused_tokens == n_first - 1  # up to AST; behind it stands END now, and the answer
    assert list(prompt.ids[n_first : n_first + len(answer)]) == answer


def test_replay_reads_everything_and_takes_nothing(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    chat.ask(QUESTIONS[0])
    chat.messages.append(UserMessage(parts=(QUESTIONS[1],)))
    prompt = chat.prompt()
    reply = chat.answer(prompt, replay=True)
    assert chat.done.stats.reused_tokens == 0
    result = tiny_model.forward(tiny_model.new_state(), prompt.ids, "prefill")
    assert reply.ids[0] == int(result.logits[-1].argmax())


def test_what_the_user_wrote_must_have_been_read_as_a_prompt(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    reply = chat.ask(QUESTIONS[0])
    before = len(chat.prompt(chat.messages[:-1]).ids)
    # The same ids as a reply that was drawn and as text that was not.
    drawn = chat.prompt([*chat.messages, UserMessage(parts=("so",))])
    assert chat.all.reusable(drawn) == before + len(reply.ids) - 1
    assert chat.all.reusable(replace(drawn, drawn=())) == before - 1


def test_little_memory_keeps_the_newest_states_and_says_the_same(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = tiny_model.new_state().tail()
    chat, roomy = Chat(tiny_model, state_bytes=0), Chat(tiny_model)
    monkeypatch.setattr("engine.kept.LEAST_STATE_BYTES", 60_000)
    assert tail.n_bytes < 60_000
    for question in QUESTIONS:
        assert chat.ask(question) == roomy.ask(question)
    assert chat.done.stats.reused_tokens == roomy.done.stats.reused_tokens  # the newest is always there
    assert 1 <= chat.all.kept.n_points < roomy.all.kept.n_points
    assert chat.all.kept.n_bytes <= 60_000 or chat.all.kept.n_points == 1


def test_the_first_event_comes_before_anything_is_run(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(tiny_model)
    monkeypatch.setattr(tiny_model, "forward", None)
    events = chat.all.answer(chat.prompt(), sampler=Sampler(GREEDY), max_tokens=1, stop_ids=())
    first = next(events)
    assert isinstance(first, PrefillProgress)
    assert (first.done_tokens, first.total_tokens) == (0, len(chat.prompt().ids))


def test_how_long_a_prompt_takes_is_told_by_the_turns_before(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    assert chat.all.expected_s(10) is None
    chat.ask(QUESTIONS[0], max_tokens=1)
    stats = chat.done.stats
    assert chat.all.expected_s(2 * stats.prompt_tokens) == pytest.approx(2 * stats.prefill_s, rel=0.01)


def test_a_long_reply_that_is_run_again_goes_through_the_slots_as_a_prompt_does(tmp_path: Path) -> None:
    case = CASES["experts-384"]
    ids = case.prompt()
    with opened(make(tmp_path / "model", case.geometry, seed=case.seed), drafts=False, slots=8) as model:
        rows = generate(
            model, model.new_state(), ids[:20], sampler=Sampler(GREEDY), max_tokens=1, stop_ids=(), begun_ids=ids[5:]
        )
        notices = [event.text for event in rows if isinstance(event, Notice)]
    # As one step of 20 tokens it would need some hundred experts of a layer at once, and ask for memory to hold them.
    assert notices == []


def test_a_question_after_one_that_was_stopped_while_it_was_read_is_answered_as_if_it_were_alone(
    tiny_model: Model,
) -> None:
    chat = Chat(tiny_model)
    n_read = 0

    def stop() -> bool:
        return n_read >= 16

    events = []
    for event in chat.all.answer(
        chat.prompt([*chat.messages, UserMessage(parts=("a long question " * 8,))]),
        sampler=Sampler(GREEDY), max_tokens=4, stop_ids=(), should_stop=stop,
    ):  # fmt: skip
        events.append(event)
        n_read = event.done_tokens if isinstance(event, PrefillProgress) else n_read
    assert isinstance(events[-1], TurnDone) and events[-1].reason == "stopped"
    assert chat.all.kept.state.n_tokens == 16  # the chunk that was whole
    other = chat.prompt([*chat.messages, UserMessage(parts=("another question",))])
    assert list(chat.answer(other).ids) == alone(tiny_model, other)
    again = chat.prompt([*chat.messages, UserMessage(parts=("a long question " * 8,))])
    chat.answer(again, max_tokens=1)
    assert chat.done.stats.reused_tokens == 16


def test_of_a_prompt_with_a_picture_nothing_is_taken_from_another_one(tiny_model: Model) -> None:
    chat = Chat(tiny_model)
    chat.ask(QUESTIONS[0])
    again = chat.prompt(chat.messages[:-1])
    assert chat.all.reusable(again) > 0
    assert chat.all.reusable(replace(again, images=(ImagePart(data=b"two pictures are one id"),))) == 0
