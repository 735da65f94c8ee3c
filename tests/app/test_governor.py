"""Slots given back under pressure and taken again, on books alone; and once on a real model, whose answer stays."""

import mmap
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.governor import INTERVAL_S, Governor
from app.reading import Reading
from engine.events import Event, Notice, TokenDrawn
from engine.sampler_settings import SamplerSettings
from planner.facts import available_bytes, own_bytes
from planner.plan import Plan
from tests.fakes import Clock

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
SLOT = 1_000
RESERVE, CEILING = 100_000, 1_000_000


class Books:
    """What a governor needs of a cache: who holds how much."""

    def __init__(self, slots: Mapping[int, int], held: Mapping[int, int]) -> None:
        self.slots = dict(slots)
        self.content = dict(held)

    def held(self) -> dict[int, int]:
        return dict(self.content)

    def resize(self, slots_per_layer: Mapping[int, int]) -> int:
        self.slots = dict(slots_per_layer)
        gone = 0
        for layer, n in self.slots.items():
            gone += max(0, self.content[layer] - n)
            self.content[layer] = min(self.content[layer], n)
        return gone * SLOT


class Rig:
    """A governor whose machine is made of three numbers."""

    def __init__(
        self, slots: Mapping[int, int], held: Mapping[int, int], planned: Mapping[int, int] | None = None
    ) -> None:
        """The plan is for the slots there are, or for those that are `planned`."""
        self.available, self.own = 10 * RESERVE, 0
        self.clock = Clock()
        self.said: list[str] = []
        self.books = Books(slots, held)
        self.governor = Governor(
            self.books, plan(planned or slots), SLOT, say=self.said.append, available=lambda: self.available,
            own=lambda: self.own, clock=self.clock,
        )  # fmt: skip

    def tick(self, seconds: float = INTERVAL_S) -> dict[int, int]:
        self.clock.now_s += seconds
        self.governor.tick()
        return self.books.slots


def plan(slots: Mapping[int, int]) -> Plan:
    return Plan(
        ceiling_bytes=CEILING, available_bytes=CEILING, ruled_by="system", reserve_bytes=RESERVE, parts=(),
        slots=slots, spare_slots=4, cache_rows=0, embedding_rows=0, context_tokens=8, chunk_tokens=8, depth={},
        threads=1, drafting=False,
    )  # fmt: skip


def test_plenty_of_memory_changes_nothing_and_is_looked_at_once_a_second() -> None:
    rig = Rig({0: 50, 1: 50}, {0: 50, 1: 50})
    assert rig.tick() == {0: 50, 1: 50}
    rig.available = 0
    assert rig.tick(0.5 * INTERVAL_S) == {0: 50, 1: 50}
    assert rig.tick(0.6 * INTERVAL_S) != {0: 50, 1: 50}


def test_what_is_missing_from_the_reserve_is_given_back_in_proportion() -> None:
    rig = Rig({0: 200, 1: 200}, {0: 120, 1: 40})
    rig.available = RESERVE - 40 * SLOT
    assert rig.tick() == {0: 90, 1: 30}
    assert "experts were given back" in rig.said[0] and len(rig.said) == 1
    rig.tick()
    assert len(rig.said) == 1  # said once, not once a second


def test_slots_come_back_when_there_is_room_and_only_then() -> None:
    rig = Rig({0: 100, 1: 100}, {0: 100, 1: 100})
    rig.available = RESERVE - 50 * SLOT
    small = dict(rig.tick())
    rig.available = RESERVE + 10 * SLOT  # above the reserve, but within its margin
    assert rig.tick() == small
    rig.available = 3 * RESERVE
    assert rig.tick() == {0: 100, 1: 100}
    assert "There is room again" in rig.said[-1]


def test_draft_layers_that_were_planned_and_are_not_there_are_no_trouble() -> None:
    rig = Rig({0: 100, 1: 100}, {0: 100, 1: 100}, planned={0: 100, 1: 100, 2: 100})
    rig.available = RESERVE - 50 * SLOT
    assert rig.tick() == {0: 75, 1: 75}
    rig.available = 3 * RESERVE
    assert rig.tick() == {0: 100, 1: 100}
    assert "There is room again" in rig.said[-1]


def test_the_last_slot_of_a_layer_stays() -> None:
    rig = Rig({0: 3, 1: 3}, {0: 3, 1: 0})
    rig.available = 0
    for _ in range(5):
        rig.tick()
    assert rig.books.slots == {0: 1, 1: 1}


def test_a_process_above_its_own_ceiling_gives_back_what_it_is_over() -> None:
    rig = Rig({0: 100}, {0: 100})
    rig.own = CEILING + 30 * SLOT
    assert rig.tick() == {0: 70}


def test_mapped_files_are_no_pressure_and_anonymous_memory_is(tmp_path: Path) -> None:
    """The guard of another engine took its own mapped files for memory and destroyed its cache."""
    if own_bytes() == 0:
        pytest.skip("the system does not tell anonymous memory from mapped files")
    size = 64 << 20
    file = tmp_path / "big"
    file.write_bytes(b"\x01" * size)
    before = own_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, size, 4096)) == size // 4096  # every page is resident now
        assert own_bytes() - before < size // 4
        held = bytearray(b"\x01") * size
        assert own_bytes() - before > size // 2
        del held
    assert available_bytes() is not None


def reply(backend: LocalBackend) -> tuple[list[int], list[str]]:
    """Tokens and notices of one greedy reply."""
    request = TurnRequest(
        raw_text="the quick brown fox", effort=None, sampling=SamplerSettings(temperature=0.0, seed=1), max_tokens=24
    )
    events: list[Event] = list(backend.generate(request, lambda: False))
    tokens = [event.token for event in events if isinstance(event, TokenDrawn)]
    return tokens, [event.text for event in events if isinstance(event, Notice)]


def test_an_answer_under_pressure_is_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> LocalBackend:
        backend = LocalBackend(
            TINY, numerics="exact", index_owner="published", reading=Reading(slots=8), token_map_cache=None,
            profiles=None,
        )  # fmt: skip
        backend.open(lambda event: None, lambda: False)
        return backend

    monkeypatch.setattr("app.governor.INTERVAL_S", 0.0)
    backend = opened()
    calm, notices = reply(backend)
    assert notices == [] and len(calm) == 24
    backend.close()

    backend = opened()
    governor = backend._keeper._governor  # type: ignore[union-attr]
    assert governor is not None
    looks = iter(range(10_000))
    # Short of memory at every look but each tenth, when there is plenty.
    monkeypatch.setattr(governor, "_available", lambda: 10**15 if next(looks) % 10 == 9 else 0)
    pressed, notices = reply(backend)
    assert pressed == calm
    assert any("Memory is short" in notice for notice in notices)
    assert any("There is room again" in notice for notice in notices)
    backend.close()
