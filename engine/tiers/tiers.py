"""Experts on cards beside those in memory: who serves a request, and what is copied to cards between two steps.

Copies go on beside the next step, on a thread of their own, and an expert serves from its card only when all of it is
there: a step never waits for one. Which tier an expert is served by never changes what is added up, only where it is
computed. The one thing to get right: while an expert is copied out of its slot in memory, the slot is lent and stays.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.errors import FormatError
from engine.experts import ExpertWeights
from engine.tiers.card import Card
from engine.tiers.slots import CardSlots
from storage.expert_cache import ExpertCache
from storage.ids import ExpertId
from storage.promotion import LEAST_USES, Promoter, Promotion, Usage

STEP_BYTES = 64_000_000
"""Copied to cards beside one step at most: 3 experts of the release, some 6 ms of memory reads."""
_GIVEN_UP_SHARE = 8
"""One slot in so many is given up when a card had no memory for a computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """One card since it was opened."""

    name: str
    n_slots: int
    """Room for experts now."""
    n_planned: int
    """Room it was given by the plan."""
    n_held: int
    """Experts that are there."""
    n_served: int
    """Requests for one expert that it served."""
    n_copied: int
    """Experts copied there."""


class _Copy:
    def __init__(self, card: int, key: ExpertId, source: ExpertWeights, future: "Future[None]") -> None:
        self.card = card
        self.key = key
        self.source = source
        self.future = future


