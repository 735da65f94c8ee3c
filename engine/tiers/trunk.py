"""Resident weights on cards: the fp8 matrices of layers, and the output matrix.

The card multiplies; what lies between the products, and the conversation, stay with the processor. So any layer can lie
on any card or on none, and what crosses the bus is rows: at most 131 KB each way for a token of the release. Norms,
routers and the other small matrices stay: a trip to the card takes longer than reading them. A forward then waits for a
card six or seven times a layer, not once.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from engine.kernels import Matrix
from engine.tiers.card import Card
from engine.weights import BlockWeights, TrunkWeights

T = TypeVar("T")


class TrunkPlaces:
    """Which card takes what of the trunk while it is loaded.

    Attributes:
        left_out: Layers, and "the output layer", for which a card had no memory after all: they stay with the
            processor.
        moved_bytes: What the cards took.
    """

    def __init__(self, layers: Mapping[int, Card], head: Card | None) -> None:
        self._layers = layers
        self._head = head
        self.left_out: list[str] = []
        self.moved_bytes = 0

    def block(self, block: BlockWeights) -> BlockWeights:
        """A layer just read, where it belongs."""
        card = self._layers.get(block.layer)
        return block if card is None else self._moved(block, card, f"layer {block.layer}")

    def head(self, head: Matrix) -> Matrix:
        """The output matrix just read, where it belongs."""
        return head if self._head is None else self._moved(head, self._head, "the output layer")

    def _moved(self, weights: T, card: Card, name: str) -> T:
        plain = isinstance(weights, Matrix)
        try:
            there = moved(weights, card.device, plain=plain)
        except torch.OutOfMemoryError:
            self.left_out.append(name)
            return weights
        self.moved_bytes += movable_bytes(weights, plain=plain)
        return there


def movable_bytes(weights: object, *, plain: bool = False) -> int:
    """Bytes of a record's fp8 matrices, and of its plain ones if asked for."""
    if isinstance(weights, Matrix):
        scale_bytes = 0 if weights.scale is None else weights.scale.nbytes
        return weights.weight.nbytes + scale_bytes if weights.kind == "fp8" or plain else 0
    if not is_dataclass(weights):
        return 0
    return sum(movable_bytes(getattr(weights, field.name), plain=plain) for field in fields(weights))


def moved(weights: T, device: torch.device, *, plain: bool = False) -> T:
    """A record of weights with its fp8 matrices on a device, the plain ones too if asked for.

    Raises: torch.OutOfMemoryError.
    """
    if isinstance(weights, Matrix):
        if weights.kind == "plain" and not plain:
            return weights
        scale = None if weights.scale is None else weights.scale.to(device)
        return replace(weights, weight=weights.weight.to(device), scale=scale)
    assert is_dataclass(weights)
    changes: dict[str, Any] = {}
    for field in fields(weights):
        value = getattr(weights, field.name)
        if is_dataclass(value):
            changes[field.name] = moved(value, device, plain=plain)
    return replace(weights, **changes)  # type: ignore[type-var, return-value, unused-ignore]


def is_on_card(trunk: TrunkWeights) -> bool:
    """Whether any of it lies on a card."""
    matrices = (trunk.head, *(block.ffn.shared_w1 for block in trunk.blocks))
    return any(not matrix.weight.is_cpu for matrix in matrices)


def brought_home(trunk: TrunkWeights) -> TrunkWeights:
    """All of it in memory."""
    here = torch.device("cpu")
    blocks = tuple(moved(block, here) for block in trunk.blocks)
    return replace(trunk, blocks=blocks, head=moved(trunk.head, here, plain=True))
