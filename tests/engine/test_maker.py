"""The checkpoint maker: its codes, its tensor lists, its files. What the engine's tests stand on."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.audit import Outcome, audit
from engine.config import load_config
from engine.inventory import expected_tensors
from storage.checkpoint import Checkpoint
from tests.engine.oracle_files import E2M1, Weights, e4m3, e8m0
from tests.geometries import CASES, RELEASED
from tests.maker import Geometry, Weight, fill_rows, find, has_sparse_files, make, poke
from tests.maker.codes import encode_bf16, encode_e2m1, encode_e4m3, encode_fp4, encode_fp8, encode_rows
from tests.maker.inventory import shards
from tests.maker.write import ITEM_BYTES


def random(*shape: int) -> np.ndarray:
    """Numbers of very different sizes."""
    generator = np.random.default_rng(5)
    return generator.standard_normal(shape) * 2.0 ** generator.integers(-12, 8, shape)


def stored(geometry: Geometry) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every tensor by name."""
    weights = (weight for shard in shards(geometry) for weight in shard)
    return {name: (dtype, shape) for weight in weights for name, dtype, shape in weight.tensors()}


# ---- codes -----------------------------------------------------------------------------------------------------------


def test_e4m3_codes_round_like_pytorchs() -> None:
    finite = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
    middles = (e4m3(finite[:-1]) + e4m3(finite[1:])) / 2
    for x in (random(4000).clip(-448, 448), e4m3(finite), middles[np.abs(middles) <= 448]):
        want = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        assert np.array_equal(encode_e4m3(x), want)
    assert encode_e4m3(np.array([1e9, -1e9])).tolist() == [0x7E, 0xFE]


def test_e2m1_codes_round_to_even() -> None:
    """The ties of section 15 of the model's description: 0.25->0, 0.75->1, 1.25->1, 1.75->2, 2.5->2, 3.5->4, 5->4."""
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert E2M1[encode_e2m1(ties)].tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert E2M1[encode_e2m1(-ties)].tolist() == [0, -1, -1, -2, -2, -4, -4]
    assert encode_e2m1(E2M1).tolist() == list(range(16))
    assert E2M1[encode_e2m1(np.array([0.3, 2.6, 5.1, 1e9]))].tolist() == [0.5, 3, 6, 6]


def test_bf16_patterns_round_like_pytorchs() -> None:
    x = random(4000)
    want = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(encode_bf16(x), want.view(np.uint16))


def test_fp8_blocks_may_be_short() -> None:
    x = random(45, 70)
    codes, scale = encode_fp8(x)
    assert (codes.shape, scale.shape) == ((45, 70), (2, 3))
    wide = np.repeat(np.repeat(e8m0(scale), 32, 0)[:45], 32, 1)[:, :70]
    # Half a step of 3 mantissa bits, or half the smallest subnormal of the block.
    assert (np.abs(e4m3(codes) * wide - x) <= np.maximum(np.abs(x) / 16, wide * 2.0**-10)).all()


def test_fp4_pairs_put_the_even_column_low() -> None:
    x = np.zeros((1, 32))
    x[0, :4] = [1, 6, -0.5, 3]
    codes, scale = encode_fp4(x)
    assert scale.tolist() == [[127]] and codes[0, :2].tolist() == [0x72, 0x59]
    codes, scale = encode_fp4(random(7, 96))
    assert (codes.shape, scale.shape) == ((7, 48), (7, 3))


def test_table_rows_have_a_scale_per_32_values_of_their_own() -> None:
    x = np.repeat([[1.0, 448.0]], 32, axis=1)
    assert encode_rows(x)[1].tolist() == [[127 - 8, 127]]  # 1.0 needs 2^-8 to lie in 224..448


# ---- tensor lists ----------------------------------------------------------------------------------------------------


def test_the_released_geometry_has_the_published_tensors() -> None:
    """Figures of the release: 48 shards, 96,085 tensors, 510,286,023,000 bytes, and the rows of its two tables."""
    tensors = stored(RELEASED)
    assert len(list(shards(RELEASED))) == 48
    assert len(tensors) == 96_085
    assert sum(ITEM_BYTES[dtype] * math.prod(shape) for dtype, shape in tensors.values()) == 510_286_023_000
    assert RELEASED.engram_rows == [384_006_168, 384_016_682]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("toy"), Geometry(), seed=4)


