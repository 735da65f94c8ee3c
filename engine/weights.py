"""The resident weights: everything a token needs but experts, engram rows and the embedding.

They stay in memory exactly as stored (fp8 bytes with their scales, bf16, f32); kernels expand them as they go. The one
thing a reader would get wrong: what a tensor is follows from its own dtype, never from the config's `dtype`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import FormatError
from engine.formats import check_codes
from engine.kernels import Matrix
from storage.checkpoint import Checkpoint
from storage.extents import Extent

_PLAIN = {"BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWeights:
    """Hyper-connection coefficients of one half block; all float32."""

    fn: Tensor  # [(2+m)*m, m*D]
    base: Tensor  # [(2+m)*m]
    scale: Tensor  # [3]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorWeights:
    """What a KV source adds: latents and index keys."""

    wkv: Matrix  # [hd, D]
    wgate: Matrix | None  # [hd, D], only where the ratio is above 1
    norm: Tensor  # [hd]
    index_wk: Matrix  # [di, hd]
    index_norm: Tensor  # [di]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerWeights:
    """What an index source adds: queries and head weights."""

    wq_b: Matrix  # [Hi*di, Rq]
    weights_proj: Matrix  # [Hi, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """One attention half block."""

    norm: Tensor  # [D]
    wq_a: Matrix  # [Rq, D]
    q_norm: Tensor  # [Rq]
    wq_b: Matrix  # [H*hd, Rq]
    wkv: Matrix  # [hd, D]
    kv_norm: Tensor  # [hd]
    wo_a: Matrix  # [G*Ro, H*hd/G]
    wo_b: Matrix  # [D, G*Ro]
    sink: Tensor  # [H] float32
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnWeights:
    """One MoE half block, without its routed experts."""

    norm: Tensor  # [D]
    gate: Matrix  # [E, D]
    gate_bias: Tensor  # [E] float32, steers the choice only
    shared_w1: Matrix  # [F, D]
    shared_w3: Matrix  # [F, D]
    shared_w2: Matrix  # [D, F]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramWeights:
    """The gate of an engram layer; its table stays on the drives."""

    wkv: Matrix  # [D*(m+1), (N-1)*He*de]
    q_weight: Tensor  # [m, D]
    k_weight: Tensor  # [m, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """One block of the backbone."""

    layer: int
    attention: AttentionWeights
    ffn: FfnWeights
    mix_attention: MixWeights
    mix_ffn: MixWeights
    engram: EngramWeights | None

    @property
    def device(self) -> torch.device:
        """Where all of it lies, and so where the layer is computed."""
        return self.ffn.norm.device


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkWeights:
    """Everything resident."""

    blocks: tuple[BlockWeights, ...]
    norm: Tensor  # [D]
    head: Matrix  # [V, D]


def stored_bytes(weights: object) -> int:
    """Bytes of every tensor in a record of weights, and in the records and tuples in it, as they lie in memory."""
    if isinstance(weights, Tensor):
        return weights.nbytes
    if isinstance(weights, tuple):
        return sum(map(stored_bytes, weights))
    if not is_dataclass(weights):
        return 0
    return sum(stored_bytes(getattr(weights, field.name)) for field in fields(weights))


_ALIGNMENT = 64
_ELEMENT_BYTES = 4


def _at_file_alignment(n_bytes: int, offset: int) -> Tensor:
    """Empty memory [n_bytes] uint8 whose address is the file offset modulo 64, as if the shard were memory-mapped.

    MKL adds a one-row product in an order that depends on the address of the matrix modulo 16, so an address that
    follows from the file makes results the same in every run. The golden `vendor` results were made that way: of their
    466 positions 465 then have the same next token in `reference`, against 420 where the allocator decides.
    """
    memory = torch.empty(n_bytes + _ALIGNMENT, dtype=torch.uint8)
    start = (offset - memory.data_ptr()) % _ALIGNMENT
    if memory.data_ptr() % _ELEMENT_BYTES or start % _ELEMENT_BYTES:
        start = 0  # an offset no element could be viewed at
    return memory[start : start + n_bytes]


class WeightLoader:
    """Reads named tensors into memory, checking dtype, shape and NaN codes as it goes.

    `on_bytes` is called with the bytes of each tensor read; it may raise to stop the load.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        on_bytes: Callable[[int], None] | None = None,
        read_into: Callable[[Extent, memoryview], None] | None = None,
    ) -> None:
        """`read_into` reads in the checkpoint's place, and may stop waiting for it."""
        self._checkpoint = checkpoint
        self._read_into = read_into or checkpoint.read_into
        self._on_bytes = on_bytes

    def _read(self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[Tensor, str]:
        entry = self._checkpoint.tensors.get(name)
        if entry is None:
            raise FormatError(f"the checkpoint has no tensor {name!r}", hint="Run `artesian audit` on the folder.")
        if entry.dtype not in dtypes or entry.shape != shape:
            raise FormatError(
                f"{entry.extent.shard}: tensor {name!r} is {entry.dtype} {list(entry.shape)},"
                f" expected {' or '.join(dtypes)} {list(shape)}",
                hint="The config and the shards do not belong together. Run `artesian audit` on the folder.",
            )
        data = _at_file_alignment(entry.extent.length, entry.extent.offset)
        self._read_into(entry.extent, data.numpy().data)
        if self._on_bytes is not None:
            self._on_bytes(data.numel())
        return data, entry.dtype

    def vector(self, name: str, *shape: int) -> Tensor:
        """A norm, bias or other small unquantised tensor, as float32 of the given shape."""
        data, dtype = self._read(name, ("BF16", "F32"), shape)
        return data.view(_PLAIN[dtype]).view(shape).to(torch.float32)

    def plain(self, name: str, n: int, k: int) -> Matrix:
        """An unquantised matrix [n, k], kept as stored."""
        data, dtype = self._read(name, ("BF16", "F32"), (n, k))
        return Matrix(kind="plain", weight=data.view(_PLAIN[dtype]).view(n, k), scale=None)

    def fp8(self, prefix: str, n: int, k: int) -> Matrix:
        """An fp8 matrix [n, k] with its 32x32 scales, kept as stored; `prefix` is the name without `.weight`.

        Raises: FormatError on a wrong dtype or shape, a missing scale, or a NaN code.
        """
        weight, _ = self._read(f"{prefix}.weight", ("F8_E4M3",), (n, k))
        blocks = (-(-n // 32), -(-k // 32))
        scale, _ = self._read(f"{prefix}.scale", ("F8_E8M0",), blocks)
        matrix = Matrix(kind="fp8", weight=weight.view(n, k), scale=scale.view(blocks))
        check_codes(prefix, matrix.weight, matrix.scale, fp8=True)
        return matrix


def load_mix(load: WeightLoader, config: ModelConfig, prefix: str) -> MixWeights:
    """The hyper-connections of the half block named `prefix`."""
    m = config.hc_mult
    rows = (2 + m) * m
    return MixWeights(
        fn=load.vector(f"{prefix}_fn", rows, m * config.dim),
        base=load.vector(f"{prefix}_base", rows),
        scale=load.vector(f"{prefix}_scale", 3),
    )


def load_attention(load: WeightLoader, config: ModelConfig, prefix: str, layer: int | None) -> AttentionWeights:
    """The attention half of the block named `prefix` (`layers.N`, or `mtp.T` with layer None)."""
    c, attn = config, f"{prefix}.attn"
    compressor = indexer = None
    if layer is not None and layer in c.kv_source_layers:
        compressor = CompressorWeights(
            wkv=load.plain(f"{attn}.compressor.wkv.weight", c.head_dim, c.dim),
            wgate=load.plain(f"{attn}.compressor.wgate.weight", c.head_dim, c.dim) if c.ratio(layer) > 1 else None,
            norm=load.vector(f"{attn}.compressor.norm.weight", c.head_dim),
            index_wk=load.plain(f"{attn}.indexer.wk.weight", c.index_head_dim, c.head_dim),
            index_norm=load.vector(f"{attn}.indexer.k_norm.weight", c.index_head_dim),
        )
    if layer is not None and layer in c.index_source_layers:
        indexer = IndexerWeights(
            wq_b=load.fp8(f"{attn}.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank),
            weights_proj=load.plain(f"{attn}.indexer.weights_proj.weight", c.index_n_heads, c.dim),
        )
    return AttentionWeights(
        norm=load.vector(f"{prefix}.attn_norm.weight", c.dim),
        wq_a=load.fp8(f"{attn}.wq_a", c.q_lora_rank, c.dim),
        q_norm=load.vector(f"{attn}.q_norm.weight", c.q_lora_rank),
        wq_b=load.fp8(f"{attn}.wq_b", c.n_heads * c.head_dim, c.q_lora_rank),
        wkv=load.fp8(f"{attn}.wkv", c.head_dim, c.dim),
        kv_norm=load.vector(f"{attn}.kv_norm.weight", c.head_dim),
        wo_a=load.fp8(f"{attn}.wo_a", c.o_groups * c.o_lora_rank, c.n_heads * c.head_dim // c.o_groups),
        wo_b=load.fp8(f"{attn}.wo_b", c.dim, c.o_groups * c.o_lora_rank),
        sink=load.vector(f"{attn}.attn_sink", c.n_heads),
        compressor=compressor,
        indexer=indexer,
    )


def load_ffn(load: WeightLoader, config: ModelConfig, prefix: str, n_experts: int) -> FfnWeights:
    """The MoE half of the block named `prefix`, without routed experts."""
    ffn, d, f = f"{prefix}.ffn", config.dim, config.moe_inter_dim * config.n_shared_experts
    return FfnWeights(
        norm=load.vector(f"{prefix}.ffn_norm.weight", d),
        gate=load.plain(f"{ffn}.gate.weight", n_experts, d),
        gate_bias=load.vector(f"{ffn}.gate.bias", n_experts),
        shared_w1=load.fp8(f"{ffn}.shared_experts.w1", f, d),
        shared_w3=load.fp8(f"{ffn}.shared_experts.w3", f, d),
        shared_w2=load.fp8(f"{ffn}.shared_experts.w2", d, f),
    )


def _load_engram(load: WeightLoader, config: ModelConfig, layer: int) -> EngramWeights:
    m, d = config.hc_mult, config.dim
    width = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
    return EngramWeights(
        wkv=load.fp8(f"layers.{layer}.engram.wkv", d * (m + 1), width),
        q_weight=load.vector(f"layers.{layer}.engram.q_weight", m, d),
        k_weight=load.vector(f"layers.{layer}.engram.k_weight", m, d),
    )


def load_block(load: WeightLoader, config: ModelConfig, layer: int) -> BlockWeights:
    """Block `layer` of the backbone."""
    prefix = f"layers.{layer}"
    return BlockWeights(
        layer=layer,
        attention=load_attention(load, config, prefix, layer),
        ffn=load_ffn(load, config, prefix, config.n_routed_experts),
        mix_attention=load_mix(load, config, f"{prefix}.hc_attn"),
        mix_ffn=load_mix(load, config, f"{prefix}.hc_ffn"),
        engram=_load_engram(load, config, layer) if layer in config.engram_layer_ids else None,
    )


class Places(Protocol):
    """Where the trunk's parts go as they are read."""

    def block(self, block: BlockWeights) -> BlockWeights:
        """A layer, where it belongs."""
        ...

    def output(self, norm: Tensor, head: Matrix) -> tuple[Tensor, Matrix]:
        """The last norm and the output matrix, where they belong."""
        ...


def load_trunk(load: WeightLoader, config: ModelConfig, places: Places | None = None) -> TrunkWeights:
    """Everything resident, as stored; in memory, unless `places` says otherwise.

    Raises: FormatError on a tensor that is missing, misshapen or holds a NaN code; StorageError on a failed read.
    """

    def block(layer: int) -> BlockWeights:
        read = load_block(load, config, layer)
        return read if places is None else places.block(read)

    blocks = tuple(block(layer) for layer in range(config.n_layers))
    norm, head = load.vector("norm.weight", config.dim), load.plain("head.weight", config.vocab_size, config.dim)
    if places is not None:
        norm, head = places.output(norm, head)
    return TrunkWeights(blocks=blocks, norm=norm, head=head)
