"""Prefill in chunks, then the decode loop, a token or a block of verified drafts at a time; no text, only token ids.

The one thing a reader would get wrong: the last token drawn is never run. It is in the reply but not yet in the
state, and the next prompt of the conversation begins with it. A reply that goes on begins with it too, and there it is
run by the decode rule, as it would have been without the stop.
"""

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from engine.draft.drafter import Drafter
from engine.draft.verify import verify
from engine.errors import PromptError, Stopped
from engine.events import DoneReason, DriveFigures, Notice, PrefillProgress, TokenDrawn, TurnDone, TurnStats
from engine.model import Model, ShouldStop, never
from engine.sampling import Sampler
from engine.schedule import Rule, max_decode_rows
from engine.state import State, Step
from storage.batch import DriveStats


def generate(
    model: Model,
    state: State,
    prompt_ids: Sequence[int],
    *,
    sampler: Sampler,
    max_tokens: int,
    stop_ids: Collection[int],
    drafter: Drafter | None = None,
    begun_ids: Sequence[int] = (),
    chunk_tokens: int = 512,
    context_tokens: int | None = None,
    should_stop: ShouldStop = never,
) -> Iterator[PrefillProgress | TokenDrawn | Notice | TurnDone]:
    """Read a prompt behind what the state holds, then draw tokens until something ends the turn.

    `begun_ids` are the beginning of the reply, drawn by an earlier turn: they are run behind the prompt by the decode
    rule, so that what is drawn next is what would have been drawn then; the prompt may be empty if there are some.
    A token in `stop_ids` ends the turn and is not yielded. `context_tokens` bounds the positions of the whole
    conversation; None means no bound. With a `drafter` one forward may settle several tokens; which ones, and what the
    state holds in the end, does not depend on it. A stop leaves the state at the last committed position: a chunk or
    block in the works is dropped.

    Raises: PromptError on an empty prompt; LogitsError, StorageError, FormatError as the forward and the sampler do.
    """
    if not prompt_ids and not begun_ids:
        raise PromptError("the prompt has no tokens", hint="Ask something.")
    turn = _Turn(model, state.n_tokens, len(prompt_ids) + len(begun_ids), drafter)
    step: Step | None = None  # run, and not yet committed
    n_said = 1

    def settle() -> None:
        """Commit the rows of a block that what was said of it stands on."""
        nonlocal step
        if step is not None:
            state.commit(step, n_said)
            step = None

    try:
        yield turn.progress(0)
        model.reading = turn.reading
        done = 0
        while done < turn.to_read:
            rule: Rule = "prefill" if done < len(prompt_ids) else "decode"
            left = prompt_ids[done:] if rule == "prefill" else begun_ids[done - len(prompt_ids) :]
            chunk = left[:chunk_tokens]
            if rule == "decode":
                n = max_decode_rows(model.config, state.n_tokens, len(chunk), state.index_owner, state.reading)
                chunk = chunk[:n]
            turn.chunk = (done, len(chunk))
            result = model.forward(state, chunk, rule, is_whole=True, should_stop=should_stop)
            state.commit(result.step)
            done += len(chunk)
            yield from _taken(model.notices)
            yield turn.progress(done)
        model.reading = None
        turn.begin_decode()
        tokens: tuple[int, ...] = (sampler.draw(result.logits[-1], state.n_tokens),)
        position = state.n_tokens  # of the first of them
        while True:
            for n_said, token in enumerate(tokens, 1):
                if n_said == len(tokens):
                    settle()
                if token in stop_ids:
                    reason: DoneReason | None = "stop"
                else:
                    turn.answer_tokens += 1
                    yield TokenDrawn(token=token)
                    reason = turn.limit(position + n_said - 1, max_tokens, context_tokens)
                if reason is not None:
                    settle()
                    yield turn.done(reason)
                    return
                if should_stop():
                    raise Stopped("the turn was stopped")
            drafts: tuple[int, ...] = ()
            if drafter is not None:
                room = max_tokens - turn.answer_tokens - 1
                if context_tokens is not None:
                    room = min(room, context_tokens - state.n_tokens - 1)
                drafts = drafter.drafts(state, token, room, sampler.draw, should_stop)
            position = state.n_tokens + 1
            verified = verify(model, state, token, drafts, sampler.draw, stop_ids, should_stop)
            step, tokens, n_said = verified.step, verified.tokens, 1
            if drafter is not None:
                drafter.done(verified)
            yield from _taken(model.notices)
    except Stopped:
        settle()
        yield turn.done("stopped")
    finally:
        model.reading = None
        settle()


