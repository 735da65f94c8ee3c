"""What the tests of tiers share: the golden model with its experts spread over made-up tiers, and what it then says."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.model import Model
from engine.numerics import NumericsName
from engine.streams import Streams, StreamSettings
from engine.tiers.card import Card
from engine.tiers.trunk import TrunkPlaces
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY

PROMPT = [0, 285, 151, 303, 141, 22, 77, 78, 79, 80, 81]
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
    layers: Sequence[int] = ()
    """Whose resident weights lie on the first card."""
    head: bool = False
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


@dataclass
class Said:
    """What a model said, and how."""

    tokens: list[int]
    logits: list[Tensor] = field(default_factory=list)
    """[V] of every choice."""


@contextmanager
def spread_model(whole: Model, spread: Spread, notices: deque[str] | None = None) -> Iterator[Model]:
    """The resident weights of `whole` with experts read anew and spread so."""
    said: deque[str] = deque() if notices is None else notices
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        cards = [(Card(spread.device, f"card {i}"), dict.fromkeys(range(8), n)) for i, n in enumerate(spread.cards)]
        settings = StreamSettings(
            slots_per_layer=spread.memory, spare_slots=4, cards=cards, step_bytes=spread.step_bytes
        )
        streams = Streams.open(checkpoint, whole.config, settings, on_notice=said.append)
        trunk = whole._trunk
        if spread.layers or spread.head:
            card = Card(spread.device)
            places = TrunkPlaces(dict.fromkeys(spread.layers, card), card if spread.head else None)
            blocks = tuple(map(places.block, trunk.blocks))
            trunk = replace(trunk, blocks=blocks, head=places.head(trunk.head))
        model = Model(
            checkpoint, whole.config, trunk, streams, whole._front, said, numerics=spread.numerics,
            index_owner="published",
        )  # fmt: skip
        try:
            if spread.warm:
                streams.warm({layer: range(n) for layer, n in EVERYTHING.items()}, lambda: False)
            yield model
        finally:
            model.close()


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
