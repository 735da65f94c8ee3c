"""Gives expert slots back when the machine runs short of memory, and takes them again when there is room.

It looks between two requests for experts, on the thread that runs the model, at most once a second. Which experts are
in memory never changes what is answered, only how long it takes. The one thing a reader would get wrong: it looks at
what the machine has available and at what this process alone holds, never at the resident size: mapped files are in
that, and the system drops them by itself.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from app.report import format_bytes
from planner.facts import available_bytes, own_bytes
from planner.plan import Plan

INTERVAL_S = 1.0
MARGIN = 1.25
"""Slots are taken again once this many times the reserve is available, so that they do not come and go."""
LEAST_STEP = 16
"""Slots are given back at least this many at a time: each look costs a system call, a short step another look."""


class Slots(Protocol):
    """The part of `ExpertCache` that is used here."""

    def held(self) -> dict[int, int]:
        """Experts in each layer's slots."""
        ...

    def resize(self, slots_per_layer: Mapping[int, int]) -> int:
        """Give each layer so many slots; the bytes given back to the system."""
        ...


class Governor:
    """Watches one cache under one plan. For the thread that runs the model.

    Attributes:
        n_slots: Slots of all layers now.
    """

    def __init__(
        self,
        slots: Slots,
        plan: Plan,
        slot_bytes: int,
        *,
        say: Callable[[str], None] = lambda _: None,
        available: Callable[[], int | None] = available_bytes,
        own: Callable[[], int] = own_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._plan = plan
        self._slot_bytes = slot_bytes
        self._say = say
        self._available = available
        self._own = own
        self._clock = clock
        self._looked_s = clock()
        # A plan may count draft stages that are not loaded after all; the cache knows them not.
        self._planned = {layer: plan.slots[layer] for layer in slots.held()}
        self._now = dict(self._planned)
        self._said = False

    @property
    def n_slots(self) -> int:
        """Slots of all layers now, lent ones not counted."""
        return sum(self._now.values())

    def tick(self) -> None:
        """Look if it is time, and give back or take again."""
        now_s = self._clock()
        if now_s - self._looked_s < INTERVAL_S:
            return
        self._looked_s = now_s
        available, own = self._available(), self._own()
        if available is None:
            return
        reserve = self._plan.reserve_bytes
        short = max(reserve - available, own - self._plan.ceiling_bytes)
        if short > 0:
            self._give_back(short, available)
        elif self._now != self._planned:
            free = min(available - MARGIN * reserve, self._plan.ceiling_bytes - own)
            self._take_again(int(free // self._slot_bytes))

    def _give_back(self, short_bytes: int, available: int) -> None:
        """Slots that hold something, in proportion, and the empty ones, which would be filled next."""
        held = self._slots.held()
        total = sum(held.values())
        wanted = min(total, max(LEAST_STEP, -(-short_bytes // self._slot_bytes)))
        for layer, n_held in held.items():
            share = -(-wanted * n_held // total) if total else 0
            self._now[layer] = max(1, min(self._now[layer], n_held - share))
        n_bytes = self._slots.resize(self._now)
        if n_bytes and not self._said:
            self._said = True
            left, kept = format_bytes(max(0, available)), format_bytes(self._plan.reserve_bytes)
            self._say(
                f"Memory is short: {left} available, {kept} are to be left. {format_bytes(n_bytes)} of experts were "
                "given back; it is slower until there is room."
            )

    def _take_again(self, n_slots: int) -> None:
        """So many slots more, the layers that lost most first."""
        if n_slots < 1:
            return
        lost = {layer: n - self._now[layer] for layer, n in self._planned.items()}
        total = sum(lost.values())
        for layer, n in lost.items():
            self._now[layer] += n if total <= n_slots else n * n_slots // total
        self._slots.resize(self._now)
        if self._now == self._planned and self._said:
            self._said = False
            self._say("There is room again: all slots for experts are back.")