def _taken(notices: deque[str]) -> Iterator[Notice]:
    while notices:
        yield Notice(text=notices.popleft())


class _Turn:
    """Clock and counters of one turn."""

    def __init__(self, model: Model, reused_tokens: int, to_read: int, drafter: Drafter | None) -> None:
        self.to_read = to_read
        """Tokens that no state holds."""
        self._drafter = drafter
        if drafter is not None:
            drafter.begin_turn()
        self._model = model
        self._reused = reused_tokens
        self._before = model.streams.figures()
        self._drives_before = model.streams.drives()
        self._prefilled = self._clock_before = model.clock.totals()
        self._started = self._decode_started = time.monotonic()
        self._decoding = False
        self.answer_tokens = 0
        self.chunk = (0, 0)
        """Tokens before the chunk that is read, and those in it."""

    def progress(self, done_tokens: int) -> PrefillProgress:
        figures, before = self._model.streams.figures(), self._before
        return PrefillProgress(
            done_tokens=done_tokens,
            total_tokens=self.to_read,
            reused_tokens=self._reused,
            read_bytes=figures.read_bytes - before.read_bytes,
            expert_hits=figures.hits - before.hits,
            expert_misses=figures.misses - before.misses,
            elapsed_s=time.monotonic() - self._started,
            drives=_between(self._drives_before, self._model.streams.drives()),
        )

    def reading(self) -> PrefillProgress:
        """The progress now, a chunk counted by the layers it is through: it may take a minute."""
        done, n = self.chunk
        return self.progress(done + n * self._model.layers_done // self._model.config.n_layers)

    def begin_decode(self) -> None:
        self._decode_started = time.monotonic()
        self._decoding = True
        self._prefilled = self._model.clock.totals()

    def limit(self, position: int, max_tokens: int, context_tokens: int | None) -> DoneReason | None:
        """What ends the turn behind a token at `position`, which then need not be run; None when it goes on."""
        if context_tokens is not None and position >= context_tokens:
            return "context"
        return "length" if self.answer_tokens >= max_tokens else None

    def done(self, reason: DoneReason) -> TurnDone:
        now = time.monotonic()
        figures, before, clock = self._model.streams.figures(), self._before, self._model.clock.totals()
        prefill_s = (self._decode_started if self._decoding else now) - self._started
        decode_s = now - self._decode_started if self._decoding else 0.0
        phases = (self._prefilled if self._decoding else clock).since(self._clock_before).figures("prefill", prefill_s)
        if self._decoding:
            phases += clock.since(self._prefilled).figures("decode", decode_s)
        return TurnDone(
            reason=reason,
            stats=TurnStats(
                prompt_tokens=self._reused + self.to_read,
                reused_tokens=self._reused,
                answer_tokens=self.answer_tokens,
                thinking_tokens=0,
                prefill_s=prefill_s,
                decode_s=decode_s,
                read_bytes=figures.read_bytes - before.read_bytes,
                expert_hits=figures.hits - before.hits,
                expert_misses=figures.misses - before.misses,
                card_hits=figures.card_hits - before.card_hits,
                wait_s=figures.wait_s - before.wait_s,
                drives=_between(self._drives_before, self._model.streams.drives()),
                phases=phases,
                draft=None if self._drafter is None else self._drafter.stats(),
            ),
        )


_UNUSED = DriveStats(
    drive="", depth=0, n_reads=0, payload_bytes=0, read_bytes=0, busy_s=0.0, queue_s=0.0, n_errors=0
)  # fmt: skip
"""A drive before its first read."""


def _between(before: Sequence[DriveStats], after: Sequence[DriveStats]) -> tuple[DriveFigures, ...]:
    """What each drive that was read did from one look at its counters to the other."""
    earlier = {stats.drive: stats for stats in before}
    figures = []
    for now in after:
        then = earlier.get(now.drive, _UNUSED)
        read_bytes, busy_s = now.read_bytes - then.read_bytes, now.busy_s - then.busy_s
        figures.append(
            DriveFigures(
                drive=now.drive,
                n_reads=now.n_reads - then.n_reads,
                payload_bytes=now.payload_bytes - then.payload_bytes,
                read_bytes=read_bytes,
                busy_s=busy_s,
                queue_s=now.queue_s - then.queue_s,
                rate_bytes_s=read_bytes / busy_s if busy_s > 0 else 0.0,
                n_errors=now.n_errors - then.n_errors,
            )
        )
    return tuple(one for one in figures if one.n_reads or one.n_errors)
