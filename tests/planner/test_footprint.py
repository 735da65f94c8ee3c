"""The footprint, held against what the engine and the slots really take."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from app.planning import expected_places, read_model
from engine.config import ModelConfig, load_config
from engine.model import Model
from engine.numerics import NUMERICS
from engine.streams import StreamSettings
from planner.errors import MissingParts
from planner.footprint import KV_BYTES, Footprint, footprint, places
from storage.checkpoint import Checkpoint
from tests.planner.released_sizes import released_sizes

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(TINY).config


@pytest.fixture(scope="module")
def sizes(config: ModelConfig) -> Footprint:
    with Checkpoint.open(TINY) as checkpoint:
        return footprint(config, places(checkpoint.tensors))


def tensor_bytes(record: Any) -> int:
    """Bytes of every tensor in a record of records."""
    if isinstance(record, Tensor):
        return record.nbytes
    if isinstance(record, tuple | list):
        return sum(map(tensor_bytes, record))
    if is_dataclass(record):
        return sum(tensor_bytes(getattr(record, field.name)) for field in fields(record))
    return 0


@pytest.mark.parametrize("drafts", [False, True])
def test_resident_weights_are_what_the_engine_keeps(config: ModelConfig, sizes: Footprint, drafts: bool) -> None:
    with Checkpoint.open(TINY) as checkpoint:
        model = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=1), drafts=drafts)
        kept = tensor_bytes(model._trunk)
        draft = tensor_bytes(model.head.weights) if model.head is not None else 0
        model.close()
    assert sizes.trunk.n_bytes + sizes.head.n_bytes == kept
    assert draft == (sizes.draft.n_bytes if drafts else 0)


def test_slots_are_what_the_cache_maps(config: ModelConfig, sizes: Footprint) -> None:
    with Checkpoint.open(TINY) as checkpoint:
        model = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=3, spare_slots=4))
        ceiling = model.streams.experts.ceiling_bytes
        model.close()
    arenas = 2  # one for the layers' own slots, one for those lent
    assert ceiling <= sizes.stride_bytes * (3 * config.n_layers + 4) + arenas * (1 << 21)
    assert ceiling >= sizes.expert_bytes * (3 * config.n_layers + 4)


def test_a_conversation_takes_what_its_rows_take(config: ModelConfig, sizes: Footprint) -> None:
    n = 50
    with Checkpoint.open(TINY) as checkpoint:
        model = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=16))
        state = model.new_state()
        state.commit(model.forward(state, [(7 * i) % config.vocab_size for i in range(n)], "prefill").step)
        windows = sum(window.n_bytes for window in state.windows)
        staged = config.n_layers * config.window_size * config.head_dim * 4
        rows = {
            layer: source.latents.upto(n // source.ratio).nbytes + source.keys.upto(n // source.ratio).nbytes
            for layer, source in state.sources.items()
        }
        largest = max(source.latents.upto(n // source.ratio).nbytes for source in state.sources.values())
        model.close()
    assert sizes.kv_bytes(n) == sum(rows.values()) + largest + windows + staged


def test_keys_take_what_the_numeric_mode_stores_them_as(config: ModelConfig, sizes: Footprint) -> None:
    assert {name: mode.cached.itemsize for name, mode in NUMERICS.items()} == KV_BYTES
    with Checkpoint.open(TINY) as checkpoint:
        assert (
            footprint(config, places(checkpoint.tensors), numerics="reference").kv_bytes(64) == sizes.kv_bytes(64) / 2
        )


def test_a_conversation_of_the_release_is_far_below_a_dense_one() -> None:
    """6,400 bytes a token as float32: 2.5 sources' worth of 640 values. Half as bf16: the published 3.2 kB."""
    sizes = released_sizes()
    windows = 40 * (2 * 128 + 32) * 512 * 4  # while a prompt's is staged
    for context in (8_192, 200_000, 1_048_576):
        copied = context * 512 * 4  # the largest source, while it grows
        assert sizes.kv_bytes(context) == 6_400 * context + copied + windows
    assert 3_200 * 2 == 6_400


def test_headers_in_any_order_and_a_config_alone_give_the_same_model(sizes: Footprint) -> None:
    from_folder = read_model(TINY)
    assert from_folder.footprint == sizes and from_folder.note == ""
    from_config = read_model(TINY / "config.json")
    assert "follow from the config" in from_config.note
    # The experts of the tiny files lie as the released ones do; what a place holder tower takes is no part of a plan.
    same = replace(from_config.footprint, n_tensors=sizes.n_tensors)
    assert same == sizes


def test_header_prefixes_are_enough(tmp_path: Path, sizes: Footprint) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    for shard in TINY.glob("*.safetensors"):
        header_bytes = int.from_bytes(shard.read_bytes()[:8], "little")
        (tmp_path / shard.name).write_bytes(shard.read_bytes()[: 8 + header_bytes])
    assert read_model(tmp_path).footprint == sizes


def test_what_headers_lack_follows_from_the_config(tmp_path: Path, sizes: Footprint) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    shards = sorted(TINY.glob("*.safetensors"))
    for shard in shards[: len(shards) // 2]:
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    (tmp_path / shards[-1].name).write_bytes(b"\x00" * 7)
    model = read_model(tmp_path)
    assert "tensors are known by their headers" in model.note
    assert model.footprint.trunk == sizes.trunk and model.footprint.stride_bytes == sizes.stride_bytes
    assert model.outline.refused == (shards[-1].name,)


def test_missing_parts_are_named(config: ModelConfig) -> None:
    whole = list(expected_places(config))
    for gone in ("layers.2.ffn.experts.5.w2.scale", "head.weight", "embed.weight"):
        with pytest.raises(MissingParts, match=gone.split(".w2")[0].removesuffix(".weight")):
            footprint(config, [place for place in whole if place[0] != gone])
    half = footprint(config, [place for place in whole if place[0] != "mtp.0.ffn.experts.1.w1.weight"])
    assert not half.has_draft and footprint(config, whole).has_draft
