"""One turn as text: the token loop with its ids split into thinking and answer."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from engine.draft.drafter import Drafter
from engine.events import Event, TokenDrawn, TurnDone
from engine.generate import generate
from engine.model import Model, ShouldStop, never
from engine.reply import ReplyParser
from engine.sampling import Sampler
from engine.state import State
from engine.tokens import ChatTokenizer


def run_turn(
    model: Model,
    state: State,
    tokenizer: ChatTokenizer,
    prompt_ids: Sequence[int],
    *,
    sampler: Sampler,
    max_tokens: int,
    thinking: bool,
    stop_ids: Collection[int],
    stop: Sequence[str] = (),
    drafter: Drafter | None = None,
    said_ids: Sequence[int] = (),
    n_begun: int = 0,
    continued: bool = False,
    chunk_tokens: int = 512,
    context_tokens: int | None = None,
    should_stop: ShouldStop = never,
) -> Iterator[Event]:
    """Answer a rendered prompt: every event of `generate`, and the text of each token as soon as it is whole.

    `thinking` says whether the reply begins inside an open thinking block. A reply that an earlier turn began is gone
    on with: `said_ids` are all it has said, `n_begun` how many of them, the last ones, are still to be run.
    `continued` without any is for a reply whose beginning is known as text alone, and is in the prompt. A stop string
    in `stop` ends the turn like an end token. The last event is TurnDone. Raises: what `generate` raises.
    """
    parser = ReplyParser(tokenizer, thinking, stop, continued=continued and not said_ids)
    parser.resume(said_ids)
    thinking_tokens = 0
    halted = False

    def stop_now() -> bool:
        return halted or should_stop()

    for event in generate(
        model,
        state,
        prompt_ids,
        sampler=sampler,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        drafter=drafter,
        begun_ids=said_ids[len(said_ids) - n_begun :],
        chunk_tokens=chunk_tokens,
        context_tokens=context_tokens,
        should_stop=stop_now,
    ):
        if isinstance(event, TokenDrawn):
            thinking_tokens += parser.in_reasoning
            yield event
            yield from parser.push(event.token)
            halted = parser.finished
        elif isinstance(event, TurnDone):
            yield from parser.finish()
            reason = "stop" if halted else event.reason
            answer_tokens = event.stats.answer_tokens - thinking_tokens
            stats = replace(event.stats, answer_tokens=answer_tokens, thinking_tokens=thinking_tokens)
            yield TurnDone(reason=reason, stats=stats)
        else:
            yield event
