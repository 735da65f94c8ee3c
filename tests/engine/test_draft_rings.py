"""The rings of the draft stages: keys are made late, in batches, once, each of the position it stands for."""

import random

import pytest
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.draft.rings import DraftRings


class Projection:
    """Keys that say what they are made from; notes what was asked for."""

    def __init__(self, config: ModelConfig) -> None:
        self._shape = (config.n_mtp_layers, config.head_dim)
        self.batches: list[list[int]] = []

    def __call__(self, positions: Tensor, rows: Tensor) -> Tensor:
        self.batches.append(positions.tolist())
        assert torch.equal(rows[:, 0], positions.float())  # the row of each position, and no other's
        return rows[:, 0].view(-1, 1, 1).expand(-1, *self._shape)


@pytest.fixture
def made(tiny_config: ModelConfig) -> tuple[DraftRings, Projection]:
    """Empty rings of a window of 8."""
    assert tiny_config.window_size == 8
    projection = Projection(tiny_config)
    return DraftRings(tiny_config, projection), projection


def rows_of(first: int, end: int, config: ModelConfig) -> Tensor:
    """What positions hand over, told by their first value."""
    rows = torch.zeros((end - first, len(config.dspark_target_layer_ids) * config.dim))
    rows[:, 0] = torch.arange(first, end)
    return rows


def told(keys: Tensor) -> list[int]:
    """The positions that keys [S, n, hd] stand for."""
    assert bool((keys == keys[:1, :, :1]).all())
    return keys[0, :, 0].int().tolist()


def test_keys_of_a_pause_are_made_once_in_one_go_and_only_those_still_in_the_window(
    made: tuple[DraftRings, Projection], tiny_config: ModelConfig
) -> None:
    rings, projection = made
    for position in range(50):
        rings.commit(position, rows_of(position, position + 1, tiny_config))
    assert rings.n_waiting == 8 and projection.batches == []
    assert told(rings.keys()) == told(rings.keys()) == list(range(42, 50))
    assert projection.batches == [list(range(42, 50))]
    rings.commit(50, rows_of(50, 53, tiny_config))
    assert told(rings.keys()) == list(range(45, 53)) and projection.batches[1:] == [[50, 51, 52]]


def test_whenever_keys_are_asked_for_they_are_those_of_the_last_positions(
    made: tuple[DraftRings, Projection], tiny_config: ModelConfig
) -> None:
    rings, _ = made
    lot, n, first = random.Random(5), 0, 0
    for _ in range(400):
        match lot.choice(("commit", "commit", "ask", "ahead", "back")):
            case "commit":  # of a prompt longer than the window its last positions only
                end = n + lot.choice((1, 1, 2, 6, 8, 9, 30))
                rings.commit(max(n, end - 8), rows_of(max(n, end - 8), end, tiny_config))
                n = end
            case "ask":
                assert told(rings.keys()) == list(range(max(first, n - 8), n))
            case "ahead":  # a position inside a step that is not committed
                end = n + lot.randint(1, 12)
                begin = max(n, end - lot.choice((0, 8)))
                keys = told(rings.keys_at(end, rows_of(begin, end, tiny_config)))
                whole = begin == max(n, end - 8)
                assert keys == list(range(max(first, end - 8) if whole else begin, end))
            case _:  # to where a state was kept, with its keys or, from a run without drafts, with none
                n = lot.randint(0, n)
                first = max(first, n - 8) if lot.random() < 0.7 and n >= first else n
                keys = torch.arange(first, n).view(1, -1, 1).expand(tiny_config.n_mtp_layers, -1, tiny_config.head_dim)
                rings.reset(n, keys.float() if n > first else None)
                assert rings.n_waiting == 0
