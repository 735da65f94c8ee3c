"""Turns over kept states: what is read again, and that what is said is what one state that is never taken back says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.conversation import Conversations
from engine.events import Event, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn, TurnDone
from engine.model import Model
from engine.prompt import AssistantMessage, Message, Rendered, SystemMessage, UserMessage, render
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.state import State
from engine.tokens import ChatTokenizer
from tests.engine.conftest import TINY
from tests.engine.test_state import same

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

    def answer(self, prompt: Rendered, *, max_tokens: int = 7, **options: object) -> AssistantMessage:
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
    want, state = uninterrupted(tiny_model, prompts, 7)
    assert replies == want
    assert same(chat.all.kept.state, state)
