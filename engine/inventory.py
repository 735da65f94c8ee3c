"""Which tensors a config demands: name, dtype, shape, and whose they are.

Owns the role tables of the architecture, not where a tensor lies or whether it is there. The one thing a reader would
get wrong: a ratio above 0 does not make a layer own anything; the source lists do, and a ratio-1 source has no `wgate`.
"""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from engine.config import ModelConfig
from engine.errors import ConfigError

FP4_COLUMNS = 32
"""Columns one scale of a packed expert weight, or of an engram row, covers."""


class Group(StrEnum):
    """What a tensor is for, as the audit's summary sorts it."""

    EXPERTS = "routed experts"
    ENGRAM = "engram"
    ATTENTION = "attention"
    EMBEDDING = "embedding and head"
    SHARED = "shared experts"
    VISION = "vision and aligner"
    DRAFT = "draft head"
    NORMS = "norms and hyper-connections"


class Reader(StrEnum):
    """Who reads a tensor: the text forward, only drafting, or only images."""

    TEXT = "text"
    DRAFT = "draft"
    IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensor:
    """One tensor the config demands."""

    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    role: str
    """Its name without layer, stage and expert number: "attn.wq_a.weight", "ffn.experts.w1.scale"."""
    group: Group
    reader: Reader
    layer: int | None = None
    """Backbone layer, or None."""
    stage: int | None = None
    """Draft stage, or None."""
    expert: int | None = None
    """Routed expert within its layer or stage, or None."""


Tensors = dict[str, ExpectedTensor]
_Role = tuple[str, str, tuple[int, ...]]


