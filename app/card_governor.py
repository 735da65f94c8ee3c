"""Gives experts on cards up when others need a card's memory, and takes room again when there is some.

As `governor` does for memory, and at the same moments. Which experts are on a card never changes what is answered.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.report import format_bytes

INTERVAL_S = 1.0
KEPT_SHARE = 0.5
"""Of what the plan left free on a card: below, experts are given up until all of that is free again."""
LEAST_STEP = 8
"""Experts are given up at least this many at a time."""


class CardSlots(Protocol):
    """The part of `CardTiers` that is used here."""

    def resize(self, card: int, n_slots: int) -> int:
        """Have room for so many experts on a card; those forgotten for it."""
        ...


@dataclass(slots=True, kw_only=True)
class WatchedCard:
    """One card that holds experts."""

    name: str
    n_planned: int
    """Slots of the plan."""
    left_bytes: int
    """Left free by the plan."""
    free: Callable[[], int | None]
    """What is free now; None when nobody knows."""
    n_slots: int = 0
    """Slots now."""
    said: bool = False

    def __post_init__(self) -> None:
        self.n_slots = self.n_planned


class CardGovernor:
    """Watches the cards of one run. For the thread that runs the model."""

    def __init__(
        self,
        slots: CardSlots,
        cards: Sequence[WatchedCard],
        slot_bytes: int,
        *,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cards` are those of `slots`, in its order."""
        self._slots = slots
        self._cards = cards
        self._slot_bytes = slot_bytes
        self._say = say
        self._clock = clock
        self._looked_s = clock()

    def tick(self) -> None:
        """Look if it is time, and give up or take again."""
        now_s = self._clock()
        if now_s - self._looked_s < INTERVAL_S:
            return
        self._looked_s = now_s
        for index, card in enumerate(self._cards):
            free = card.free()
            if free is not None:
                self._look(index, card, free)

    def _look(self, index: int, card: WatchedCard, free: int) -> None:
        if free < KEPT_SHARE * card.left_bytes and card.n_slots:
            short = max(LEAST_STEP, -(-(card.left_bytes - free) // self._slot_bytes))
            card.n_slots = max(0, card.n_slots - short)
            self._slots.resize(index, card.n_slots)
            if not card.said:
                card.said = True
                self._say(
                    f"{card.name} is short of memory: {format_bytes(free)} free, {format_bytes(card.left_bytes)} are "
                    "to be left. Experts there were given up; the processor computes more until there is room."
                )
        elif card.n_slots < card.n_planned and free > card.left_bytes + LEAST_STEP * self._slot_bytes:
            # What is free beyond the plan's share counts half: others may be about to take it.
            room = (free - card.left_bytes) // (2 * self._slot_bytes)
            card.n_slots = min(card.n_planned, card.n_slots + room)
            self._slots.resize(index, card.n_slots)
            if card.n_slots == card.n_planned:
                card.said = False
