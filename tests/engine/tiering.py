"""What the tests of tiers share: the golden model with its experts spread over made-up tiers, and what it then says."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine import kernels
from engine.draft.verify import most_drafts, settle
from engine.draft.weights import HeadWeights
from engine.model import Model, never
from engine.numerics import NumericsName
from engine.streams import Streams, StreamSettings
from engine.tiers.card import Card
from engine.tiers.trunk import TrunkPlaces
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY

PROMPT = [0, 285, 151, 303, 141, 22, 77, 78, 79, 80, 81]
SHORT = [0, 285, 151, 303, 141, 22, 77]
N_EXPERTS = 16
EVERYTHING = dict.fromkeys(range(8), N_EXPERTS)
PROCESSOR = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where experts may lie."""

    memory: int = N_EXPERTS
    """Slots of each layer in memory."""
    cards: Sequence[int] = ()
    """Slots of each layer on each card."""
    warm: bool = False
    """Fill the cards before the first token."""
    step_bytes: int = 1 << 30
    device: torch.device = PROCESSOR
    """Kind of the cards, one of its devices each."""
    layers: Sequence[int] = ()
    """That lie on the first card."""
    second: Sequence[int] = ()
    """That lie on the second card."""
    head: bool = False
    """Whether the output layer lies on the first card."""
    drafts: bool | None = None
    """Whether the draft head is open and lies on the first card, or in memory; None for none."""
    numerics: NumericsName = "exact"


SPREADS: Mapping[str, Spread] = {
    "memory only": Spread(),
    "card only": Spread(memory=1, cards=(N_EXPERTS,), warm=True),
    "small card": Spread(memory=4, cards=(2,)),
    "half and half": Spread(memory=8, cards=(8,)),
    "large card, tiny memory": Spread(memory=2, cards=(12,), warm=True),
    "two cards": Spread(memory=3, cards=(2, 5)),
    "one copy a step": Spread(memory=6, cards=(4,), step_bytes=1),
}
"""Every tier alone, three sizes mixed, and two cards."""


ALL = range(8)
# Layers 1 and 4 have an n-gram table, 2, 4 and 5 compress, 2, 4, 5 and 7 select.
ON_CARDS: Mapping[str, Spread] = {
    "all on one card": Spread(memory=1, cards=(N_EXPERTS,), warm=True, layers=ALL, head=True, drafts=True),
    "trunk on the card, no expert": Spread(layers=ALL, head=True, drafts=True),
    "trunk on the card, few experts": Spread(memory=4, cards=(2,), layers=ALL, head=True, drafts=False),
    "trunk on the card, half of the experts": Spread(
        memory=8, cards=(8,), warm=True, layers=ALL, head=True, drafts=True
    ),
    "experts on the card, no layer": Spread(memory=4, cards=(8,), warm=True, drafts=True),
    "first layers and the draft head": Spread(memory=4, cards=(4,), warm=True, layers=range(5), drafts=True),
    "last layers": Spread(memory=4, cards=(4,), warm=True, layers=range(3, 8), head=True, drafts=False),
    "layers here and there": Spread(cards=(6,), warm=True, layers=(0, 3, 5), head=True, drafts=True),
    "first layers on the card": Spread(layers=range(3), drafts=False),
    "two cards": Spread(memory=3, cards=(2, 5), warm=True, layers=range(4), second=range(4, 8), head=True, drafts=True),
    "two cards and memory": Spread(cards=(2, 5), warm=True, layers=range(3), second=(3, 4), drafts=True),
}
"""Where layers, the conversation with them, the output layer, the draft head and experts may lie."""


@dataclass
class Said:
    """What a model said, and how."""

    tokens: list[int]
    logits: list[Tensor] = field(default_factory=list)
    """[V] of every choice."""


