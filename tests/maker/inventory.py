"""Every tensor of a made checkpoint: name, dtype, shape and how its values are drawn, shard by shard.

Written from the role tables of the model's description, apart from the engine's own list, so that each can judge the
other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.maker.geometry import Geometry

Kind = Literal["bf16", "f32", "fp8", "fp4", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One weight; `fp8`, `fp4` and `rows` bring a scale tensor of their own."""

    name: str
    """As stored; for a quantised weight without its `.weight`."""
    kind: Kind
    shape: tuple[int, ...]
    """Of the numbers, before packing."""
    mean: float = 0.0
    std: float = 1.0

    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each stored tensor, the weight first."""
        if self.kind in ("bf16", "f32"):
            return [(self.name, self.kind.upper(), self.shape)]
        n, k = self.shape
        dtype, width = ("I8", k // 2) if self.kind == "fp4" else ("F8_E4M3", k)
        blocks = (-(-n // 32) if self.kind == "fp8" else n, -(-k // 32))
        return [(f"{self.name}.weight", dtype, (n, width)), (f"{self.name}.scale", "F8_E8M0", blocks)]


def shards(g: Geometry) -> Iterator[list[Weight]]:
    """The weights of each shard, in the released order of shards."""
    embedding = [Weight(name="embed.weight", kind="bf16", shape=(g.vocab_size, g.dim), std=1.5)]
    if g.vision.n_layers:
        yield list(_vision(g))
        embedding += [Weight(name=f"image_{n}", kind="bf16", shape=(g.dim,)) for n in ("start", "newline", "end")]
    yield embedding
    for layer in range(g.n_layers):
        yield [*_block(g, f"layers.{layer}.", g.n_routed_experts), *_compressed(g, layer)]
    yield [_matrix("head.weight", "bf16", g.vocab_size, g.dim, gain=4), _norm("norm.weight", g.dim)]
    for stage in range(g.n_mtp_layers):
        yield [*_block(g, f"mtp.{stage}.", g.dspark_n_routed_experts), *_draft(g, stage)]
    for layer, rows in zip(g.engram_layer_ids, g.engram_rows, strict=True):
        yield list(_engram(g, f"layers.{layer}.engram.", rows))


def _matrix(name: str, kind: Kind, n: int, k: int, gain: float = 1) -> Weight:
    """A matrix that turns a vector of mean square 1 into one of mean square gain^2."""
    return Weight(name=name, kind=kind, shape=(n, k), std=gain * k**-0.5)


def _norm(name: str, *shape: int) -> Weight:
    return Weight(name=name, kind="bf16", shape=shape, mean=1, std=0.2)


def _block(g: Geometry, p: str, experts: int) -> Iterator[Weight]:
    yield _norm(p + "attn_norm.weight", g.dim)
    yield _norm(p + "ffn_norm.weight", g.dim)
    yield _matrix(p + "attn.wq_a", "fp8", g.q_lora_rank, g.dim)
    yield _norm(p + "attn.q_norm.weight", g.q_lora_rank)
    yield _matrix(p + "attn.wq_b", "fp8", g.n_heads * g.head_dim, g.q_lora_rank, gain=1.5)
    yield _matrix(p + "attn.wkv", "fp8", g.head_dim, g.dim)
    yield _norm(p + "attn.kv_norm.weight", g.head_dim)
    yield _matrix(p + "attn.wo_a", "fp8", g.o_groups * g.o_lora_rank, g.n_heads * g.head_dim // g.o_groups, gain=1.5)
    yield _matrix(p + "attn.wo_b", "fp8", g.dim, g.o_groups * g.o_lora_rank, gain=1.5)
    yield Weight(name=p + "attn.attn_sink", kind="f32", shape=(g.n_heads,))
    yield _matrix(p + "ffn.gate.weight", "bf16", experts, g.dim, gain=2)
    yield Weight(name=p + "ffn.gate.bias", kind="f32", shape=(experts,), std=0.3)
    yield Weight(name=p + "ffn.gate.bias_vl", kind="f32", shape=(experts,), std=0.4)
    for expert in range(experts):
        yield from _expert(g, f"{p}ffn.experts.{expert}.", "fp4", gain=2)
    yield from _expert(g, p + "ffn.shared_experts.", "fp8", gain=1.2)
    mixes = (2 + g.hc_mult) * g.hc_mult
    for half in ("attn", "ffn"):
        yield _matrix(f"{p}hc_{half}_fn", "f32", mixes, g.hc_mult * g.dim)
        yield Weight(name=f"{p}hc_{half}_base", kind="f32", shape=(mixes,), std=0.5)
        yield Weight(name=f"{p}hc_{half}_scale", kind="f32", shape=(3,), mean=0.8, std=0.15)


def _expert(g: Geometry, p: str, kind: Kind, gain: float) -> Iterator[Weight]:
    yield _matrix(p + "w1", kind, g.moe_inter_dim, g.dim, gain=1.3)
    yield _matrix(p + "w2", kind, g.dim, g.moe_inter_dim, gain=gain)
    yield _matrix(p + "w3", kind, g.moe_inter_dim, g.dim, gain=1.3)


def _compressed(g: Geometry, layer: int) -> Iterator[Weight]:
    p = f"layers.{layer}.attn."
    if layer in g.kv_source_layers:
        yield _matrix(p + "compressor.wkv.weight", "bf16", g.head_dim, g.dim)
        if g.ratio(layer) > 1:
            yield _matrix(p + "compressor.wgate.weight", "bf16", g.head_dim, g.dim, gain=1.5)
        yield _norm(p + "compressor.norm.weight", g.head_dim)
        yield _matrix(p + "indexer.wk.weight", "bf16", g.index_head_dim, g.head_dim)
        yield _norm(p + "indexer.k_norm.weight", g.index_head_dim)
    if layer in g.index_source_layers:
        yield _matrix(p + "indexer.wq_b", "fp8", g.index_n_heads * g.index_head_dim, g.q_lora_rank)
        yield _matrix(p + "indexer.weights_proj.weight", "bf16", g.index_n_heads, g.dim)


def _draft(g: Geometry, stage: int) -> Iterator[Weight]:
    p = f"mtp.{stage}."
    if stage == 0:
        yield _matrix(p + "main_proj", "fp8", g.dim, len(g.targets) * g.dim)
        yield _norm(p + "main_norm.weight", g.dim)
    if stage == g.n_mtp_layers - 1:
        yield _norm(p + "norm.weight", g.dim)
        yield Weight(name=p + "markov_head.embed.weight", kind="bf16", shape=(g.vocab_size, g.dspark_markov_rank))
        yield _matrix(p + "markov_head.head.weight", "bf16", g.vocab_size, g.dspark_markov_rank, gain=2.6)
        yield _matrix(p + "confidence_head.proj.weight", "bf16", 1, g.dim + g.dspark_markov_rank, gain=0.7)


def _engram(g: Geometry, p: str, rows: int) -> Iterator[Weight]:
    columns = (g.engram_max_ngram_size - 1) * g.engram_n_heads * g.engram_head_dim
    yield Weight(name=p + "embed", kind="rows", shape=(rows, g.engram_head_dim), std=0.8)
    yield _matrix(p + "wkv", "fp8", g.dim * (g.hc_mult + 1), columns, gain=2)
    yield _norm(p + "q_weight", g.hc_mult, g.dim)
    yield _norm(p + "k_weight", g.hc_mult, g.dim)


def _vision(g: Geometry) -> Iterator[Weight]:
    """Image tower and aligner. They mean nothing here; a text engine must pass them by."""
    t = g.vision
    yield _matrix("vision.patch_embed.proj.weight", "bf16", t.dim, 3 * t.patch_size**2)
    yield _bias("vision.patch_embed.proj.bias", t.dim)
    for block in range(t.n_layers):
        p = f"vision.blocks.{block}."
        yield _norm(p + "norm1.weight", t.dim)
        yield _norm(p + "norm2.weight", t.dim)
        yield _matrix(p + "attn.wqkv.weight", "bf16", 3 * t.dim, t.dim)
        yield _bias(p + "attn.wqkv.bias", 3 * t.dim)
        yield _matrix(p + "attn.wo.weight", "bf16", t.dim, t.dim)
        yield _bias(p + "attn.wo.bias", t.dim)
        yield _matrix(p + "mlp.w1.weight", "bf16", 2 * t.inter_dim, t.dim)
        yield _matrix(p + "mlp.w2.weight", "bf16", t.dim, t.inter_dim)
    yield _norm("vision.norm.weight", t.dim)
    yield _matrix("aligner.w1.weight", "bf16", g.dim, t.dim * t.downsample_ratio**2)
    yield _bias("aligner.w1.bias", g.dim)
    yield _matrix("aligner.w2.weight", "bf16", g.dim, g.dim)
    yield _bias("aligner.w2.bias", g.dim)


def _bias(name: str, n: int) -> Weight:
    return Weight(name=name, kind="bf16", shape=(n,), std=0.02)
