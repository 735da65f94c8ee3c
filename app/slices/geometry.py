"""What a slice has: the released widths with few layers, as a config that is sound by itself.

A slice of 40 layers with 3 draft stages has the released layer roles; a shorter one keeps their order.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.config import ModelConfig
from engine.config_layouts import FIELDS
from engine.hashing import engram_tables

RELEASED: Mapping[str, Any] = {
    **{"vocab_size": 129280, "dim": 5120, "n_heads": 64, "head_dim": 512, "rope_head_dim": 64, "q_lora_rank": 1280},
    **{"o_groups": 8, "o_lora_rank": 1024, "window_size": 128, "moe_inter_dim": 2304, "n_shared_experts": 1},
    **{"n_routed_experts": 384, "n_activated_experts": 6},
    **{"index_n_heads": 32, "index_head_dim": 128, "index_topk": 512},
    **{"candidate_topk_blocks": 2048, "candidate_block_size": 8},
    **{"hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "norm_eps": 1e-20},
    **{"engram_max_ngram_size": 4, "engram_vocab_size": 16_000_000, "engram_n_heads": 8, "engram_head_dim": 256},
    **{"dspark_block_size": 5, "dspark_markov_rank": 256, "dspark_n_routed_experts": 128},
    **{"dspark_n_activated_experts": 3, "original_seq_len": 65536, "max_position_embeddings": 1 << 20},
    **{"rope_theta": 10000.0, "compress_rope_theta": 160000.0, "rope_factor": 16.0, "beta_fast": 32.0},
    **{"beta_slow": 1.0, "score_func": "sqrtsoftplus", "route_scale": 1.5, "swiglu_limit": 10.0},
}
"""Sizes of the release, by field of `ModelConfig`; what depends on the number of layers is not among them."""

RELEASED_LAYERS = 40
RELEASED_STAGES = 3
RELEASED_CLASSES = 99_092
"""Folded tokens of its tokenizer."""
_DEMO_NOISE_TOKEN = 2034


def slice_config(
    n_layers: int,
    *,
    n_classes: int,
    n_experts: int | None = None,
    n_stages: int = 0,
    sizes: Mapping[str, Any] = RELEASED,
) -> ModelConfig:
    """The config of a slice.

    Args:
        n_layers: Backbone layers, at least 1.
        n_classes: Folded tokens of its tokenizer.
        n_experts: Routed experts of a layer; those of `sizes` unless given.
        n_stages: Draft stages, at most as many as layers.
        sizes: Everything else; tests give small ones.

    Raises: ConfigError if nothing can be drawn from the engram sizes.
    """
    assert n_layers >= 1 and 0 <= n_stages <= n_layers, (n_layers, n_stages)
    ratios, kv_sources, index_sources = _roles(n_layers)
    experts = sizes["n_routed_experts"] if n_experts is None else n_experts
    drafted = min(sizes["dspark_n_routed_experts"], experts)
    without_rows = ModelConfig(
        **{
            **sizes,
            "n_routed_experts": experts,
            "n_activated_experts": min(sizes["n_activated_experts"], experts),
            "dspark_n_routed_experts": drafted,
            "dspark_n_activated_experts": min(sizes["dspark_n_activated_experts"], drafted),
        },
        n_layers=n_layers,
        n_mtp_layers=n_stages,
        compress_ratios=(*ratios, *(0,) * n_stages),
        kv_source_layers=kv_sources,
        index_source_layers=index_sources,
        candidate_source_layer=kv_sources[-1] if kv_sources else -1,
        engram_layer_ids=tuple(layer for layer in (1, 14 if n_layers > 14 else 2) if layer < n_layers),
        engram_num_embeddings=(),
        engram_compressed_vocab_size=n_classes,
        engram_pad_id=2,
        dspark_target_layer_ids=tuple(range(n_layers - n_stages, n_layers)),
        dspark_noise_token_id=_DEMO_NOISE_TOKEN,
    )
    return replace(without_rows, engram_num_embeddings=tuple(table.rows for table in engram_tables(without_rows)))


def _roles(n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Ratios, KV sources and index sources: two window layers, then pairs up to the middle, then single positions.

    A KV source every sixth layer of the pairs and at the first single one; from there an index source every fourth.
    """
    first = min(2, n_layers - 1)
    single = max(n_layers // 2, first + 1)
    ratios = tuple(0 if layer < first else 2 if layer < single else 1 for layer in range(n_layers))
    if n_layers == 1:
        return (0,), (), ()
    kv_sources = [*range(first, min(single, n_layers), 6), *range(single, n_layers)[:1]]
    index_sources = sorted({*kv_sources, *range(single, n_layers, 4)})
    return ratios, tuple(kv_sources), tuple(index_sources)


def nested(config: ModelConfig) -> dict[str, Any]:
    """The config as the nested layout says it, ready for `json.dumps`."""
    result: dict[str, Any] = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41"}
    for spec in FIELDS:
        if not spec.nested:
            continue
        *sections, key = spec.nested[0].split(".")
        node = result
        for section in sections:
            node = node.setdefault(section, {})
        value = getattr(config, spec.name)
        node[key] = list(value) if isinstance(value, tuple) else value
    return result
