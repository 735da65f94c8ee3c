"""The released geometry, for tests that derive the released figures from it.

The values are those of the model's published config. Three that decide nothing derived here, the YaRN factor, its
original length and the noise token, are plausible stand-ins.
"""

import json
import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from engine.config import ModelConfig, flat
from engine.inventory import expected_tensors
from storage.headers import DTYPE_BITS
from tests.v41_tokenizer import v41_tokenizer_bytes

N_LAYERS = 40

RELEASED = ModelConfig(
    vocab_size=129280,
    dim=5120,
    n_layers=N_LAYERS,
    n_heads=64,
    head_dim=512,
    rope_head_dim=64,
    q_lora_rank=1280,
    o_groups=8,
    o_lora_rank=1024,
    window_size=128,
    moe_inter_dim=2304,
    n_routed_experts=384,
    n_activated_experts=6,
    n_shared_experts=1,
    score_func="sqrtsoftplus",
    route_scale=1.5,
    swiglu_limit=10.0,
    norm_eps=1e-20,
    compress_ratios=(0, 0, *[2] * 18, *[1] * 20, 0, 0, 0),
    kv_source_layers=(2, 8, 14, 20),
    index_source_layers=(2, 8, 14, 20, 24, 28, 32, 36),
    index_n_heads=32,
    index_head_dim=128,
    index_topk=512,
    candidate_source_layer=20,
    candidate_topk_blocks=2048,
    candidate_block_size=8,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_factor=16.0,
    beta_fast=32.0,
    beta_slow=1.0,
    original_seq_len=65536,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    engram_layer_ids=(1, 14),
    engram_num_embeddings=(384006168, 384016682),
    engram_max_ngram_size=4,
    engram_vocab_size=16000000,
    engram_n_heads=8,
    engram_head_dim=256,
    engram_compressed_vocab_size=99092,
    engram_pad_id=2,
    n_mtp_layers=3,
    dspark_block_size=5,
    dspark_noise_token_id=128799,
    dspark_target_layer_ids=(37, 38, 39),
    dspark_markov_rank=256,
    dspark_n_routed_experts=128,
    dspark_n_activated_experts=3,
    image_token_id=129264,
    vision_n_layers=32,
    vision_dim=1024,
    vision_n_heads=16,
    vision_inter_dim=2816,
    vision_patch_size=14,
    vision_downsample_ratio=3,
    vision_max_n_token=1024,
    vision_min_pixels=295936,
)


def seven_heads() -> ModelConfig:
    """The released config with the one wrong number of the audit's live check."""
    return replace(RELEASED, engram_n_heads=7)


def shard_of(name: str) -> int:
    """Number of the released shard that holds a tensor: 1 image tower, 2 embedding, 3 to 42 layers, 43 head, 44 to 46
    draft stages, 47 and 48 the engram tables with all that belongs to them."""
    first, _, rest = name.partition(".")
    if first in ("vision", "aligner"):
        return 1
    if first in ("embed", "image_start", "image_newline", "image_end"):
        return 2
    if first in ("head", "norm"):
        return 3 + N_LAYERS
    number, _, role = rest.partition(".")
    if first == "mtp":
        return 4 + N_LAYERS + int(number)
    if role.startswith("engram."):
        return 7 + N_LAYERS + RELEASED.engram_layer_ids.index(int(number))
    return 3 + int(number)


def write_released(folder: Path, *, whole: bool) -> Path:
    """The released layout: small files, index and 48 shards as bare headers, or sparse and of full size."""
    expected = expected_tensors(RELEASED)
    shards: dict[int, list[str]] = defaultdict(list)
    for name in expected:
        shards[shard_of(name)].append(name)
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in shards.items():
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name in sorted(names, key=lambda name: (-DTYPE_BITS[expected[name].dtype], name)):
            tensor = expected[name]
            end = offset + math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
            weight_map[name] = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            offset = end
        total += offset
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path = folder / weight_map[names[0]]
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        if whole:
            os.truncate(path, 8 + len(text) + offset)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(flat(RELEASED)))
    (folder / "tokenizer.json").write_bytes(v41_tokenizer_bytes())
    return folder
