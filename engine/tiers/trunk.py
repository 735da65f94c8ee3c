"""Resident weights on cards: whole layers, the output layer, the draft head.

A layer on a card is computed there, with what it keeps of the conversation; the stream crosses the bus only where the
next layer lies elsewhere. So any layer can lie on any card or on none, and layers that lie beside each other should lie
together. The one thing a reader would get wrong: no part of a layer stays behind, for the processor would have to be
waited for.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine.draft.weights import HeadWeights
from engine.kernels import Matrix
from engine.tiers.card import Card
from engine.transfer import MEMORY
from engine.weights import BlockWeights, TrunkWeights, stored_bytes

T = TypeVar("T")


class TrunkPlaces:
    """Which card takes what of the trunk while it is loaded.

    Attributes:
        left_out: Layers, "the output layer" and "the draft head", for which a card had no memory after all: they stay
            with the processor.
        moved_bytes: What the cards took.
    """

    def __init__(self, layers: Mapping[int, Card], head: Card | None, drafts: Card | None = None) -> None:
        """Who takes which layers, the output layer, and the draft head, if one is opened."""
        self._layers = layers
        self._head = head
        self._drafts = drafts
        self.left_out: list[str] = []
        self.moved_bytes = 0

    def block(self, block: BlockWeights) -> BlockWeights:
        """A layer just read, where it belongs."""
        return self._moved(block, self._layers.get(block.layer), f"layer {block.layer}")

    def output(self, norm: Tensor, head: Matrix) -> tuple[Tensor, Matrix]:
        """The last norm and the output matrix just read, where they belong."""
        return self._moved((norm, head), self._head, "the output layer")

    def drafts(self, head: HeadWeights) -> HeadWeights:
        """The draft head just read, where it belongs."""
        return self._moved(head, self._drafts, "the draft head")

    def _moved(self, weights: T, card: Card | None, name: str) -> T:
        if card is None:
            return weights
        try:
            there = moved(weights, card.device)
        except torch.OutOfMemoryError:
            self.left_out.append(name)
            return weights
        self.moved_bytes += stored_bytes(weights)
        return there


def moved(weights: T, device: torch.device) -> T:
    """Weights, and the records and tuples of them, with every tensor on a device. Raises: torch.OutOfMemoryError."""
    if isinstance(weights, Tensor):
        return weights.to(device)  # type: ignore[return-value]
    if isinstance(weights, tuple):
        return tuple(moved(part, device) for part in weights)  # type: ignore[return-value]
    if not is_dataclass(weights):
        return weights
    values: dict[str, Any] = {field.name: getattr(weights, field.name) for field in fields(weights) if field.init}
    changes = {name: moved(value, device) for name, value in values.items()}
    return replace(weights, **changes)  # type: ignore[type-var, return-value, unused-ignore]


def is_on_card(trunk: TrunkWeights) -> bool:
    """Whether any of it lies on a card."""
    return any(device.type != "cpu" for device in (trunk.norm.device, *(block.device for block in trunk.blocks)))


def brought_home(trunk: TrunkWeights) -> TrunkWeights:
    """All of it in memory."""
    return moved(trunk, MEMORY)
