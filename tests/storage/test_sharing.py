"""Shares by the hash, and batches on a simulated clock: each drive reads what it was given at its own rate."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.sharing import REQUEST_BYTES, Item, pick, share_out

EXPERT_BYTES = 18_800_640
"""One routed expert of the release."""


def end_s(
    items: Sequence[Item], drive_of: Sequence[str], rates: Mapping[str, float], waiting: Mapping[str, int] | None = None
) -> float:
    """When the last of the batch arrives if every drive works its queue off at its rate."""
    free_at = {drive: (waiting or {}).get(drive, 0) / rate for drive, rate in rates.items()}
    arrived = 0.0
    for item, drive in zip(items, drive_of, strict=True):
        assert drive in item.drives
        free_at[drive] += (item.n_bytes + REQUEST_BYTES) / rates[drive]
        arrived = max(arrived, free_at[drive])
    return arrived


@pytest.mark.parametrize(
    "weights", [{"a": 1, "b": 1}, {"a": 3.1, "b": 7.4}, {"a": 10, "b": 1}, {"a": 5, "b": 3, "c": 2}]
)
def test_consecutive_experts_are_shared_in_proportion_to_the_weights(weights: dict[str, float]) -> None:
    n_keys = 15_360  # 40 layers of 384
    shares = Counter(pick(key, tuple(weights), weights) for key in range(n_keys))
    for drive, weight in weights.items():
        assert shares[drive] / n_keys == pytest.approx(weight / sum(weights.values()), abs=0.001)


@pytest.mark.parametrize("layer", [0, 17, 39])
def test_the_experts_of_one_layer_are_shared_in_proportion_too(layer: int) -> None:
    shares = Counter(pick(layer * 384 + expert, ("a", "b"), {"a": 2.0, "b": 1.0}) for expert in range(384))
    assert shares["a"] == pytest.approx(256, abs=4)


def test_neighbours_do_not_sit_on_one_drive() -> None:
    drives = [pick(key, ("a", "b"), {"a": 1, "b": 1}) for key in range(1000)]
    longest = max(len(run) for run in "".join(drives).replace("ab", "a b").replace("ba", "b a").split())
    assert longest <= 3


@given(st.integers(0, 1 << 70), st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5, 1e9]), min_size=1, max_size=4))
def test_a_key_always_goes_to_the_same_drive_and_never_to_one_of_no_weight(key: int, some: list[float]) -> None:
    weights = {f"d{i}": weight for i, weight in enumerate(some)}
    drive = pick(key, tuple(weights), weights)
    assert drive == pick(key, tuple(weights), weights)
    assert weights[drive] > 0 or not any(some)


def test_a_batch_that_needs_no_evening_goes_by_the_hashes() -> None:
    weights = {"a": 1.0, "b": 1.0}
    items = [Item(key=key, n_bytes=EXPERT_BYTES, drives=("a", "b")) for key in range(384)]
    planned = share_out(items, weights)
    hashed = [pick(item.key, item.drives, weights) for item in items]
    assert sum(one != other for one, other in zip(planned, hashed, strict=True)) <= 4


def test_six_experts_do_not_wait_for_one_on_a_drive_ten_times_slower() -> None:
    rates = {"fast": 3e9, "slow": 3e8}
    for first in range(200):
        items = [Item(key=first + i, n_bytes=EXPERT_BYTES, drives=("fast", "slow")) for i in range(6)]
        assert set(share_out(items, rates)) == {"fast"}


def test_a_long_batch_does_use_the_slow_drive() -> None:
    rates = {"fast": 3e9, "slow": 3e8}
    items = [Item(key=key, n_bytes=EXPERT_BYTES, drives=("fast", "slow")) for key in range(384)]
    shared = end_s(items, share_out(items, rates), rates)
    ideal = sum(item.n_bytes + REQUEST_BYTES for item in items) / sum(rates.values())
    assert shared <= ideal * 1.02
    assert shared < end_s(items, ["fast"] * 384, rates) * 0.93


def test_a_drive_that_is_still_busy_gets_less() -> None:
    rates = {"a": 1e9, "b": 1e9}
    items = [Item(key=key, n_bytes=EXPERT_BYTES, drives=("a", "b")) for key in range(6)]
    busy = {"a": 3 * EXPERT_BYTES}
    assert Counter(share_out(items, rates, busy)) in (Counter(a=1, b=5), Counter(a=2, b=4))
    assert end_s(items, share_out(items, rates, busy), rates, busy) < 5.1 * EXPERT_BYTES / 1e9  # nine experts in all


def test_what_only_a_slow_drive_has_is_read_there() -> None:
    items = [
        Item(key=0, n_bytes=EXPERT_BYTES, drives=("slow",)),
        Item(key=1, n_bytes=EXPERT_BYTES, drives=("fast", "slow")),
    ]
    assert share_out(items, {"fast": 1e9, "slow": 1e8}) == ["slow", "fast"]
    assert share_out(items, {"fast": 1.0, "slow": 0.0}) == ["slow", "fast"]
    assert share_out([], {"fast": 1.0}) == []


batches = st.lists(
    st.tuples(
        st.integers(0, 15_359),
        st.sampled_from([264, 1 << 20, EXPERT_BYTES, 3 * EXPERT_BYTES]),
        st.sets(st.sampled_from(["b", "c"]), max_size=2),
    ),
    min_size=1,
    max_size=24,
)


@settings(deadline=None)
@given(
    batches,
    st.floats(1e8, 1e10),
    st.floats(0.2, 5.0),
    st.floats(0.01, 0.5),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 100_000_000)),
)
def test_a_slow_drive_never_makes_a_batch_later_than_without_it(
    batch: list[tuple[int, int, set[str]]], rate: float, other: float, slow: float, waiting: dict[str, int]
) -> None:
    # "a" has everything, "b" and the slow "c" are partial mirrors; "c" is slower than both.
    rates = {"a": rate, "b": rate * other, "c": rate * min(1.0, other) * slow}
    items = [Item(key=key, n_bytes=n, drives=("a", *sorted(more))) for key, n, more in batch]
    without = [
        Item(key=item.key, n_bytes=item.n_bytes, drives=tuple(d for d in item.drives if d != "c")) for item in items
    ]
    with_it = end_s(items, share_out(items, rates, waiting), rates, waiting)
    assert with_it <= end_s(without, share_out(without, rates, waiting), rates, waiting) * (1 + 1e-6)
    best_possible = max(
        sum(item.n_bytes + REQUEST_BYTES for item in items) / sum(rates.values()),
        max((item.n_bytes + REQUEST_BYTES) / max(rates[d] for d in item.drives) for item in items),
    )
    assert with_it >= best_possible * (1 - 1e-6) and math.isfinite(with_it)


def test_where_moving_single_items_gets_stuck_the_slow_drive_is_left_out() -> None:
    # Found by search: no single move from the hashed start brings the end forward, and it is 3.8 times as late.
    rates = {"a": 5.61, "b": 25.66, "c": 1.46}
    sizes = (264, 264, 3 * EXPERT_BYTES, EXPERT_BYTES, 264)
    keys = (7988, 6423, 14891, 4401, 8749)
    held = (("a", "b", "c"), ("a", "b", "c"), ("a", "b"), ("a", "c"), ("a", "b"))
    items = [Item(key=key, n_bytes=n, drives=drives) for key, n, drives in zip(keys, sizes, held, strict=True)]
    planned = share_out(items, rates)
    assert planned[2:4] == ["b", "a"]
    assert end_s(items, planned, rates) == pytest.approx((EXPERT_BYTES + REQUEST_BYTES) / rates["a"], rel=0.05)


def test_rows_do_not_go_to_a_drive_whose_requests_are_slow() -> None:
    # 48 rows of 264 bytes: what counts is the number of requests, not the bytes.
    rates = {"fast": 3e9, "slow": 1e8}
    items = [Item(key=row * 7919, n_bytes=264, drives=("fast", "slow")) for row in range(24)]
    assert Counter(share_out(items, rates))["slow"] <= 1
