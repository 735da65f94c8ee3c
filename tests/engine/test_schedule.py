"""The index-key slot: the rule of architecture section 12 on the released roles, and on rows taken together."""

from dataclasses import replace

import pytest

from engine.config import ModelConfig
from engine.schedule import NO_OWNER, max_decode_rows, n_scored, schedule


@pytest.fixture
def released(tiny_config: ModelConfig) -> ModelConfig:
    """The released layer roles: ratios 0,0, then 2 on layers 2..19, then 1; draft stages 0."""
    return replace(
        tiny_config,
        n_layers=40,
        compress_ratios=(0, 0, *[2] * 18, *[1] * 20, 0, 0, 0),
        kv_source_layers=(2, 8, 14, 20),
        index_source_layers=(2, 8, 14, 20, 24, 28, 32, 36),
        candidate_source_layer=20,
    )


def owners(
    config: ModelConfig, start: int, n: int, rule: str, slot: int, reading: str = "published"
) -> dict[int, list[int]]:
    return {k: list(v) for k, v in schedule(config, start, n, rule, slot, reading).owners.items()}  # type: ignore[arg-type]


def test_a_prefill_scores_the_nearest_sources_own_keys(released: ModelConfig) -> None:
    assert owners(released, 0, 2, "prefill", NO_OWNER) == {
        2: [2, 2], 8: [8, 8], 14: [14, 14], 20: [20, 20], 24: [20, 20], 28: [20, 20], 32: [20, 20], 36: [20, 20],
    }  # fmt: skip


def test_a_one_token_prefill_has_nothing_to_select_above_ratio_one(released: ModelConfig) -> None:
    got = schedule(released, 0, 1, "prefill", NO_OWNER, "published")
    assert got.owners[2] == [NO_OWNER] and got.owners[20] == [20] and got.slot_after == [20]


def test_at_even_positions_the_ratio_two_sources_score_layer_twentys_keys(released: ModelConfig) -> None:
    assert {k: owners(released, 100, 1, "decode", 20)[k] for k in (2, 8, 14, 20, 36)} == {
        2: [20], 8: [20], 14: [20], 20: [20], 36: [20],
    }  # fmt: skip


def test_at_odd_positions_each_scores_its_own(released: ModelConfig) -> None:
    got = owners(released, 101, 1, "decode", 20)
    assert (got[2], got[8], got[14], got[20]) == ([2], [8], [14], [20])


def test_rows_together_are_scheduled_like_rows_alone(released: ModelConfig) -> None:
    together = owners(released, 57, 6, "decode", 20)
    for row in range(6):
        alone = owners(released, 57 + row, 1, "decode", 20)
        assert {k: v[row] for k, v in together.items()} == {k: v[0] for k, v in alone.items()}


def test_the_other_reading_always_takes_the_nearest(released: ModelConfig) -> None:
    assert owners(released, 100, 1, "decode", 20, "nearest")[2] == [2]


def test_the_number_of_keys_follows_the_query_not_the_owner(released: ModelConfig) -> None:
    assert n_scored(released, 2, 20, 100) == 50  # layer 20 has 100 keys by then
    assert n_scored(released, 20, 20, 100) == 101
    assert n_scored(released, 2, 2, 101) == 51
    assert n_scored(released, 2, NO_OWNER, 0) == 0


def test_early_rows_fall_back_to_fewer_at_a_time(released: ModelConfig) -> None:
    # Row q needs layer 20's keys below (q+1)//2, all older than the batch as long as q <= 2p (section 14).
    assert max_decode_rows(released, 1, 6, 20, "published") == 3  # q = 4 would need 2 keys, one exists
    assert max_decode_rows(released, 6, 6, 20, "published") == 6
    for start in range(1, 12):
        want = next((row for row in range(1, 6) if (start + row) % 2 == 0 and start + row > 2 * start), 6)
        assert max_decode_rows(released, start, 6, 20, "published") == want
