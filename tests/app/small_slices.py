"""Slices of small widths, made by the real maker."""

from pathlib import Path
from typing import Any

from app.paths import demo_folder
from app.slices.geometry import RELEASED, slice_config
from app.slices.tokenizer import filled_tokenizer
from app.slices.write import write_slice
from engine.config import ModelConfig

SMALL: dict[str, Any] = {
    **RELEASED,
    **{"vocab_size": 2100, "dim": 64, "n_heads": 4, "head_dim": 32, "rope_head_dim": 16, "q_lora_rank": 32},
    **{"o_groups": 2, "o_lora_rank": 32, "window_size": 8, "moe_inter_dim": 32, "n_routed_experts": 8},
    **{"n_activated_experts": 3, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 6},
    **{"candidate_topk_blocks": 4, "candidate_block_size": 4, "engram_vocab_size": 500_000, "engram_n_heads": 2},
    **{"engram_head_dim": 32, "dspark_markov_rank": 16, "dspark_n_routed_experts": 4, "dspark_n_activated_experts": 2},
}
"""Not the sizes but their names are the release's; tables are large enough to show that they are holes."""


def small_config(n_layers: int = 4, n_stages: int = 0) -> ModelConfig:
    """A sound config of small widths."""
    _, n_classes = filled_tokenizer(demo_folder(), SMALL["vocab_size"])
    return slice_config(n_layers, n_classes=n_classes, n_stages=n_stages, sizes=SMALL)


def small_slice(folder: Path, *, n_layers: int = 4, n_stages: int = 0, seed: int = 0) -> ModelConfig:
    """Write a slice of small widths and return its config."""
    config = small_config(n_layers, n_stages)
    tokenizer, _ = filled_tokenizer(demo_folder(), SMALL["vocab_size"])
    write_slice(folder, config, tokenizer, seed=seed)
    return config
