"""The experts on one card: packed as stored, each in one piece of the card's memory.

A piece is given back to the card's allocator when its expert is forgotten and nobody takes its place, so that a card
can shrink slot by slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from engine.experts import ExpertWeights
from engine.kernels import Matrix
from engine.tiers.card import Card
from storage.ids import ExpertId
from storage.promotion import CardBooks, Promotion, Usage

_ALIGN_BYTES = 256
"""Of each tensor in its piece: what a card's widest loads want."""


class CardSlots:
    """Memory and books of one card. For the thread that runs the model.

    Attributes:
        card: The device.
        books: What is there; change it through this only.
    """

    def __init__(self, card: Card, n_slots: Mapping[int, int]) -> None:
        self.card = card
        self.books = CardBooks(n_slots)
        self._asked = self.books.n_slots
        self._experts: dict[ExpertId, ExpertWeights] = {}
        self._memory: dict[ExpertId, Tensor] = {}

    @property
    def n_planned(self) -> int:
        """Slots it was made with."""
        return self._asked

    def held(self, layer: int, experts: Sequence[int]) -> dict[int, ExpertWeights]:
        """Those of a layer's experts that are here, ready to be used."""
        found = {}
        for expert in experts:
            weights = self._experts.get(ExpertId(layer, expert))
            if weights is not None:
                found[expert] = weights
        return found

    def reserve(self, promotion: Promotion, source: ExpertWeights) -> tuple[list[Tensor], list[int], Tensor]:
        """Make room for an expert: what to copy, where in the piece each starts, and the piece.

        Raises: torch.OutOfMemoryError when the card has no more memory; the books are then as before.
        """
        parts, starts, n_bytes = _packed(source)
        piece = self.card.empty(n_bytes) if promotion.forget is None else self._drop(promotion.forget)
        self.card.order_copies()
        self.books.begin(promotion._replace(forget=None))
        self._memory[promotion.key] = piece
        return parts, starts, piece

    def arrived(self, key: ExpertId, source: ExpertWeights) -> None:
        """The copy has ended: the expert serves from now on, unless its room is gone meanwhile."""
        self.books.arrived(key)
        self._experts[key] = _unpacked(source, self._memory[key], self.card)
        if self.books.room(key.layer) < 0:
            self._drop(key)

    def failed(self, key: ExpertId) -> None:
        """The copy came to nothing."""
        self.books.failed(key)
        del self._memory[key]

    def resize(self, n_slots: int, usage: Usage) -> int:
        """Have room for so many experts, at most as many as at first; how many were forgotten for it."""
        gone = self.books.resize(n_slots, usage)
        for key in gone:
            del self._experts[key], self._memory[key]
        self.card.trim()
        return len(gone)

    def clear(self) -> None:
        """Forget every expert."""
        for key in self.books.clear():
            del self._experts[key], self._memory[key]
        self.card.trim()

    def _drop(self, key: ExpertId) -> Tensor:
        self.books.forget(key)
        del self._experts[key]
        return self._memory.pop(key)


def _tensors(weights: ExpertWeights) -> list[Tensor]:
    matrices = (weights.w1, weights.w3, weights.w2)
    return [part for m in matrices for part in (m.weight, m.scale) if part is not None]


def _packed(weights: ExpertWeights) -> tuple[list[Tensor], list[int], int]:
    """An expert's tensors, where each starts in a piece, and the piece's bytes."""
    parts, starts, at = _tensors(weights), [], 0
    for part in parts:
        starts.append(at)
        at += -(-part.numel() // _ALIGN_BYTES) * _ALIGN_BYTES
    return parts, starts, at


def _unpacked(like: ExpertWeights, piece: Tensor, card: Card) -> ExpertWeights:
    """The same expert over the bytes of a piece."""
    _, starts, _ = _packed(like)
    place = iter(starts)

    def matrix(of: Matrix) -> Matrix:
        def view(part: Tensor) -> Tensor:
            start = next(place)
            return piece[start : start + part.numel()].view(part.shape)

        return replace(of, weight=view(of.weight), scale=None if of.scale is None else view(of.scale))

    w1, w3, w2 = matrix(like.w1), matrix(like.w3), matrix(like.w2)
    return ExpertWeights(w1=w1, w3=w3, w2=w2, card=card)
