"""Waves: every expert once, pinned while in hand, in no more slots than there are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.ids import ExpertId
from storage.policy import POLICIES
from storage.waves import ExpertSlots, Phase, WavePlan


def fill(wave: WavePlan) -> None:
    for _, (table, slot) in wave.missing:
        table.fill(slot)


def experts(wave: WavePlan | None) -> list[int]:
    assert wave is not None
    return [key.expert for key, _ in wave.members()]


def run(slots: ExpertSlots, layer: int, wanted: list[int], phase: Phase = "decode") -> list[list[int]]:
    plan, waves = slots.plan(layer, wanted, phase), []
    while (wave := plan.take()) is not None:
        fill(wave)
        waves.append(experts(wave))
        wave.release()
    assert plan.n_left == 0
    return waves


def test_everything_resident_is_pinned_before_a_victim_is_chosen() -> None:
    slots = ExpertSlots({0: 3}, policy="lru")
    run(slots, 0, [0, 1, 2])
    plan = slots.plan(0, [5, 0, 6], "decode")  # 0 is the oldest, and asked for after 5
    wave = plan.take()
    assert wave is not None
    assert [key.expert for key, _ in wave.ready] == [0]
    assert not wave.missing
    following = plan.take()  # what is to be read is reserved while the first wave is in use
    assert following is not None
    assert [key.expert for key, _ in following.missing] == [5, 6]


def test_no_second_wave_before_the_first_is_released_when_all_slots_are_taken() -> None:
    slots = ExpertSlots({0: 2})
    plan = slots.plan(0, [0, 1, 2], "decode")
    first = plan.take()
    assert experts(first) == [0, 1] and plan.take() is None and plan.n_left == 1
    assert first is not None
    fill(first)
    first.release()
    assert experts(plan.take()) == [2]


def test_an_expert_on_its_way_is_waited_for_and_not_read_twice() -> None:
    slots = ExpertSlots({0: 2})
    slot = slots.tables[0].reserve(ExpertId(0, 7), "warm")
    assert slot is not None
    plan = slots.plan(0, [7, 3], "decode")
    wave, following = plan.take(), plan.take()
    assert wave is not None
    assert [key.expert for key, _ in wave.coming] == [7]
    assert following is not None
    assert [key.expert for key, _ in following.missing] == [3]


def test_a_short_prefill_counts_as_use_and_a_long_one_does_not() -> None:
    slots = ExpertSlots({0: 4}, policy="lru")
    run(slots, 0, [0, 1, 2, 3])
    run(slots, 0, [0, 1], "prefill")  # fits: 2 and 3 are now the oldest
    run(slots, 0, [4, 5])
    assert {key.expert for key in map(slots.tables[0].key, range(4)) if key} == {0, 1, 4, 5}
    run(slots, 0, [*range(4), *range(6, 12)], "prefill")  # does not fit: 0 and 1 stay the oldest
    run(slots, 0, [12, 13, 14])
    kept = {key.expert for key in map(slots.tables[0].key, range(4)) if key}
    assert kept == {5, 12, 13, 14}


def test_waves_of_a_prefill_leave_room_for_the_next_one() -> None:
    slots = ExpertSlots({0: 12}, wave_experts=8)
    plan = slots.plan(0, list(range(40)), "prefill")
    first, second = plan.take(), plan.take()
    assert experts(first) == [0, 1, 2] and experts(second) == [3, 4, 5]  # a quarter of the slots each


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_expert_comes_once_in_any_number_of_slots(policy: str, data: st.DataObject) -> None:
    sizes = {layer: data.draw(st.integers(1, 9)) for layer in range(2)}
    slots = ExpertSlots(
        sizes, policy=policy, spare_slots=data.draw(st.integers(0, 5)), wave_experts=data.draw(st.integers(1, 4))
    )
    for _ in range(data.draw(st.integers(1, 8))):
        layer = data.draw(st.integers(0, 1))
        wanted = data.draw(st.lists(st.integers(0, 11), min_size=1, unique=True))
        phase: Phase = data.draw(st.sampled_from(["prefill", "decode"]))
        plan = slots.plan(layer, wanted, phase)
        in_hand: list[WavePlan] = []
        seen: list[int] = []
        while plan.n_left or in_hand:
            wave = plan.take() if len(in_hand) < 2 else None
            if wave is not None:
                in_hand.append(wave)
                continue
            ready = in_hand.pop(0)
            fill(ready)
            seen += experts(ready)
            # Nobody took its slots meanwhile, not even the wave planned after it.
            assert all(table.key(slot) == key and table.is_ready(key) for key, (table, slot) in ready.members())
            ready.release()
        assert sorted(seen) == sorted(wanted)
        for table in (*slots.tables.values(), *([slots.spare] if slots.spare else [])):
            table.check()
            assert not any(table._pins)