@pytest.mark.parametrize("name", [name for name in CASES if name != "experts-384"])
def test_the_engine_expects_what_the_maker_writes(name: str, tmp_path: Path) -> None:
    geometry = CASES[name].geometry
    for path, content in ((tmp_path / "config.json", geometry.nested()), (tmp_path / "flat.json", geometry.flat())):
        path.write_text(json.dumps(content), "utf-8")
    config = load_config(tmp_path).config
    expected = {name: (tensor.dtype, tensor.shape) for name, tensor in expected_tensors(config).items()}
    assert stored(geometry) == expected


def test_both_config_layouts_say_the_same(toy: Path) -> None:
    both = load_config(toy)
    assert not [difference for difference in both.differences if difference.conflict]
    assert load_config(toy, config=toy / "config.json").config == both.config
    flat = load_config(toy, config=toy / "inference" / "config.json").config
    assert flat.index_source_layers == both.config.index_source_layers and flat.rope_factor == 16


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_made_checkpoint_passes_the_audit(toy: Path) -> None:
    report = audit(toy, require_complete=True)
    assert [check for check in report.checks if check.outcome is not Outcome.PASS] == []


def test_engram_tables_come_last_and_layers_have_shards_of_their_own(toy: Path) -> None:
    index = json.loads((toy / "model.safetensors.index.json").read_text("utf-8"))
    of = index["weight_map"]
    assert of["layers.1.engram.embed.weight"] == max(of.values())
    layers = [{of[name] for name in of if name.startswith(f"layers.{n}.") and "engram" not in name} for n in range(5)]
    assert all(len(names) == 1 for names in layers) and len(set.union(*layers)) == 5
    with Checkpoint.open(toy) as checkpoint:
        assert set(checkpoint.tensors) == set(of)
        assert sum(t.extent.length for t in checkpoint.tensors.values()) == index["metadata"]["total_size"]


def test_a_seed_decides_every_byte_and_another_seed_none(toy: Path, tmp_path: Path) -> None:
    again, other = make(tmp_path / "again", Geometry(), seed=4), make(tmp_path / "other", Geometry(), seed=5)
    for shard in toy.glob("*.safetensors"):
        assert (again / shard.name).read_bytes() == shard.read_bytes()
        assert (other / shard.name).read_bytes() != shard.read_bytes()


def test_a_tweak_changes_its_weight_and_no_other(toy: Path, tmp_path: Path) -> None:
    def silent(weight: Weight) -> Weight:
        return replace(weight, std=0.0) if weight.name == "layers.0.attn.wq_a" else weight

    made, plain = Weights(make(tmp_path, Geometry(), seed=4, tweak=silent)), Weights(toy)
    assert not made("layers.0.attn.wq_a.weight").any() and plain("layers.0.attn.wq_a.weight").any()
    for name in ("layers.0.attn.wq_b.weight", "layers.1.attn.wq_a.weight"):
        assert np.array_equal(made(name), plain(name))


def test_holes_take_no_space_and_read_as_zeros(tmp_path: Path) -> None:
    if not has_sparse_files(tmp_path):
        pytest.skip("the file system of the temporary folder has no sparse files")
    geometry = Geometry(engram_vocab_size=400_000_000)
    make(tmp_path, geometry, tweak=lambda weight: None if weight.kind == "rows" else weight)
    place = find(tmp_path, "layers.1.engram.embed.weight")
    assert place.shape[0] > 2**31 and place.path.stat().st_size > 32 * 2**31
    assert place.path.stat().st_blocks * 512 < 10_000_000
    weights, prefix = Weights(tmp_path), "layers.1.engram.embed."
    assert not weights.engram_row(prefix, 2**31 + 5).any()
    fill_rows(tmp_path, 1, [2**31 + 5])
    assert 0.5 < weights.engram_row(prefix, 2**31 + 5).std() < 1.2
    assert not weights.engram_row(prefix, 2**31 + 6).any() and not weights.engram_row(prefix, 5).any()


def test_poke_overwrites_the_bytes_it_names(tmp_path: Path) -> None:
    make(tmp_path, Geometry())
    with Checkpoint.open(tmp_path) as checkpoint:
        before = checkpoint.read("layers.0.attn.wkv.weight")
    poke(tmp_path, "layers.0.attn.wkv.weight", 67, b"\x7f")
    with Checkpoint.open(tmp_path) as checkpoint:
        after = checkpoint.read("layers.0.attn.wkv.weight")
    assert after[67] == 0x7F and [i for i in range(len(after)) if after[i] != before[i]] == [67]
