"""The role tables against the fixture's headers, the maker's, and the released totals."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import ModelConfig, load_config
from engine.errors import ConfigError
from engine.inventory import (
    Group,
    expected_tensors,
    is_place_holder_tower,
    place_holder_shapes,
    scale_shape,
    vision_tensors,
)
from storage.headers import DTYPE_BITS
from storage.inspection import inspect
from tests.engine.released import RELEASED
from tests.maker import NO_TOWER, Geometry, make

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"


@pytest.fixture(scope="module")
def tiny() -> ModelConfig:
    return load_config(TINY).config


# The release. Figures: the published inventory of the checkpoint (48 shards, 96,085 tensors, 475.24 GiB).


def test_the_released_totals_come_out_to_the_byte() -> None:
    expected = expected_tensors(RELEASED)
    n_bytes = sum(math.prod(t.shape) * DTYPE_BITS[t.dtype] // 8 for t in expected.values())
    assert (len(expected), n_bytes) == (96_085, 510_286_023_000)
    assert f"{n_bytes / 2**30:.2f}" == "475.24"


@pytest.mark.parametrize(
    ("group", "n_tensors", "gib"),
    [
        (Group.EXPERTS, 94_464, "275.67"),
        (Group.ENGRAM, 12, "189.13"),
        (Group.ATTENTION, 603, "4.80"),
        (Group.EMBEDDING, 3, "2.47"),
        (Group.SHARED, 240, "1.32"),
        (Group.VISION, 266, "0.90"),
        (Group.DRAFT, 97, "0.66"),
        (Group.NORMS, 400, "0.29"),
    ],
)
def test_the_released_groups_come_out(group: Group, n_tensors: int, gib: str) -> None:
    tensors = [tensor for tensor in expected_tensors(RELEASED).values() if tensor.group is group]
    n_bytes = sum(math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8 for tensor in tensors)
    assert (len(tensors), f"{n_bytes / 2**30:.2f}") == (n_tensors, gib)


def test_the_released_layers_have_the_tensors_of_their_kind() -> None:
    counts = Counter(tensor.layer for tensor in expected_tensors(RELEASED).values())
    assert [counts[layer] for layer in (0, 3, 39)] == [2334] * 3  # plain
    assert [counts[layer] for layer in (24, 28, 32, 36)] == [2337] * 4  # reindex
    assert [counts[layer] for layer in (2, 8)] == [2342] * 2  # full
    assert (counts[20], counts[1], counts[14]) == (2341, 2340, 2348)  # no gate; engram on a plain and on a full layer


def test_one_released_expert_is_six_tensors_of_known_bytes() -> None:
    tensors = {n: t for n, t in expected_tensors(RELEASED).items() if n.startswith("layers.7.ffn.experts.383.")}
    sizes = Counter(math.prod(tensor.shape) for tensor in tensors.values())
    assert sizes == {5_898_240: 3, 368_640: 3}  # packed values, scales; 18,800,640 in all


def test_the_image_tower_counts_as_its_formula_says() -> None:
    tower = vision_tensors(RELEASED)
    assert sum(name.startswith("vision.") for name in tower) == 32 * 8 + 2 + 1
    n_numbers = sum(math.prod(t.shape) for n, t in tower.items() if n.startswith(("vision.", "aligner.")))
    assert f"{n_numbers / 1e6:.1f}" == "485.3"


# The fixture


def test_the_fixture_is_what_its_config_demands(tiny: ModelConfig) -> None:
    held = inspect(TINY).tensors
    expected = expected_tensors(tiny)
    demanded = {name for name, tensor in expected.items() if tensor.group is not Group.VISION}
    assert {name for name in held if not name.startswith(("vision.", "aligner.", "image_"))} == demanded
    assert {n: (held[n].dtype, held[n].shape) for n in demanded} == {
        n: (expected[n].dtype, expected[n].shape) for n in demanded
    }


def test_the_fixture_has_a_place_holder_for_a_tower(tiny: ModelConfig) -> None:
    held = inspect(TINY).tensors
    assert is_place_holder_tower(held)
    shapes = place_holder_shapes(tiny)
    assert all(held[name].shape in shapes[name] for name in held if name.startswith(("vision.", "aligner.", "image_")))
    assert not is_place_holder_tower(expected_tensors(RELEASED))


# Any geometry


@pytest.mark.parametrize(
    ("shape", "block", "scales"),
    [
        ((64, 256), (32, 32), (2, 8)),
        ((65, 255), (32, 32), (3, 8)),  # the last block is short
        ((31, 1), (32, 32), (1, 1)),
        ((3688, 32), (1, 32), (3688, 1)),
        ((130, 256), (128, 128), (2, 2)),
    ],
)
def test_scales_round_up(shape: tuple[int, int], block: tuple[int, int], scales: tuple[int, int]) -> None:
    assert scale_shape(shape, block) == scales


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(vision=NO_TOWER, q_lora_rank=40, o_lora_rank=24, head_dim=48, index_head_dim=20, dspark_markov_rank=7),
        Geometry(vision=NO_TOWER, hc_mult=2, n_mtp_layers=1, engram_layer_ids=(0, 3), engram_max_ngram_size=3),
        Geometry(vision=NO_TOWER, engram_layer_ids=(), compress_ratios=(4, 4, 0, 1, 0), kv_source_layers=(0, 3)),
    ],
)
def test_a_made_checkpoint_is_what_its_config_demands(tmp_path: Path, geometry: Geometry) -> None:
    # The maker has role tables of its own, written from the same specification by another hand.
    if geometry.compress_ratios[0]:
        geometry = replace(geometry, index_source_layers=(0, 1, 3), candidate_source_layer=-1)
    folder = make(tmp_path, geometry, tweak=lambda weight: None)
    expected = expected_tensors(load_config(folder).config)
    held = inspect(folder).tensors
    assert {name: (entry.dtype, entry.shape) for name, entry in held.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in expected.items()
    }


def test_another_fp8_block_changes_the_dense_scales_alone(tiny: ModelConfig) -> None:
    usual, wide = expected_tensors(tiny), expected_tensors(tiny, fp8_block=128)
    changed = {tensor.role for name, tensor in usual.items() if tensor.shape != wide[name].shape}
    assert wide["layers.0.attn.wq_b.scale"].shape == (2, 1)
    assert changed and all(role.endswith(".scale") for role in changed)
    assert not {role for role in changed if role.startswith(("ffn.experts.", "engram.embed."))}


@pytest.mark.parametrize("change", [{"engram_num_embeddings": (1,)}, {"compress_ratios": (0,)}])
def test_lists_that_do_not_belong_together_are_refused(change: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ConfigError, match=r"(engram_num_embeddings|compress_ratios) has 1 entries for (2|40)"):
        expected_tensors(replace(RELEASED, **change))
