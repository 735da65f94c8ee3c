"""Selection and candidate rules on scores written out by hand (architecture, sections 9.5 and 9.6)."""

from dataclasses import replace

import pytest
import torch

from engine.config import ModelConfig
from engine.indexer import candidate_blocks, top_k

NONE = -torch.inf


def test_of_equal_scores_the_lowest_index_wins() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 0.0, 2.0, 0.0]])
    assert top_k(scores, 4).tolist() == [[0, 1, 2, 4]]


def test_picks_are_ascending_and_invisible_groups_are_never_picked() -> None:
    scores = torch.tensor([[3.0, NONE, 5.0, NONE], [NONE, NONE, NONE, NONE], [1.0, 2.0, 3.0, 4.0]])
    assert top_k(scores, 3).tolist() == [[0, 2, -1], [-1, -1, -1], [1, 2, 3]]


def test_fewer_groups_than_k() -> None:
    assert top_k(torch.tensor([[2.0, 1.0]]), 512).tolist() == [[0, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_top_k_equals_a_stable_sort(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (6, 33), generator=generator).float()  # many ties
    scores[torch.rand(6, 33, generator=generator) < 0.3] = NONE
    k = int(torch.randint(1, 33, (1,), generator=generator))
    for row, picks in zip(scores.tolist(), top_k(scores, k).tolist(), strict=True):
        order = sorted((g for g in range(33) if row[g] > NONE), key=lambda g, row=row: (-row[g], g))[:k]  # type: ignore[misc]
        assert [g for g in picks if g >= 0] == sorted(order)


def candidates(config: ModelConfig, scores: list[float], visible: int, keep: int, size: int) -> list[bool]:
    config = replace(config, candidate_topk_blocks=keep, candidate_block_size=size)
    return candidate_blocks(torch.tensor([scores]), torch.tensor([[visible]]), config)[0].tolist()


def test_the_newest_visible_block_is_always_kept(tiny_config: ModelConfig) -> None:
    scores = [9.0, 1.0, 8.0, 1.0, 7.0, 1.0, -50.0]
    assert candidates(tiny_config, scores, 7, 2, 2) == [True, False, False, True]


def test_a_block_scores_as_its_best_group(tiny_config: ModelConfig) -> None:
    assert candidates(tiny_config, [0.0, 6.0, 3.0, 4.0, 1.0, 1.0, 0.0, 0.0], 8, 2, 2) == [True, False, False, True]


def test_a_block_without_a_visible_group_is_never_kept(tiny_config: ModelConfig) -> None:
    scores = [1.0, 2.0, 3.0, NONE, NONE, NONE]
    assert candidates(tiny_config, scores, 3, 3, 2) == [True, True, False]
    assert candidates(tiny_config, [NONE, NONE], 0, 3, 2) == [False]