def expected_tensors(config: ModelConfig, *, fp8_block: int = 32) -> Tensors:
    """Every tensor of a complete checkpoint by name: backbone, draft head, engram tables, image tower.

    `fp8_block` is the side of the block one scale of a dense fp8 weight covers. Engram tables have the declared rows.
    Raises: ConfigError if lists that go together have different lengths.
    """
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        raise ConfigError(
            f"engram_num_embeddings has {len(config.engram_num_embeddings)} entries for "
            f"{len(config.engram_layer_ids)} engram layers"
        )
    if len(config.compress_ratios) < config.n_layers:
        raise ConfigError(f"compress_ratios has {len(config.compress_ratios)} entries for {config.n_layers} layers")
    tensors = _model_level(config)
    for layer in range(config.n_layers):
        tensors |= _layer(config, layer, fp8_block)
    for stage in range(config.n_mtp_layers):
        tensors |= _stage(config, stage, fp8_block)
    tensors |= vision_tensors(config)
    return tensors


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of a weight [rows, columns] with one scale per `block`: the last block may be short."""
    return (-(-shape[0] // block[0]), -(-shape[1] // block[1]))


def _fp8(name: str, shape: tuple[int, int], block: int) -> list[_Role]:
    return [
        (f"{name}.weight", "F8_E4M3", shape),
        (f"{name}.scale", "F8_E8M0", scale_shape(shape, (block, block))),
    ]


def _bf16(name: str, *shape: int) -> _Role:
    return (name, "BF16", shape)


def _f32(name: str, *shape: int) -> _Role:
    return (name, "F32", shape)


def _model_level(config: ModelConfig) -> Tensors:
    def tensor(name: str, *shape: int) -> Tensors:
        made = ExpectedTensor(dtype="BF16", shape=shape, role=name, group=Group.EMBEDDING, reader=Reader.TEXT)
        return {name: made}

    width = (config.vocab_size, config.dim)
    return tensor("embed.weight", *width) | tensor("head.weight", *width) | tensor("norm.weight", config.dim)


def _block_roles(config: ModelConfig, n_experts: int, fp8_block: int) -> list[_Role]:
    """What every backbone layer and every draft stage has, routed experts aside."""
    c, heads = config, config.n_heads * config.head_dim
    mixes = (2 + c.hc_mult) * c.hc_mult
    roles = [_bf16("attn_norm.weight", c.dim), _bf16("ffn_norm.weight", c.dim)]
    roles += _fp8("attn.wq_a", (c.q_lora_rank, c.dim), fp8_block)
    roles += [_bf16("attn.q_norm.weight", c.q_lora_rank)]
    roles += _fp8("attn.wq_b", (heads, c.q_lora_rank), fp8_block)
    roles += _fp8("attn.wkv", (c.head_dim, c.dim), fp8_block)
    roles += [_bf16("attn.kv_norm.weight", c.head_dim)]
    roles += _fp8("attn.wo_a", (c.o_groups * c.o_lora_rank, heads // c.o_groups), fp8_block)
    roles += _fp8("attn.wo_b", (c.dim, c.o_groups * c.o_lora_rank), fp8_block)
    roles += [_f32("attn.attn_sink", c.n_heads)]
    roles += [_bf16("ffn.gate.weight", n_experts, c.dim)]
    roles += [_f32("ffn.gate.bias", n_experts), _f32("ffn.gate.bias_vl", n_experts)]
    for name in ("w1", "w3"):
        roles += _fp8(f"ffn.shared_experts.{name}", (c.moe_inter_dim, c.dim), fp8_block)
    roles += _fp8("ffn.shared_experts.w2", (c.dim, c.moe_inter_dim), fp8_block)
    for half in ("attn", "ffn"):
        roles += [_f32(f"hc_{half}_fn", mixes, c.hc_mult * c.dim), _f32(f"hc_{half}_base", mixes)]
        roles += [_f32(f"hc_{half}_scale", 3)]
    return roles


def _compressor_roles(config: ModelConfig, layer: int) -> list[_Role]:
    roles = [_bf16("attn.compressor.wkv.weight", config.head_dim, config.dim)]
    if config.ratio(layer) > 1:
        # Pooling one position needs no gate: the tensor is absent by design, not missing.
        roles += [_bf16("attn.compressor.wgate.weight", config.head_dim, config.dim)]
    roles += [_bf16("attn.compressor.norm.weight", config.head_dim)]
    roles += [_bf16("attn.indexer.wk.weight", config.index_head_dim, config.head_dim)]
    return [*roles, _bf16("attn.indexer.k_norm.weight", config.index_head_dim)]


def _selector_roles(config: ModelConfig, fp8_block: int) -> list[_Role]:
    roles = _fp8("attn.indexer.wq_b", (config.index_n_heads * config.index_head_dim, config.q_lora_rank), fp8_block)
    return [*roles, _bf16("attn.indexer.weights_proj.weight", config.index_n_heads, config.dim)]


def _engram_roles(config: ModelConfig, layer: int, fp8_block: int) -> list[_Role]:
    c = config
    rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
    read = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    table = (rows, c.engram_head_dim)
    roles: list[_Role] = [
        ("engram.embed.weight", "F8_E4M3", table),
        ("engram.embed.scale", "F8_E8M0", scale_shape(table, (1, FP4_COLUMNS))),
    ]
    roles += _fp8("engram.wkv", (c.dim * (c.hc_mult + 1), read), fp8_block)
    return [*roles, _bf16("engram.q_weight", c.hc_mult, c.dim), _bf16("engram.k_weight", c.hc_mult, c.dim)]


def _expert_roles(config: ModelConfig) -> list[_Role]:
    """One routed expert: fp4 values packed two to an I8 byte along the columns, one scale per row and 32 columns."""
    roles: list[_Role] = []
    wide, narrow = (config.moe_inter_dim, config.dim), (config.dim, config.moe_inter_dim)
    for name, shape in (("w1", wide), ("w2", narrow), ("w3", wide)):
        roles.append((f"{name}.weight", "I8", (shape[0], shape[1] // 2)))
        roles.append((f"{name}.scale", "F8_E8M0", scale_shape(shape, (1, FP4_COLUMNS))))
    return roles


def _layer(config: ModelConfig, layer: int, fp8_block: int) -> Tensors:
    roles = _block_roles(config, config.n_routed_experts, fp8_block)
    if layer in config.kv_source_layers:
        roles += _compressor_roles(config, layer)
    if layer in config.index_source_layers:
        roles += _selector_roles(config, fp8_block)
    if layer in config.engram_layer_ids:
        roles += _engram_roles(config, layer, fp8_block)
    tensors = {
        f"layers.{layer}.{role}": ExpectedTensor(
            dtype=dtype, shape=shape, role=role, group=_group(role), reader=_reader(role, Reader.TEXT), layer=layer
        )
        for role, dtype, shape in roles
    }
    experts = _experts(config, f"layers.{layer}", config.n_routed_experts, Reader.TEXT, layer=layer)
    return tensors | experts


def _stage(config: ModelConfig, stage: int, fp8_block: int) -> Tensors:
    c = config
    roles = _block_roles(c, c.dspark_n_routed_experts, fp8_block)
    if stage == 0:
        roles += _fp8("main_proj", (c.dim, len(c.dspark_target_layer_ids) * c.dim), fp8_block)
        roles += [_bf16("main_norm.weight", c.dim)]
    if stage == c.n_mtp_layers - 1:
        roles += [_bf16("norm.weight", c.dim)]
        roles += [_bf16(f"markov_head.{half}.weight", c.vocab_size, c.dspark_markov_rank) for half in ("embed", "head")]
        roles += [_bf16("confidence_head.proj.weight", 1, c.dim + c.dspark_markov_rank)]
    tensors = {
        f"mtp.{stage}.{role}": ExpectedTensor(
            dtype=dtype, shape=shape, role=role, group=Group.DRAFT, reader=_reader(role, Reader.DRAFT), stage=stage
        )
        for role, dtype, shape in roles
    }
    experts = _experts(config, f"mtp.{stage}", c.dspark_n_routed_experts, Reader.DRAFT, stage=stage)
    return tensors | experts


def _experts(
    config: ModelConfig, prefix: str, count: int, reader: Reader, *, layer: int | None = None, stage: int | None = None
) -> Tensors:
    roles = [(role, f"ffn.experts.{role}", dtype, shape) for role, dtype, shape in _expert_roles(config)]
    return {
        f"{prefix}.ffn.experts.{number}.{role}": ExpectedTensor(
            dtype=dtype,
            shape=shape,
            role=full_role,
            group=Group.EXPERTS,
            reader=reader,
            layer=layer,
            stage=stage,
            expert=number,
        )
        for number in range(count)
        for role, full_role, dtype, shape in roles
    }


def _group(role: str) -> Group:
    if role.startswith("engram."):
        return Group.ENGRAM
    if role.startswith("attn"):
        return Group.ATTENTION
    return Group.SHARED if role.startswith("ffn.shared_experts.") else Group.NORMS


def _reader(role: str, otherwise: Reader) -> Reader:
    return Reader.IMAGE if role == "ffn.gate.bias_vl" else otherwise


def vision_tensors(config: ModelConfig) -> Tensors:
    """The image tower, the aligner and the three span vectors; empty when the config has no tower."""
    c = config
    if c.vision_n_layers == 0:
        return {}
    width, joined = c.vision_dim, c.vision_dim * c.vision_downsample_ratio**2
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (width, 3 * c.vision_patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
    }
    for block in range(c.vision_n_layers):
        prefix = f"vision.blocks.{block}"
        shapes |= {
            f"{prefix}.norm1.weight": (width,),
            f"{prefix}.norm2.weight": (width,),
            f"{prefix}.attn.wqkv.weight": (3 * width, width),
            f"{prefix}.attn.wqkv.bias": (3 * width,),
            f"{prefix}.attn.wo.weight": (width, width),
            f"{prefix}.attn.wo.bias": (width,),
            f"{prefix}.mlp.w1.weight": (2 * c.vision_inter_dim, width),
            f"{prefix}.mlp.w2.weight": (width, c.vision_inter_dim),
        }
    shapes |= {
        "vision.norm.weight": (width,),
        "aligner.w1.weight": (c.dim, joined),
        "aligner.w1.bias": (c.dim,),
        "aligner.w2.weight": (c.dim, c.dim),
        "aligner.w2.bias": (c.dim,),
        "image_start": (c.dim,),
        "image_newline": (c.dim,),
        "image_end": (c.dim,),
    }
    return {
        name: ExpectedTensor(dtype="BF16", shape=shape, role=name, group=Group.VISION, reader=Reader.IMAGE)
        for name, shape in shapes.items()
    }


def is_place_holder_tower(names: Container[str]) -> bool:
    """Whether a checkpoint's image tower is a place holder: a few tensors that stand where a real one would be.

    Text-only test and demo checkpoints have one. It is known by its patch embedding, which no real tower spells so.
    """
    return "vision.patch_embed.weight" in names and "vision.patch_embed.proj.weight" not in names


def place_holder_shapes(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The shapes a place holder's tensors may have, by name; it need not have all of them. Empty without a tower."""
    if config.vision_n_layers == 0:
        return {}
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        name: (tensor.shape,) for name, tensor in vision_tensors(config).items()
    }
    shapes["vision.patch_embed.weight"] = shapes.pop("vision.patch_embed.proj.weight")
    for block in range(config.vision_n_layers):
        # It may lack the gate half.
        shapes[f"vision.blocks.{block}.mlp.w1.weight"] += ((config.vision_inter_dim, config.vision_dim),)
    return shapes