@contextmanager
def spread_model(whole: Model, spread: Spread, notices: deque[str] | None = None) -> Iterator[Model]:
    """The resident weights of `whole` spread so, with experts read anew."""
    said: deque[str] = deque() if notices is None else notices
    devices = [spread.device if spread.device == PROCESSOR else torch.device(spread.device.type, i) for i in range(2)]
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        cards = [(Card(devices[i], f"card {i}"), dict.fromkeys(range(8), n)) for i, n in enumerate(spread.cards)]
        settings = StreamSettings(
            slots_per_layer=spread.memory, spare_slots=4, cards=cards, step_bytes=spread.step_bytes
        )
        drafts = spread.drafts is not None
        streams = Streams.open(checkpoint, whole.config, settings, drafts=drafts, on_notice=said.append)
        trunk, first = copied(whole._trunk), Card(devices[0])
        places = TrunkPlaces(
            dict.fromkeys(spread.layers, first) | dict.fromkeys(spread.second, Card(devices[1])),
            first if spread.head else None,
            first if spread.drafts else None,
        )
        blocks = tuple(map(places.block, trunk.blocks))
        norm, output = places.output(trunk.norm, trunk.head)
        head: HeadWeights | str = "no drafts"
        if drafts:
            assert whole.head is not None
            head = places.drafts(copied(whole.head.weights))
        model = Model(
            checkpoint, whole.config, replace(trunk, blocks=blocks, norm=norm, head=output), streams, whole._front,
            said, numerics=spread.numerics, index_owner="published", head=head,
        )  # fmt: skip
        del blocks, norm, output, head  # what the model gives up is free
        try:
            if spread.warm:
                streams.warm({layer: range(n) for layer, n in EVERYTHING.items()}, lambda: False)
            yield model
        finally:
            model.close()


def copied(weights: Any) -> Any:
    """A record of weights with tensors of its own, which lie in memory as those of a made-up card do: MKL adds a row's
    products up in an order that depends on the matrix's address.
    """
    if isinstance(weights, Tensor):
        return weights.clone()
    if isinstance(weights, tuple):
        return tuple(map(copied, weights))
    if not is_dataclass(weights):
        return weights
    return replace(weights, **{f.name: copied(getattr(weights, f.name)) for f in fields(weights) if f.init})  # type: ignore[type-var]


def equal(one: Said, other: Said) -> bool:
    """To the last bit."""
    return one.tokens == other.tokens and all(map(torch.equal, one.logits, other.logits))


@contextmanager
def by_torch() -> Iterator[None]:
    """The processor computes as a card does, by torch, so that results can be the same to the last bit."""
    before = os.environ.get(kernels.VARIABLE)
    os.environ[kernels.VARIABLE] = "torch"
    kernels.native.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del os.environ[kernels.VARIABLE]
        else:
            os.environ[kernels.VARIABLE] = before
        kernels.native.cache_clear()


def drafted(model: Model, n_rounds: int = 3, prompt: Sequence[int] = PROMPT) -> Said:
    """A prompt, then rounds of the draft head, each verified whole by one forward; confidences go with the logits."""
    assert model.head is not None
    state, said = model.new_state(), Said([])
    result = model.forward(state, prompt, "prefill")
    state.commit(result.step)
    said.logits.append(result.logits[-1])
    said.tokens.append(choose(result.logits[-1], 0))
    for _ in range(n_rounds):
        proposal = model.head.propose(state, said.tokens[-1], model.head.block_size, choose, never)
        drafts = proposal.ids[: most_drafts(state, len(proposal.ids))]
        result = model.forward(state, [said.tokens[-1], *drafts], "decode", n_logits=1 + len(drafts))
        tokens, _ = settle(result.logits, drafts, state.n_tokens + 1, choose, ())
        state.commit(result.step, len(tokens))
        said.tokens += tokens
        said.logits += [*result.logits, torch.tensor(proposal.confidence), torch.tensor(proposal.ids)]
    return said


def choose(logits: Tensor, position: int) -> int:
    """Greedily."""
    return int(logits.argmax())


def greedy(model: Model, n_tokens: int = 5) -> Said:
    """A prompt in two chunks and tokens drawn greedily, one at a time."""
    state, said = model.new_state(), Said([])
    for first in range(0, len(PROMPT), 7):
        result = model.forward(state, PROMPT[first : first + 7], "prefill")
        state.commit(result.step)
    for _ in range(n_tokens):
        said.logits.append(result.logits[-1].clone())
        said.tokens.append(int(result.logits[-1].argmax()))
        result = model.forward(state, said.tokens[-1:], "decode")
        state.commit(result.step)
    return said
