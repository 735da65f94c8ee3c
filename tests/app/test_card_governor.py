"""Experts leave a card when others need its memory, and come back when there is room again."""

from collections.abc import Callable

from app.card_governor import CardGovernor, WatchedCard

GB = 1_000_000_000
SLOT = 20_000_000


class Slots:
    """Notes what it was resized to."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def resize(self, card: int, n_slots: int) -> int:
        self.sizes.append((card, n_slots))
        return 0


class Watch:
    """A governor of two cards with 100 slots each, of which 2 GB were left free, at a clock that goes by hand."""

    def __init__(self) -> None:
        self.free: list[int | None] = [2 * GB, 2 * GB]
        self.now_s = 0.0
        self.slots = Slots()
        self.said: list[str] = []
        cards = [
            WatchedCard(name=f"card {i}", n_planned=100, left_bytes=2 * GB, free=self._free_of(i)) for i in range(2)
        ]
        self.governor = CardGovernor(self.slots, cards, SLOT, say=self.said.append, clock=lambda: self.now_s)

    def _free_of(self, index: int) -> Callable[[], int | None]:
        return lambda: self.free[index]

    def look(self, *free: int | None) -> list[tuple[int, int]]:
        """What it does a second later."""
        self.free[: len(free)] = free
        self.now_s += 1.0
        before = len(self.slots.sizes)
        self.governor.tick()
        return self.slots.sizes[before:]


def test_experts_leave_the_card_that_is_short_until_all_that_was_left_is_free_again() -> None:
    watch = Watch()
    assert watch.look(2 * GB, 2 * GB) == []
    assert watch.look(1_100_000_000) == []  # above half of what was left: nothing is done for a little
    assert watch.look(2 * GB, 800_000_000) == [(1, 40)]  # 1.2 GB short: 60 slots of 20 MB
    assert len(watch.said) == 1 and "card 1" in watch.said[0] and "800 MB" in watch.said[0]
    assert watch.look(2 * GB, 990_000_000) == [(1, 0)]  # and never below nothing
    assert watch.look(2 * GB, 100_000_000) == []
    assert len(watch.said) == 1


def test_room_is_taken_again_by_halves_and_only_what_the_plan_gave() -> None:
    watch = Watch()
    watch.look(900_000_000)
    assert watch.slots.sizes == [(0, 45)]
    assert watch.look(2 * GB + 8 * SLOT) == []  # too little to be worth it
    assert watch.look(2 * GB + 40 * SLOT) == [(0, 65)]
    assert watch.look(9 * GB) == [(0, 100)]
    assert watch.look(20 * GB) == []
    watch.look(900_000_000)
    assert len(watch.said) == 2  # it is said again after it was all right


def test_it_looks_once_a_second_and_leaves_alone_what_nobody_knows() -> None:
    watch = Watch()
    assert watch.look(None, None) == []
    watch.free = [0, 0]
    watch.now_s += 0.5
    watch.governor.tick()
    assert watch.slots.sizes == []
