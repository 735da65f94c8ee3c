"""Sizes of the demo model, and both config files of a checkpoint of such sizes.

The one thing a reader would get wrong: classes and noise token follow from the tokenizer and the rows of the engram
tables from the sizes, so a geometry is complete only once a tokenizer is there.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.config import ModelConfig, load_config
from engine.config_layouts import FIELDS
from engine.hashing import engram_tables

Geometry = Mapping[str, Any]
"""Sizes under the names of the flat config."""

DEMO: Geometry = {
    **{"vocab_size": 2048, "dim": 256, "moe_inter_dim": 96, "n_layers": 8, "n_mtp_layers": 3},
    **{"n_heads": 4, "head_dim": 64, "rope_head_dim": 32, "q_lora_rank": 128, "o_groups": 2, "o_lora_rank": 64},
    **{"n_routed_experts": 32, "n_activated_experts": 4, "n_shared_experts": 1, "window_size": 32},
    **{"route_scale": 1.5, "swiglu_limit": 10.0, "score_func": "sqrtsoftplus", "norm_eps": 1e-20},
    **{"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0], "kv_source_layers": [2, 4, 5]},
    **{"index_source_layers": [2, 4, 5, 7], "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64},
    **{"candidate_source_layer": 5, "candidate_topk_blocks": 12, "candidate_block_size": 8},
    **{"compress_rope_theta": 160000, "rope_theta": 10000, "original_seq_len": 256, "rope_factor": 16},
    **{"beta_fast": 32, "beta_slow": 1, "hc_mult": 4, "hc_sinkhorn_iters": 5, "hc_eps": 1e-6},
    **{"engram_layer_ids": [1, 4], "engram_max_ngram_size": 4, "engram_vocab_size": 2500},
    **{"engram_n_heads": 4, "engram_head_dim": 32, "engram_pad_id": 2},
    **{"dspark_block_size": 5, "dspark_target_layer_ids": [5, 6, 7], "dspark_markov_rank": 64},
    **{"dspark_n_routed_experts": 16, "dspark_n_activated_experts": 2, "dtype": "fp8", "expert_dtype": "fp4"},
    **{"vision_n_layers": 1, "vision_dim": 32, "vision_n_heads": 2, "vision_inter_dim": 64},
    **{"vision_patch_size": 4, "vision_downsample_ratio": 3, "vision_max_n_token": 16, "vision_min_pixels": 144},
    **{"vision_max_wh_ratio": None, "vision_rope_theta": 10000},
}
"""What is shipped: 30 million parameters, 23 MB stored. Every mechanism of the release is on."""

TINY: Geometry = {
    **DEMO,
    **{"vocab_size": 544, "dim": 64, "moe_inter_dim": 32, "n_heads": 2, "head_dim": 32, "rope_head_dim": 16},
    **{"q_lora_rank": 32, "o_lora_rank": 32, "n_routed_experts": 8, "n_activated_experts": 2, "window_size": 16},
    **{"index_n_heads": 2, "index_topk": 12, "candidate_topk_blocks": 4, "candidate_block_size": 4},
    **{"engram_vocab_size": 67, "engram_n_heads": 2, "dspark_markov_rank": 32, "dspark_n_routed_experts": 4},
}
"""The same mechanisms in sizes that train a step in a moment, for tests. Its selections begin within a question."""

N_SPECIAL_TAIL = 32
"""Ids behind the learned vocabulary: place holders, then the release's control tokens."""


def complete(geometry: Geometry, classes: Sequence[int], noise_id: int) -> dict[str, Any]:
    """The geometry with what follows from the tokenizer's token map and from the sizes."""
    done = dict(geometry)
    done["engram_compressed_vocab_size"] = max(classes) + 1
    done["image_token_id"] = done["vocab_size"] - 1
    done["dspark_noise_token_id"] = noise_id
    done["engram_num_embeddings"] = [1] * len(done["engram_layer_ids"])  # until the tables say how many
    done["engram_num_embeddings"] = [table.rows for table in engram_tables(config_of(done))]
    return done


def config_of(geometry: Geometry) -> ModelConfig:
    """The engine's config of a complete geometry, read as the engine reads files."""
    with tempfile.TemporaryDirectory() as folder:
        write_configs(Path(folder), geometry)
        return load_config(Path(folder)).config


def nested(geometry: Geometry) -> dict[str, Any]:
    """The content of `config.json`: every field where the engine's schema looks for it, and what else is there."""
    content: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
        "quantization_config": {
            **{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
            **{"scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        },
        "text_config": {
            "model_type": "deepseek_v41_text",
            "rope_scaling": {"rope_type": "yarn"},
            **{"hidden_act": "silu", "topk_method": "noaux_tc", "norm_topk_prob": True, "num_key_value_heads": 1},
            **{"tie_word_embeddings": False, "max_position_embeddings": 1024},
        },
        "vision_config": {"model_type": "deepseek_v41_vision"},
    }
    for field in FIELDS:
        # The two types are said once for all tensors in this layout, above.
        if field.flat in geometry and field.flat not in ("dtype", "expert_dtype"):
            *path, key = field.nested[0].split(".")
            place = content
            for part in path:
                place = place.setdefault(part, {})
            place[key] = geometry[field.flat]
    return content


def write_configs(folder: Path, geometry: Geometry) -> None:
    """Both layouts, where the release has them."""
    (folder / "inference").mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", nested(geometry)), ("inference/config.json", dict(geometry))):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
