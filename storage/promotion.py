"""Which experts lie on cards: usage by layer, and what is to be copied there between two steps. Bookkeeping only.

The copy on a card is one more copy: the expert stays in its slot in memory until others need that, and on the drives
for good. So an expert leaves a card by being forgotten, and nothing is ever written back. The one thing to get right: a
slot that is being copied into serves nobody, and what is copied out of memory must stay there until the copy has ended.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage.ids import ExpertId

HALF_LIFE_STEPS = 256
"""Steps after which a use counts half: about a reply, so that a change of subject is followed within one."""
MARGIN = 1.5
"""How many times as used as what it displaces an expert must be: copies that are soon undone cost and gain nothing."""
LEAST_USES = 2.0
"""Uses, as they count now, before an expert displaces another."""
_RENORMALISE = 1e12


class Usage:
    """How often each expert was asked for, newer uses counting more.

    Instead of letting every count fade with each step, what a new use adds grows; only ratios matter.
    """

    def __init__(self, n_experts: Mapping[int, int], *, half_life_steps: int = HALF_LIFE_STEPS) -> None:
        self._counts: dict[int, npt.NDArray[np.float64]] = {layer: np.zeros(n) for layer, n in n_experts.items()}
        self._growth = 2.0 ** (1 / half_life_steps)
        self._one = 1.0

    def note(self, layer: int, experts: Sequence[int]) -> None:
        """A step asked for these distinct experts."""
        self._counts[layer][list(experts)] += self._one

    def credit(self, key: ExpertId, uses: float) -> None:
        """Count an expert as used so often now, unless it counts more: what is known of it from before."""
        counts = self._counts[key.layer]
        counts[key.expert] = max(counts[key.expert], uses * self._one)

    def end_step(self) -> None:
        """What was noted is a step older."""
        self._one *= self._growth
        if self._one > _RENORMALISE:
            for counts in self._counts.values():
                counts /= self._one
            self._one = 1.0

    def of(self, layer: int, experts: Sequence[int]) -> npt.NDArray[np.float64]:
        """Uses of some experts, as they count now."""
        uses: npt.NDArray[np.float64] = self._counts[layer][list(experts)] / self._one
        return uses


class Promotion(NamedTuple):
    """An expert to be copied onto a card."""

    key: ExpertId
    forget: ExpertId | None
    """Whose slot it takes; None where there is a free one."""


class CardBooks:
    """One card: how many experts of each layer it has room for, which are there, and which are on their way.

    Args:
        n_slots: Room of each layer; layers that are not in it have none.
    """

    def __init__(self, n_slots: Mapping[int, int]) -> None:
        self._most = dict(n_slots)
        self._n_slots = dict(n_slots)
        self._held: dict[int, dict[int, None]] = {layer: {} for layer in n_slots}
        self._coming: dict[ExpertId, None] = {}

    @property
    def n_held(self) -> int:
        """Experts that are there."""
        return sum(map(len, self._held.values()))

    @property
    def n_taken(self) -> int:
        """Experts that are there or on their way."""
        return self.n_held + len(self._coming)

    @property
    def n_slots(self) -> int:
        """Room of all layers."""
        return sum(self._n_slots.values())

    def held(self, layer: int) -> Sequence[int]:
        """Experts of a layer that are there."""
        return tuple(self._held.get(layer, ()))

    def __contains__(self, key: ExpertId) -> bool:
        """Is it there, all of it?"""
        return key.expert in self._held.get(key.layer, ())

    @property
    def coming(self) -> Collection[ExpertId]:
        """Experts that are being copied."""
        return self._coming.keys()

    def is_coming(self, key: ExpertId) -> bool:
        """Is it being copied?"""
        return key in self._coming

    def room(self, layer: int) -> int:
        """Free slots of a layer, those being copied into not counted."""
        taken = len(self._held.get(layer, ())) + sum(key.layer == layer for key in self._coming)
        return self._n_slots.get(layer, 0) - taken

    def fits(self, promotion: Promotion) -> bool:
        """Can the copy begin? What room there was when it was chosen may have been given up since."""
        if promotion.forget is None:
            return self.room(promotion.key.layer) > 0
        return promotion.forget in self and self.room(promotion.key.layer) >= 0

    def begin(self, promotion: Promotion) -> None:
        """A copy begins; what it displaces is forgotten at once."""
        if promotion.forget is not None:
            self.forget(promotion.forget)
        assert self.room(promotion.key.layer) > 0, promotion
        self._coming[promotion.key] = None

    def arrived(self, key: ExpertId) -> None:
        """A copy has ended."""
        del self._coming[key]
        self._held[key.layer][key.expert] = None

    def failed(self, key: ExpertId) -> None:
        """A copy came to nothing."""
        del self._coming[key]

    def forget(self, key: ExpertId) -> None:
        """Give up an expert that is there."""
        del self._held[key.layer][key.expert]

    def resize(self, n_slots: int, usage: Usage) -> list[ExpertId]:
        """Have room for `n_slots` in all, at most as many as at first, the layers in proportion; the least used experts
        that must go are forgotten.

        Copies under way keep their slots, whatever room is left.
        """
        total = sum(self._most.values())
        n_slots = min(n_slots, total)
        shares = {layer: n * n_slots // total for layer, n in self._most.items()} if total else {}
        for layer in sorted(shares, key=lambda layer: -(self._most[layer] * n_slots % total)):
            if sum(shares.values()) == n_slots:
                break
            shares[layer] += 1
        self._n_slots = shares
        gone: list[ExpertId] = []
        for layer, held in self._held.items():
            excess = min(-self.room(layer), len(held))
            if excess <= 0:
                continue
            experts = list(held)
            order = np.argsort(usage.of(layer, experts), kind="stable")
            for index in order[:excess].tolist():
                gone.append(ExpertId(layer, experts[index]))
                del held[experts[index]]
        return gone

    def clear(self) -> list[ExpertId]:
        """Forget everything that is there; what it was."""
        gone = [ExpertId(layer, expert) for layer, held in self._held.items() for expert in held]
        for held in self._held.values():
            held.clear()
        return gone


class Promoter:
    """Says what to copy onto cards after a step. A small object behind `Usage`, judged by `replay.replay_tiers`.

    Only experts that the step itself asked for are looked at: they are in memory, and what becomes hot is asked for.
    """

    def __init__(self, usage: Usage, *, margin: float = MARGIN, least_uses: float = LEAST_USES) -> None:
        self._usage = usage
        self._margin = margin
        self._least_uses = least_uses
        self._asked: dict[int, dict[int, None]] = {}

    def note(self, layer: int, experts: Sequence[int]) -> None:
        """A step asked for these distinct experts, wherever they are."""
        self._usage.note(layer, experts)
        self._asked.setdefault(layer, {}).update(dict.fromkeys(experts))

    def after_step(
        self, cards: Sequence[CardBooks], most: int, in_memory: Callable[[ExpertId], bool]
    ) -> list[tuple[int, Promotion]]:
        """At most `most` copies worth making, with the index of the card; the most gained first.

        `in_memory` says whether an expert can be copied from memory now.
        """
        asked, self._asked = self._asked, {}
        found: list[tuple[float, int, Promotion]] = []
        for layer, experts in asked.items():
            if most > 0:
                found += self._of_layer(layer, list(experts), cards)
        self._usage.end_step()
        found.sort(key=lambda item: -item[0])
        chosen: list[tuple[int, Promotion]] = []
        for _, card, promotion in found:
            if len(chosen) >= most:
                break
            if in_memory(promotion.key):
                chosen.append((card, promotion))
        return chosen

    def _of_layer(self, layer: int, asked: list[int], cards: Sequence[CardBooks]) -> list[tuple[float, int, Promotion]]:
        """What this layer would gain: its most used experts that are on no card, against free slots and the least used
        that are.
        """
        there = {expert for books in cards for expert in books.held(layer)}
        coming = {key.expert for books in cards for key in books.coming if key.layer == layer}
        outside = [expert for expert in asked if expert not in there and expert not in coming]
        if not outside:
            return []
        uses = self._usage.of(layer, outside)
        if not any(books.room(layer) > 0 for books in cards):  # nearly always: most steps change nothing
            least = self._usage.of(layer, list(there)).min() if there else np.inf
            if uses.max() < max(self._least_uses, self._margin * least):
                return []
        places: list[tuple[float, int, ExpertId | None]] = []
        for index, books in enumerate(cards):
            places += [(0.0, index, None)] * max(0, books.room(layer))
            held = books.held(layer)
            costs = self._usage.of(layer, held).tolist()
            places += [(cost, index, ExpertId(layer, expert)) for cost, expert in zip(costs, held, strict=True)]
        places.sort(key=lambda place: place[0])
        gains = []
        order = np.argsort(-uses, kind="stable").tolist()
        for index, (cost, card, victim) in zip(order, places, strict=False):
            use = float(uses[index])
            if victim is not None and (use < self._least_uses or use < self._margin * cost):
                break
            gains.append((use - cost, card, Promotion(ExpertId(layer, outside[index]), victim)))
        return gains
