"""What a made checkpoint looks like, and the two config files that say so.

Field names are the keys of the flat layout. Two numbers are not free and are derived: the rows of each engram table and
the count of folded tokens.
"""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tests.engine.oracle_files import engram_primes, token_map

ROOT = Path(__file__).parents[2]
TOKENIZERS = {
    512: ROOT / "tests" / "data" / "tiny-a" / "checkpoint" / "tokenizer.json",
    2048: ROOT / "assets" / "demo" / "tokenizer.json",
}
"""Tokenizers a made checkpoint can borrow, by vocabulary size."""


@cache
def folded_tokens(vocab_size: int) -> int:
    """Distinct folded tokens of the borrowed tokenizer."""
    return max(token_map(TOKENIZERS[vocab_size])) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Sizes of the image tower, under the flat layout's keys without `vision_`."""

    n_layers: int = 1
    dim: int = 32
    n_heads: int = 2
    inter_dim: int = 64
    patch_size: int = 4
    downsample_ratio: int = 3
    max_n_token: int = 16
    min_pixels: int = 144


NO_TOWER = Tower(**dict.fromkeys((f.name for f in fields(Tower)), 0))
"""What a config without images says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes and roles of a made checkpoint; the defaults are small and use every part of the text model.

    `dim` and `moe_inter_dim` must be multiples of 32 (fp4 scales), `engram_head_dim` too (row scales); nothing else
    has to.
    """

    vocab_size: int = 512
    dim: int = 64
    n_layers: int = 5
    n_heads: int = 2
    head_dim: int = 32
    rope_head_dim: int = 16
    q_lora_rank: int = 32
    o_groups: int = 2
    o_lora_rank: int = 32
    window_size: int = 8
    moe_inter_dim: int = 32
    n_routed_experts: int = 8
    n_activated_experts: int = 2
    route_scale: float = 1.5
    swiglu_limit: float = 2.0
    compress_ratios: tuple[int, ...] = (0, 2, 2, 1, 1)
    """Of the backbone only; the draft stages' zeros are added."""
    kv_source_layers: tuple[int, ...] = (1, 3)
    index_source_layers: tuple[int, ...] = (1, 3, 4)
    index_n_heads: int = 8
    index_head_dim: int = 32
    index_topk: int = 6
    candidate_source_layer: int = 3
    candidate_topk_blocks: int = 3
    candidate_block_size: int = 4
    original_seq_len: int = 64
    rope_factor: int = 16
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 5
    engram_layer_ids: tuple[int, ...] = (1,)
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 100
    engram_n_heads: int = 2
    engram_head_dim: int = 32
    n_mtp_layers: int = 2
    dspark_block_size: int = 5
    dspark_target_layer_ids: tuple[int, ...] | None = None
    """None: the last `n_mtp_layers` backbone layers."""
    dspark_markov_rank: int = 32
    dspark_n_routed_experts: int = 8
    dspark_n_activated_experts: int = 2
    max_position_embeddings: int = 4096
    vision: Tower = Tower()
    """The image tower that is announced and written with made-up values; `NO_TOWER` for none."""

    @property
    def targets(self) -> tuple[int, ...]:
        """Backbone layers the draft head reads."""
        if self.dspark_target_layer_ids is not None:
            return self.dspark_target_layer_ids
        return tuple(range(self.n_layers - self.n_mtp_layers, self.n_layers))

    @property
    def engram_rows(self) -> list[int]:
        """Rows of each engram table: the sum of its moduli."""
        return [sum(columns) for columns in engram_primes(self._fields())]

    def ratio(self, layer: int) -> int:
        """Positions in a compressed group of a backbone layer; 0 = window only."""
        return self.compress_ratios[layer]

    def flat(self) -> dict[str, Any]:
        """The content of `inference/config.json`."""
        return {
            **{k: list(v) if isinstance(v, tuple) else v for k, v in self._fields().items()},
            "compress_ratios": [*self.compress_ratios, *[0] * self.n_mtp_layers],
            "dspark_target_layer_ids": list(self.targets),
            "engram_num_embeddings": self.engram_rows,
            "engram_compressed_vocab_size": folded_tokens(self.vocab_size),
            "engram_pad_id": 2,
            "dspark_noise_token_id": self.vocab_size - 14,
            "image_token_id": self.vocab_size - 1,
            **{"n_shared_experts": 1, "score_func": "sqrtsoftplus", "norm_eps": 1e-20, "hc_eps": 1e-6},
            **{"rope_theta": 10000, "compress_rope_theta": 160000, "beta_fast": 32, "beta_slow": 1},
            **{f"vision_{f.name}": getattr(self.vision, f.name) for f in fields(Tower)},
            **{"vision_max_wh_ratio": None, "vision_rope_theta": 10000, "dtype": "fp8", "expert_dtype": "fp4"},
        }

    def nested(self) -> dict[str, Any]:
        """The content of `config.json`: the same facts under the nested layout's names."""
        flat = self.flat()
        of_text = [k for k in flat if not k.startswith(("vision_", "dtype", "expert_"))]
        text = {_NESTED_NAMES.get(k, k): flat[k] for k in of_text}
        scaling = {_ROPE_NAMES[k]: text.pop(k) for k in _ROPE_NAMES}
        vision = {_VISION_NAMES.get(k, k): v for k, v in flat.items() if k.startswith("vision_")}
        vision = {"model_type": "deepseek_v41_vision", **{k.removeprefix("vision_"): v for k, v in vision.items()}}
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "bfloat16",
            **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": text.pop("image_token_id")},
            "quantization_config": {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [32, 32],
                "scale_fmt": "ue8m0",
                "expert_dtype": "fp4",
            },
            "text_config": {
                "model_type": "deepseek_v41_text",
                **text,
                "rope_scaling": {"rope_type": "yarn", **scaling},
                **{"hidden_act": "silu", "topk_method": "noaux_tc", "norm_topk_prob": True},
                **{"num_key_value_heads": 1, "tie_word_embeddings": False},
                "max_position_embeddings": self.max_position_embeddings,
            },
            "vision_config": vision,
        }

    def _fields(self) -> dict[str, Any]:
        ours = ("vision", "max_position_embeddings")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ours}


_NESTED_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "rope_head_dim": "qk_rope_head_dim",
    "window_size": "sliding_window",
    "moe_inter_dim": "moe_intermediate_size",
    "n_activated_experts": "num_experts_per_tok",
    "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor",
    "norm_eps": "rms_norm_eps",
    "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids",
    "candidate_source_layer": "candidate_source_layer_id",
    "engram_pad_id": "engram_pad_token_id",
    "n_mtp_layers": "num_nextn_predict_layers",
    "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}
_ROPE_NAMES = {
    "rope_factor": "factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_seq_len": "original_max_position_embeddings",
}
_VISION_NAMES = {
    "vision_n_layers": "num_hidden_layers",
    "vision_dim": "hidden_size",
    "vision_n_heads": "num_attention_heads",
    "vision_inter_dim": "intermediate_size",
    "vision_max_n_token": "max_image_tokens",
}
