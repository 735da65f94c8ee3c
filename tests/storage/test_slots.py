"""Slot tables: what may be hit, what may be given up, and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.ids import SlotIndex
from storage.policy import POLICIES, Lru
from storage.slots import SlotState, SlotTable


def table(n_slots: int, *, n_guests: int = 2) -> SlotTable[str]:
    return SlotTable(n_slots, Lru[str](n_slots), n_guests=n_guests)


def put(slots: SlotTable[str], keys: str, claim: str = "use") -> None:
    for key in keys:
        slot = slots.reserve(key, claim)  # type: ignore[arg-type]
        assert slot is not None
        slots.fill(slot)
        slots.check()


def held(slots: SlotTable[str], keys: str) -> str:
    return "".join(key for key in keys if slots.is_ready(key))


def test_slots_fill_on_demand_then_the_policy_chooses() -> None:
    slots = table(3)
    put(slots, "abc")
    assert slots.n_free == 0 and slots.evictions == 0
    slots.use("a")
    put(slots, "d")
    assert held(slots, "abcd") == "acd"
    assert slots.evictions == 1


def test_a_reserved_slot_is_neither_hit_nor_evicted() -> None:
    slots = table(1)
    slot = slots.reserve("a")
    assert slot is not None
    assert "a" in slots and not slots.is_ready("a")
    assert slots.reserve("b") is None
    slots.fill(slot)
    assert slots.is_ready("a")
    assert slots.reserve("b") == slot
    assert "a" not in slots


def test_a_pinned_slot_is_never_evicted() -> None:
    slots = table(2)
    put(slots, "ab")
    a = slots.slot("a")
    slots.pin(a)
    slots.pin(a)
    put(slots, "cd")
    assert held(slots, "abcd") == "ad"
    slots.unpin(a)
    put(slots, "e")
    assert held(slots, "abcde") == "ae"
    slots.unpin(a)
    put(slots, "f")
    assert held(slots, "abcdef") == "ef"


def test_a_failed_read_frees_the_slot_and_the_key_is_read_again() -> None:
    slots = table(1)
    put(slots, "a")
    slot = slots.reserve("b")
    assert slot is not None
    slots.pin(slot)
    slots.fail(slot)
    slots.check()
    assert "a" not in slots and "b" not in slots and slots.state(slot) is SlotState.EMPTY
    assert slots.reserve("b") == slot


def test_a_scan_leaves_what_decoding_used_and_gives_up_its_own_newest() -> None:
    slots = table(6, n_guests=2)
    put(slots, "abcdef")
    put(slots, "0123456789", "scan")
    assert held(slots, "abcdef") == "cdef"  # two slots, as the limit says
    assert held(slots, "0123456789") == "09"  # the first stays for the next chunk, the region's other slot turned over


def test_a_scan_uses_empty_slots_first() -> None:
    slots = table(6, n_guests=2)
    put(slots, "ab")
    put(slots, "012345", "scan")
    assert held(slots, "ab") == "ab"
    assert held(slots, "012345") == "0125"


def test_decoding_takes_slots_back_from_a_scan_before_its_own() -> None:
    slots = table(4, n_guests=2)
    put(slots, "ab")
    put(slots, "01", "scan")
    put(slots, "cd")
    assert held(slots, "abcd01") == "abcd"


def test_a_guest_that_is_used_becomes_the_policys() -> None:
    slots = table(3, n_guests=2)
    put(slots, "012", "scan")
    slots.use("2")
    put(slots, "ab")
    assert held(slots, "012ab") == "2ab"


def test_a_scan_in_flight_counts_as_a_guest() -> None:
    slots = table(4, n_guests=2)
    put(slots, "abcd")
    first, second = slots.reserve("0", "scan"), slots.reserve("1", "scan")
    assert first is not None and second is not None
    slots.fill(first)
    third = slots.reserve("2", "scan")
    assert third == first  # not a third slot of decoding's
    assert held(slots, "abcd") == "cd"


def test_warm_keys_go_least_popular_first_and_never_displace_what_was_used() -> None:
    slots = table(3)
    put(slots, "a")
    put(slots, "12", "warm")  # hottest first
    assert slots.reserve("3", "warm", keep="123") is None
    put(slots, "b")
    assert held(slots, "a12b") == "a1b"
    assert slots.reserve("3", "warm", keep="3") is not None  # 1 is no longer wanted


def test_a_warm_key_asked_for_while_in_flight_arrives_as_used() -> None:
    slots = table(2)
    slot = slots.reserve("a", "warm")
    assert slot is not None
    slots.use("a")
    slots.fill(slot)
    put(slots, "1", "warm")
    put(slots, "b")  # the warm guest goes, not the key that was used
    assert held(slots, "a1b") == "ab"


def test_resize_gives_up_the_policys_victims_and_takes_slots_back() -> None:
    slots = table(4)
    put(slots, "abcd")
    slots.pin(slots.slot("a"))
    retired = slots.resize(2)
    slots.check()
    assert len(retired) == 2 and slots.n_slots == 2
    assert held(slots, "abcd") == "ad"
    assert all(slots.state(slot) is SlotState.RETIRED for slot in retired)
    assert slots.resize(3) == []
    put(slots, "e")
    assert held(slots, "ade") == "ade"


def test_resize_does_not_retire_what_is_in_use() -> None:
    slots = table(2)
    put(slots, "a")
    slots.pin(slots.slot("a"))
    reserved = slots.reserve("b")
    assert reserved is not None
    assert slots.resize(0) == []
    assert slots.n_slots == 2
    slots.fill(reserved)
    assert slots.resize(0) == [reserved]
    slots.unpin(slots.slot("a"))
    assert len(slots.resize(0)) == 1 and slots.n_slots == 0
    assert slots.reserve("c") is None


def test_drop_gives_up_one_key() -> None:
    slots = table(2)
    put(slots, "a")
    put(slots, "0", "scan")
    slots.drop("a")
    slots.drop("0")
    slots.check()
    assert slots.n_free == 2


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_order_of_events_evicts_a_busy_slot_or_loses_one(policy: str, data: st.DataObject) -> None:
    n_slots = data.draw(st.integers(1, 6))
    slots: SlotTable[int] = SlotTable(n_slots, POLICIES[policy](n_slots, 0), n_guests=data.draw(st.integers(1, 4)))
    reserved: dict[SlotIndex, int] = {}
    pins: list[int] = []
    for _ in range(data.draw(st.integers(1, 50))):
        event = data.draw(st.sampled_from(["reserve", "fill", "fail", "use", "pin", "unpin", "resize"]))
        key = data.draw(st.integers(0, 9))
        if event == "reserve" and key not in slots:
            slot = slots.reserve(key, data.draw(st.sampled_from(["use", "scan", "warm"])))
            if slot is not None:
                assert slot not in reserved
                reserved[slot] = key
        elif event in ("fill", "fail") and reserved:
            slot = data.draw(st.sampled_from(sorted(reserved)))
            (slots.fill if event == "fill" else slots.fail)(slot)
            gone = reserved.pop(slot)
            if event == "fail":
                pins = [pinned for pinned in pins if pinned != gone]
        elif event == "use" and key in slots:
            slots.use(key)
        elif event == "pin" and key in slots:
            slots.pin(slots.slot(key))
            pins.append(key)
        elif event == "unpin" and pins:
            slots.unpin(slots.slot(pins.pop()))
        elif event == "resize":
            slots.resize(data.draw(st.integers(0, n_slots)))
        slots.check()
        assert all(slots.key(slot) == key and not slots.is_ready(key) for slot, key in reserved.items())
        assert all(key in slots for key in pins)
