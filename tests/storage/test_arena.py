import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.arena import HUGE_PAGE_BYTES, Arena, locate, place, span_bytes, stride_for
from storage.errors import ArenaTooLarge
from storage.extents import Extent, align
from storage.ids import SlotIndex
from storage.syscalls import PAGE_BYTES, address_of

BLOCKS = st.sampled_from([512, 4096, 16384])


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 30), BLOCKS)
def test_a_span_holds_the_blocks_around_an_extent_wherever_it_lies(offset: int, length: int, block: int) -> None:
    whole = align(Extent(shard="s", offset=offset, length=length), block)
    assert whole.length <= span_bytes(length, block) < length + 2 * block


def test_the_span_of_the_worst_offset_is_not_larger_than_needed() -> None:
    # Two bytes on either side of a boundary take two blocks, one byte never more than one.
    assert span_bytes(1, 512) == 512
    assert span_bytes(2, 512) == 1024
    assert span_bytes(513, 512) == 1024
    assert span_bytes(514, 512) == 1536
    assert span_bytes(0, 512) == 0


def test_a_released_expert_takes_two_extents_and_at_most_four_blocks_more_than_its_payload() -> None:
    weights, scales = 3 * 5_898_240, 3 * 368_640  # spec/architecture.md section 3
    assert weights + scales == 18_800_640
    stride = stride_for([weights, scales], 512)
    assert stride % PAGE_BYTES == 0
    assert 0 <= stride - (weights + scales) <= 4 * 512 + PAGE_BYTES


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 16)), min_size=1, max_size=6), BLOCKS)
def test_placed_extents_do_not_touch_each_other_and_fit(ranges: list[tuple[int, int]], block: int) -> None:
    extents = [Extent(shard=str(i), offset=offset, length=length) for i, (offset, length) in enumerate(ranges)]
    end = 0
    for extent, start, payload in place(extents, block):
        assert start == end and start % block == 0
        assert payload - start == extent.offset % block
        end = start + align(extent, block).length
        assert payload + extent.length <= end
    assert end <= stride_for([extent.length for extent in extents], block)


def test_a_tensor_is_found_inside_the_run_it_was_merged_into() -> None:
    runs = [Extent(shard="a", offset=1000, length=3000), Extent(shard="b", offset=700, length=50)]
    placements = place(runs, 512)
    assert locate(placements, Extent(shard="a", offset=1500, length=100)) == 1500 - 512
    assert locate(placements, Extent(shard="b", offset=740, length=10)) == 4096 - 512 + 740 - 512
    with pytest.raises(AssertionError):
        locate(placements, Extent(shard="b", offset=740, length=11))


@pytest.mark.parametrize("block", [4096, 16384, HUGE_PAGE_BYTES])
def test_slots_are_aligned_apart_and_writable(block: int) -> None:
    with Arena(3, 2 * block, align_bytes=block) as arena:
        for i in range(3):
            slot = arena.slot(SlotIndex(i))
            assert address_of(slot) % block == 0 and len(slot) == 2 * block
            slot[0] = slot[-1] = i + 1
        assert [arena.slot(SlotIndex(i))[k] for i in range(3) for k in (0, -1)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps_rollup")
def test_an_arena_takes_no_more_than_its_ceiling_and_the_ceiling_is_the_slots_and_one_huge_page() -> None:
    stride = 19 * 1000 * 1024 // PAGE_BYTES * PAGE_BYTES
    with Arena(4, stride) as arena:
        assert 4 * stride <= arena.ceiling_bytes <= 4 * stride + HUGE_PAGE_BYTES
        before = _anonymous_bytes()
        for i in range(4):
            np.frombuffer(arena.slot(SlotIndex(i)), dtype=np.uint8).fill(1)
        assert 3 * stride < _anonymous_bytes() - before <= arena.ceiling_bytes + HUGE_PAGE_BYTES


def test_a_view_that_outlives_the_arena_stays_readable() -> None:
    arena = Arena(1, PAGE_BYTES)
    array = np.frombuffer(arena.slot(SlotIndex(0)), dtype=np.uint8)
    array[:] = 7
    arena.close()
    assert array.sum() == 7 * PAGE_BYTES


def test_more_than_the_address_space_is_refused_by_name() -> None:
    with pytest.raises(ArenaTooLarge, match="4,096 slots"):
        Arena(4096, 1 << 50)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_slots_are_private_memory_kept_from_children() -> None:
    # A shared mapping would be page cache without huge pages; a child must not share the pages of a read in flight.
    with Arena(1, 4 * HUGE_PAGE_BYTES) as arena:
        flags = _flags_of(address_of(arena.slot(SlotIndex(0))))
        assert "dc" in flags  # VM_DONTCOPY
        assert "sh" not in flags
        assert arena.huge_pages == ("hg" in flags)


def _anonymous_bytes() -> int:
    with open("/proc/self/smaps_rollup") as file:  # noqa: PTH123 - one line of a kernel file
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


def _flags_of(address: int) -> list[str]:
    inside = False
    with open("/proc/self/smaps") as file:  # noqa: PTH123
        for line in file:
            head = line.split(" ", 1)[0]
            if "-" in head and not head.endswith(":"):
                first, last = (int(part, 16) for part in head.split("-"))
                inside = first <= address < last
            elif inside and line.startswith("VmFlags:"):
                return line.split()[1:]
    raise AssertionError("the mapping is not there")