class CardTiers:
    """All cards that hold experts. For the thread that runs the model; figures may be asked for from any.

    Args:
        cards: Each card and its room by layer; a layer or stage it does not name has none.
        cache: Experts in memory, from where they are copied.
        n_experts: Experts of each layer.
        expert_bytes: Of one expert.
        on_notice: Told when a card gives slots up for good.
    """

    def __init__(
        self,
        cards: Sequence[tuple[Card, Mapping[int, int]]],
        cache: ExpertCache[ExpertWeights],
        n_experts: Mapping[int, int],
        expert_bytes: int,
        *,
        step_bytes: int = STEP_BYTES,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cache = cache
        self._usage = Usage(n_experts)
        self._promoter = Promoter(self._usage)
        self._most = max(1, step_bytes // expert_bytes)
        self._on_notice = on_notice
        self._cards = [CardSlots(card, n_slots) for card, n_slots in cards]
        self._served = [0] * len(self._cards)
        self._copied = [0] * len(self._cards)
        self._full = [False] * len(self._cards)
        self._resting: set[int] = set()
        """Cards without memory for a computation of this step, whose experts are served elsewhere until its end."""
        self._copies: list[_Copy] = []
        self._copier = ThreadPoolExecutor(1, "copies to cards")
        cache.recall = self.settle
        for index, slots in enumerate(self._cards):
            slots.card.on_full = lambda index=index: self._make_room(index)  # type: ignore[misc]

    @property
    def computes_elsewhere(self) -> bool:
        """Whether any card is another device than the processor, which stands in for one in tests."""
        return any(slots.card.device.type != "cpu" for slots in self._cards)

    def split(self, layer: int, experts: Sequence[int]) -> tuple[list[tuple[int, ExpertWeights]], list[int]]:
        """A step's request for experts of a layer: those that cards serve, and the rest."""
        self._promoter.note(layer, experts)
        served: list[tuple[int, ExpertWeights]] = []
        rest = list(experts)
        for index, slots in enumerate(self._cards):
            found = {} if index in self._resting else slots.held(layer, rest)
            if found:
                self._served[index] += len(found)
                served += found.items()
                rest = [expert for expert in rest if expert not in found]
        return served, rest

    def end_step(self) -> None:
        """A forward has ended: take in the copies that have ended too, and begin others."""
        self._resting.clear()
        self._take_in()
        room = self._most - len(self._copies)
        books = [slots.books for slots in self._cards]
        for index, promotion in self._promoter.after_step(books, room, lambda key: key in self._cache):
            self._begin(index, promotion)

    def room(self, layer: int) -> int:
        """Free slots of a layer, on all cards."""
        return sum(max(0, slots.books.room(layer)) for slots in self._cards)

    def holds(self, key: ExpertId) -> bool:
        """Is the expert on a card, or on its way to one?"""
        return any(key in slots.books or slots.books.is_coming(key) for slots in self._cards)

    def place(self, key: ExpertId) -> bool:
        """Begin to copy an expert that is in memory into a free slot; False when there is none, or it is not.

        It is taken for one that is used: no other displaces it before that is used more.
        """
        free = (index for index, slots in enumerate(self._cards) if slots.books.room(key.layer) > 0)
        index = next(free, None)
        if index is None or self.holds(key) or not self._begin(index, Promotion(key, None)):
            return False
        self._usage.credit(key, LEAST_USES)
        return True

    def settle(self) -> None:
        """Wait for the copies under way: nothing is lent afterwards."""
        while self._copies:
            self._take_in(wait=True)

    def make_room(self) -> bool:
        """Give experts of every card up, for whatever else is computed there; False when there are none."""
        self.settle()
        n_held = sum(slots.books.n_held for slots in self._cards)
        for index, slots in enumerate(self._cards):
            if slots.books.n_held:
                self._make_room(index)
        return n_held > 0

    def resize(self, card: int, n_slots: int) -> int:
        """Have room for so many experts on a card, at most what it was made with; the experts forgotten for it."""
        return self._cards[card].resize(max(0, n_slots), self._usage)

    def clear(self) -> None:
        """Forget every expert: for measurements that begin cold, and for whoever needs the memory."""
        self.settle()
        for slots in self._cards:
            slots.clear()

    def figures(self) -> tuple[CardFigures, ...]:
        """What each card has done."""
        return tuple(
            CardFigures(
                name=slots.card.name,
                n_slots=slots.books.n_slots,
                n_planned=slots.n_planned,
                n_held=slots.books.n_held,
                n_served=served,
                n_copied=copied,
            )
            for slots, served, copied in zip(self._cards, self._served, self._copied, strict=True)
        )

    def close(self) -> None:
        """End the copies, whatever came of them, and forget every expert. A second call does nothing."""
        self._copier.shutdown(cancel_futures=True)
        while self._copies:
            copy = self._copies.pop()
            self._cards[copy.card].failed(copy.key)
            self._cache.take_back(copy.key)
        self.clear()

    def _begin(self, index: int, promotion: Promotion) -> bool:
        """Begin a copy; False when the expert is not in memory, or the card has no more."""
        slots = self._cards[index]
        if not slots.books.fits(promotion):
            return False
        try:
            source = self._cache.lend(promotion.key)
        except FormatError:  # read ahead and damaged: whoever asks for it is told
            return False
        if source is None:
            return False
        try:
            parts, starts, piece = slots.reserve(promotion, source)
        except torch.OutOfMemoryError:
            self._cache.take_back(promotion.key)
            self._note_full(index, slots.books.n_taken)
            return False
        future = self._copier.submit(slots.card.copy_in, parts, starts, piece)
        self._copies.append(_Copy(index, promotion.key, source, future))
        return True

    def _take_in(self, *, wait: bool = False) -> None:
        """Take in copies that have ended, oldest first; the first of them in any case when `wait`."""
        while self._copies and (wait or self._copies[0].future.done()):
            copy, wait = self._copies.pop(0), False
            slots = self._cards[copy.card]
            try:
                copy.future.result()
            except torch.OutOfMemoryError:
                slots.failed(copy.key)
                self._note_full(copy.card, slots.books.n_taken)
            except BaseException:
                slots.failed(copy.key)
                raise
            else:
                slots.arrived(copy.key, copy.source)
                self._copied[copy.card] += 1
            finally:
                self._cache.take_back(copy.key)

    def _make_room(self, index: int) -> None:
        """A card had no memory for a computation: some experts go, and the step goes on without it."""
        self._resting.add(index)
        n_taken = self._cards[index].books.n_taken
        self._note_full(index, n_taken - max(1, n_taken // _GIVEN_UP_SHARE))

    def _note_full(self, index: int, n_slots: int) -> None:
        slots = self._cards[index]
        slots.resize(max(0, n_slots), self._usage)
        if not self._full[index]:
            self._full[index] = True
            self._on_notice(
                f"{slots.card.name} has less memory than planned: {slots.books.n_slots:,} experts stay there, "
                "the others are computed by the processor."
            )
