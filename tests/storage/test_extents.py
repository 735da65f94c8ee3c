"""Extents against the plainest possible model of them: the set of (shard, byte) pairs they cover."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from storage.extents import Extent, align, merge, split

extents = st.builds(
    lambda shard, offset, length: Extent(shard=shard, offset=offset, length=length),
    shard=st.sampled_from(["a", "b"]),
    offset=st.integers(0, 60),
    length=st.integers(0, 12),
)
far_extents = st.builds(
    lambda offset, length: Extent(shard="a", offset=offset, length=length),
    offset=st.integers(0, 1 << 40),
    length=st.integers(0, 1 << 33),
)


def covered(*some: Extent) -> set[tuple[str, int]]:
    return {(e.shard, byte) for e in some for byte in range(e.offset, e.end)}


def test_extents_that_touch_become_one() -> None:
    weights = [Extent(shard="s", offset=o, length=10) for o in (20, 0, 10)]
    assert merge(weights) == [Extent(shard="s", offset=0, length=30)]


def test_extents_of_two_shards_stay_apart() -> None:
    assert len(merge([Extent(shard="a", offset=0, length=5), Extent(shard="b", offset=5, length=5)])) == 2


def test_a_gap_is_bridged_only_up_to_the_given_size() -> None:
    pair = [Extent(shard="s", offset=0, length=4), Extent(shard="s", offset=7, length=4)]
    assert merge(pair, gap_bytes=2) == pair
    assert merge(pair, gap_bytes=3) == [Extent(shard="s", offset=0, length=11)]


@given(st.lists(extents, max_size=12))
def test_merging_covers_the_same_bytes_with_extents_that_do_not_touch(some: list[Extent]) -> None:
    merged = merge(some)
    assert covered(*merged) == covered(*some)
    for left, right in pairwise(merged):
        assert left.shard < right.shard or left.end < right.offset
    assert merge(merged) == merged


@given(far_extents, st.sampled_from([1, 512, 4096, 16384]))
def test_aligning_adds_less_than_a_block_on_each_side(extent: Extent, block: int) -> None:
    aligned = align(extent, block)
    assert aligned.offset % block == 0 and aligned.length % block == 0
    assert 0 <= extent.offset - aligned.offset < block
    assert 0 <= aligned.end - extent.end < block


@given(far_extents, st.integers(1 << 28, 1 << 34))
def test_split_pieces_follow_each_other_and_add_up(extent: Extent, piece_bytes: int) -> None:
    pieces = list(split(extent, piece_bytes))
    assert sum(piece.length for piece in pieces) == extent.length
    assert all(1 <= piece.length <= piece_bytes for piece in pieces)
    position = extent.offset
    for piece in pieces:
        assert piece.offset == position
        position = piece.end


def test_a_part_counts_from_the_extents_first_byte() -> None:
    assert Extent(shard="s", offset=100, length=50).part(10, 5) == Extent(shard="s", offset=110, length=5)
