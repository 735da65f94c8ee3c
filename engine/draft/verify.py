"""One forward over a token and its drafts: which drafts the model would have said itself, and what it says next.

The one thing a reader would get wrong: a draft is never *taken*. Each row's logits go through the sampler exactly as in
decoding one token at a time, and a draft is right when it happens to be what was drawn. The first draw that is no draft
is the token that replaces it: drawn from the model's own distribution, it cannot be the rejected one.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.draft.source import Choose
from engine.model import Model, ShouldStop
from engine.schedule import max_decode_rows
from engine.state import State, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a forward settled, before anything is committed."""

    step: Step
    tokens: tuple[int, ...]
    """What is said next, at least one. All but the last are drafts that were right, so the first n rows of the step are
    the state in which token n is drawn but not run.
    """
    n_right: int
    """Drafts that were right; an end token among them is the last of `tokens`."""
    n_drafts: int
    """Drafts that were in question: not those behind a right end token."""


def most_drafts(state: State, n: int) -> int:
    """How many of `n` drafts one forward can verify behind a token at the next position."""
    return max_decode_rows(state.config, state.n_tokens, n + 1, state.index_owner, state.reading) - 1


def verify(
    model: Model,
    state: State,
    token: int,
    drafts: Sequence[int],
    choose: Choose,
    stop_ids: Collection[int],
    should_stop: ShouldStop,
) -> Verified:
    """Run `token` at the next position and `drafts` behind it, and draw from every row up to the first surprise.

    Changes nothing. Raises: what `Model.forward` raises; LogitsError.
    """
    rows = [token, *drafts]
    result = model.forward(state, rows, "decode", n_logits=len(rows), should_stop=should_stop)
    tokens, n_right = settle(result.logits, drafts, state.n_tokens + 1, choose, stop_ids)
    ended = n_right == len(tokens)
    return Verified(step=result.step, tokens=tokens, n_right=n_right, n_drafts=n_right if ended else len(drafts))


def settle(
    logits: Iterable[Tensor], drafts: Sequence[int], position: int, choose: Choose, stop_ids: Collection[int]
) -> tuple[tuple[int, ...], int]:
    """Draw from every row's logits [V] up to the first surprise or end token; the tokens, and how many were drafts.

    `position` is that of the first draw; there is a row more than drafts.
    """
    tokens: list[int] = []
    for row, values in enumerate(logits):
        tokens.append(choose(values, position + row))
        if row == len(drafts) or tokens[-1] != drafts[row]:
            return tuple(tokens), row
        if tokens[-1] in stop_ids:
            break
    return tuple(tokens), len(tokens)
