"""The draft head's resident weights, as stored; its routed experts come through the same slots as everyone's.

The head has no embedding and no output matrix of its own. The one thing a reader would get wrong: the stages are not
alike. The first has the projection of what the model hands over, the last has the norm, the Markov pair and the
confidence.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.config import ModelConfig
from engine.errors import FormatError
from engine.experts import check_experts
from engine.kernels import Matrix
from engine.weights import BlockWeights, WeightLoader, load_attention, load_ffn, load_mix
from storage.checkpoint import Checkpoint
from storage.errors import StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights:
    """Everything of the draft head that stays in memory."""

    stages: tuple[BlockWeights, ...]
    """Blocks like the backbone's, with layer numbers that go on behind its last."""
    main_proj: Matrix  # [D, n_targets*D]
    main_norm: Tensor  # [D]
    norm: Tensor  # [D]
    markov_embed: Matrix  # [V, rank]
    markov_head: Matrix  # [V, rank]
    confidence: Matrix  # [1, D+rank]


def open_head(load: WeightLoader, checkpoint: Checkpoint, config: ModelConfig) -> HeadWeights | str:
    """The draft head, or why it cannot be used. A model answers the same without one, so nothing is raised for it."""
    try:
        weights = load_head(load, config)
        check_experts(checkpoint, config, drafts=True)
    except (FormatError, StorageError) as error:
        return str(error)
    return weights


def load_head(load: WeightLoader, config: ModelConfig) -> HeadWeights:
    """The draft head, as stored.

    Raises: FormatError when the config has no stage, or a tensor is missing, misshapen or holds a NaN code;
    StorageError on a failed read.
    """
    if config.n_mtp_layers == 0:
        raise FormatError("the checkpoint has no draft head")
    d, rank, last = config.dim, config.dspark_markov_rank, f"mtp.{config.n_mtp_layers - 1}"
    return HeadWeights(
        stages=tuple(_load_stage(load, config, stage) for stage in range(config.n_mtp_layers)),
        main_proj=load.fp8("mtp.0.main_proj", d, len(config.dspark_target_layer_ids) * d),
        main_norm=load.vector("mtp.0.main_norm.weight", d),
        norm=load.vector(f"{last}.norm.weight", d),
        markov_embed=load.plain(f"{last}.markov_head.embed.weight", config.vocab_size, rank),
        markov_head=load.plain(f"{last}.markov_head.head.weight", config.vocab_size, rank),
        confidence=load.plain(f"{last}.confidence_head.proj.weight", 1, d + rank),
    )


def _load_stage(load: WeightLoader, config: ModelConfig, stage: int) -> BlockWeights:
    prefix = f"mtp.{stage}"
    return BlockWeights(
        layer=config.n_layers + stage,
        attention=load_attention(load, config, prefix, None),
        ffn=load_ffn(load, config, prefix, config.dspark_n_routed_experts),
        mix_attention=load_mix(load, config, f"{prefix}.hc_attn"),
        mix_ffn=load_mix(load, config, f"{prefix}.hc_ffn"),
        engram=None,
    )
