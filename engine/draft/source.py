"""Where drafts come from: one protocol, so that tests can hand in right and wrong ones beside the head's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.state import State

Choose = Callable[[Tensor, int], int]
"""Logits [V] and the position they are for -> token: the sampler's own draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Tokens that may follow, best guess first come."""

    ids: tuple[int, ...]
    confidence: tuple[float, ...]
    """The head's opinion of each, given those before it: a log-odds, to be calibrated."""


class DraftSource(Protocol):
    """Something that guesses what the model will say."""

    def propose(self, state: State, token: int, n: int, choose: Choose, should_stop: Callable[[], bool]) -> Proposal:
        """At most `n` tokens to follow `token`, which will sit at position `state.n_tokens`. Changes nothing.

        Raises: Stopped when `should_stop` says so; EngineError or StorageError when it can guess no more.
        """
        ...
