"""What the drafting tests share: a model of a case, its sequential decoding as the judge, and drafts made to order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.config import load_config
from engine.draft.source import Choose, Proposal
from engine.model import Model
from engine.numerics import NumericsName
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.state import State
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint

GREEDY = Sampler(SamplerSettings(temperature=0))


@contextmanager
def opened(folder: Path, *, drafts: bool = True, numerics: NumericsName = "exact", slots: int = 999) -> Iterator[Model]:
    """The checkpoint of a folder, all experts kept unless said otherwise."""
    config = load_config(folder).config
    with Checkpoint.open(folder) as files:
        model = Model.open(
            files, config, streams=StreamSettings(slots_per_layer=slots), numerics=numerics, drafts=drafts
        )
        try:
            yield model
        finally:
            model.close()


def prefilled(model: Model, ids: Sequence[int]) -> tuple[State, Tensor]:
    """The state behind a prompt, and the logits [V] for what follows it."""
    state = model.new_state()
    result = model.forward(state, ids, "prefill")
    state.commit(result.step)
    return state, result.logits[-1]


@dataclass
class Sequential:
    """A prompt and its continuation, decoded one token at a time."""

    prompt: list[int]
    tokens: list[int]
    """What is said, one more than was run."""
    logits: list[Tensor] = field(default_factory=list)
    """[V] behind the prompt, then behind each token run."""
    states: list[dict[str, Tensor]] = field(default_factory=list)
    """Contents behind the prompt, then behind each token run."""

    @classmethod
    def of(cls, model: Model, prompt: Sequence[int], n_tokens: int, sampler: Sampler = GREEDY) -> "Sequential":
        """Decode until `n_tokens` are drawn."""
        state, logits = prefilled(model, prompt)
        found = cls(list(prompt), [sampler.draw(logits, state.n_tokens)], [logits], [dict(state.contents())])
        while len(found.tokens) < n_tokens:
            result = model.forward(state, found.tokens[-1:], "decode")
            state.commit(result.step)
            found.logits.append(result.logits[-1])
            found.states.append(dict(state.contents()))
            found.tokens.append(sampler.draw(result.logits[-1], state.n_tokens))
        return found

    def differences(self, state: State) -> list[str]:
        """Names of what differs, in any bit, from the sequential state behind as many tokens."""
        want, got = self.states[state.n_tokens - len(self.prompt)], state.contents()
        assert got.keys() == want.keys()
        return [name for name in want if not torch.equal(got[name], want[name])]


class Forced:
    """Drafts that are the sequential continuation, one of them made wrong now and then. A `DraftSource`.

    Args:
        wrong: Round -> which draft is wrong, counted from 0; nothing is wrong where there is no such draft.
    """

    def __init__(self, known: Sequential, vocab_size: int, wrong: Callable[[int], int] = lambda _: 99) -> None:
        self._known = known
        self._vocab_size = vocab_size
        self._wrong = wrong
        self.rounds = 0

    def propose(self, state: State, token: int, n: int, choose: Choose, should_stop: Callable[[], bool]) -> Proposal:
        """See `DraftSource`."""
        at = state.n_tokens - len(self._known.prompt) + 1
        ids = [*self._known.tokens[at : at + n], *[0] * n][:n]
        wrong = self._wrong(self.rounds)
        if wrong < n:
            ids[wrong] = (ids[wrong] + 1) % self._vocab_size
        self.rounds += 1
        return Proposal(ids=tuple(ids), confidence=(0.0,) * n)
