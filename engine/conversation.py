"""The conversations with one model: each turn begins at the longest kept state of its prompt and reads the rest.

What is equal to what, on the native path to the last bit:

- A turn's prompt is read by the prefill rule, its reply by the decode rule; a position keeps the rule it was read by.
  So any number of turns, whatever was kept, dropped, branched off or stopped between them, gives the tokens of one
  state that is handed the same prompts and replies in the same order and never taken back.
- The last token of a reply that was cut off (by a limit, by a stop) has not been run. The next prompt begins with it,
  by the prefill rule; a reply that is gone on with begins with it, by the decode rule, as it would have without the
  cut.
- A reply that goes on draws what it would have drawn: what chance says of a position follows from seed and position.
- An answer after reasoning is read again, since the next prompt has it without the reasoning; so is everything of which
  no state was kept. That is what `replay` does on purpose, and it is not the same: a position that was decoded attends
  differently from the same text in a prompt.

On the torch path sums depend on how many rows share a forward, so equal means to rounding, and near-ties may part.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from engine.draft.drafter import Drafter
from engine.events import Event, PrefillProgress, TokenDrawn, TurnDone, TurnStats
from engine.kept import DEFAULT_STATE_BYTES, KeptStates, Point
from engine.model import Model, ShouldStop, never
from engine.prompt import Rendered
from engine.sampling import Sampler
from engine.saved_state import Identity, read_pieces, write_pieces
from engine.tokens import ChatTokenizer
from engine.turn import run_turn

_MOST_MARKS = 12
"""Places of a prompt at which tails are kept while it is read; the newest count, and the end of the first message's
system text.
"""
_MOST_RATES = 32
_ROOM_EVERY_TOKENS = 256


class Conversations:
    """The kept states of one model, and the turns that use them.

    One turn at a time, from any thread; `reusable` and `expected_s` may be asked for meanwhile.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: ChatTokenizer,
        *,
        context_tokens: int,
        chunk_tokens: int = 512,
        state_bytes: int = DEFAULT_STATE_BYTES,
        drafter: Drafter | None = None,
    ) -> None:
        """`context_tokens` bounds the positions of a conversation, `state_bytes` the memory of all kept states."""
        self.kept = KeptStates(model.new_state(), state_bytes)
        self._model = model
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._chunk_tokens = chunk_tokens
        self._drafter = drafter
        self._rates: deque[tuple[int, float]] = deque(maxlen=_MOST_RATES)

    def reusable(self, prompt: Rendered) -> int:
        """How many of the prompt's tokens a kept state holds."""
        return self._start(prompt).n_tokens

    def expected_s(self, n_tokens: int) -> float | None:
        """How long reading so many tokens would take, by the turn most like it so far; None before there was one."""
        if not self._rates:
            return None
        read, seconds = min(tuple(self._rates), key=lambda rate: max(rate[0], n_tokens) / min(rate[0], n_tokens))
        return seconds * n_tokens / read

    def answer(
        self,
        prompt: Rendered,
        *,
        sampler: Sampler,
        max_tokens: int,
        stop_ids: Collection[int],
        stop: Sequence[str] = (),
        replay: bool = False,
        should_stop: ShouldStop = never,
    ) -> Iterator[Event]:
        """One turn: every event of `run_turn`. Wherever it ends, and however, what was run stays of use.

        `replay` reads the whole prompt, past replies included, as one prompt from an empty state.
        Raises: what `generate` raises.
        """
        ids, n_said, n_drawn = prompt.ids, prompt.n_begun, 0
        start = self.kept.find(()) if replay else self._start(prompt)
        reused = start.n_tokens
        # Before states are moved about, which takes a while when they are long.
        yield PrefillProgress(
            done_tokens=0, total_tokens=len(ids) - reused, read_bytes=0, elapsed_s=0.0, reused_tokens=reused
        )
        n_prompt = len(ids) if replay else len(ids) - n_said
        state = self.kept.state
        try:
            self.kept.go_to(start)
            self.kept.make_room(len(ids))
            state.marks = _places(prompt.marks, reused)
            for event in run_turn(
                self._model,
                state,
                self._tokenizer,
                ids[reused:n_prompt],
                sampler=sampler,
                max_tokens=max_tokens,
                thinking=prompt.thinking,
                stop_ids=stop_ids,
                stop=stop,
                drafter=self._drafter,
                said_ids=ids[len(ids) - n_said :],
                n_begun=len(ids) - max(n_prompt, reused),
                continued=prompt.continues,
                chunk_tokens=self._chunk_tokens,
                context_tokens=self._context_tokens,
                should_stop=should_stop,
            ):
                if isinstance(event, PrefillProgress) and not event.done_tokens:
                    continue  # it was said already
                if isinstance(event, TokenDrawn):
                    n_drawn += 1
                    if not n_drawn % _ROOM_EVERY_TOKENS:
                        self.kept.make_room()  # the live state has grown
                if isinstance(event, TurnDone):
                    self.kept.keep()
                    self._note_rate(event.stats)
                yield event
        finally:
            self.kept.keep()

    def save(self, path: Path, prompt: Rendered, identity: Identity) -> int:
        """Write the states kept of the prompt's conversation to `path`; bytes written, 0 when there is none.

        Raises: SavedStateError.
        """
        point = self._start(prompt)
        if not point.n_tokens:
            return 0
        return write_pieces(path, lambda: self.kept.pieces(point), identity)

    def restore(self, path: Path, identity: Identity) -> int:
        """Take in the states that `save` wrote; how many tokens they hold. Raises: SavedStateError."""
        pieces = read_pieces(path, self._model.config, identity)
        self.kept.adopt(pieces)
        return sum(len(piece.ids) for piece in pieces)

    def _start(self, prompt: Rendered) -> Point:
        """Where a turn begins. Two pictures are one id, so nothing is known of a prompt that has one."""
        return self.kept.find(() if prompt.images else prompt.ids, prompt.drawn)

    def _note_rate(self, stats: TurnStats) -> None:
        read = stats.prompt_tokens - stats.reused_tokens
        # A stop may have come before the prompt was read.
        if stats.answer_tokens + stats.thinking_tokens and read > 0:
            self._rates.append((read, stats.prefill_s))


def _places(marks: Sequence[int], reused: int) -> frozenset[int]:
    """The marks that are worth a tail: the newest, and the first, where conversations with one system text part."""
    ahead = [mark for mark in marks if mark > reused]
    return frozenset((*ahead[:1], *ahead[-_MOST_MARKS:]))
