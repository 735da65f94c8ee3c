"""Slots given back and taken again while a cache is in use: the bytes stay right, and the memory is really given."""

import mmap
import random
from pathlib import Path

import pytest

from storage.arena import Arena
from storage.ids import ExpertId, SlotIndex
from storage.slots import SlotState
from tests.storage.test_expert_cache import Rig


def test_fewer_slots_keep_what_is_wanted_most_and_more_come_back_empty() -> None:
    rig = Rig(8, policy="lru")
    rig.step(0, range(8))
    rig.step(0, [6, 7])
    assert rig.cache.held() == {0: 8, 1: 0}
    rig.cache.resize({0: 2, 1: 8})
    assert rig.cache.held() == {0: 2, 1: 0} and rig.resident(0) == {6, 7}
    rig.check_books()
    rig.cache.resize({0: 8, 1: 8})
    assert rig.cache.held() == {0: 2, 1: 0}
    rig.step(0, range(8))
    assert rig.resident(0) == set(range(8))


def test_no_layer_loses_its_last_slot_or_gets_more_than_it_was_made_with() -> None:
    rig = Rig(4)
    rig.cache.resize({0: 0, 1: 99})
    tables = rig.cache._slots.tables
    assert (tables[0].n_slots, tables[1].n_slots) == (1, 4)
    assert rig.step(0, range(6))


def test_what_is_given_back_is_counted_and_only_what_was_in_use() -> None:
    rig = Rig(8)
    rig.step(0, range(3))
    stride = rig.cache._loader._banks[rig.cache._slots.tables[0]].arena.stride_bytes
    assert rig.cache.resize({0: 1}) == 2 * stride  # five of the seven slots that go never held anything
    assert rig.cache.resize({0: 1}) == 0


def test_a_slot_that_a_read_is_under_way_into_stays() -> None:
    rig = Rig(2, spare_slots=2)
    table = rig.cache._slots.tables[0]
    slot = table.reserve(ExpertId(0, 3), "warm")
    assert slot is not None
    rig.cache.resize({0: 1})
    assert table.state(slot) is SlotState.RESERVED and table.n_slots == 1


def test_random_steps_get_the_right_bytes_while_slots_come_and_go() -> None:
    rng = random.Random(4)
    rig = Rig(6, spare_slots=4)
    for _ in range(150):
        if rng.random() < 0.3:
            rig.cache.resize({0: rng.randint(0, 7), 1: rng.randint(0, 7)})
        layer, phase = rng.randrange(2), rng.choice(("decode", "prefill"))
        rig.step(layer, rng.sample(range(16), rng.randint(1, 9)), phase)


def test_memory_given_back_leaves_the_process() -> None:
    status = Path("/proc/self/status")
    if not status.exists() or not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("the system does not say what a process holds, or cannot take it back")

    def held_bytes() -> int:
        line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    size = 16 << 20
    with Arena(2, size) as arena:
        for index in (0, 1):
            arena.slot(SlotIndex(index))[:] = bytes([7]) * size
        before = held_bytes()
        arena.forget(SlotIndex(0))
        assert before - held_bytes() > 0.9 * size
        assert bytes(arena.slot(SlotIndex(1))[:8]) == bytes([7]) * 8
