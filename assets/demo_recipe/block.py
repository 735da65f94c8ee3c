"""One layer of the trunk or stage of the draft head: its parameters and its two half blocks; and the engram.

The one thing a reader would get wrong: attributes are named as `export.BLOCK` stores them, and an attribute that a
kind of layer lacks (compressor, indexer) is simply not there.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.pieces import (
    Rotation,
    collapse_norm,
    engram_add,
    expand,
    grouped,
    linear,
    norm,
    rotate_tail,
    sinkhorn_mix,
    swiglu,
)  # fmt: skip
from assets.demo_recipe.rounding import Reader
from engine.config import ModelConfig

_ROW_MULTIPLE = 32
"""Rows of an expert are padded to a multiple of this: bf16 kernels are made for each shape, so few shapes are fast."""


def normal(*shape: int, std: float) -> nn.Parameter:
    """A parameter drawn from a bell of this width."""
    return nn.Parameter(torch.randn(*shape) * std)


def ones(*shape: int) -> nn.Parameter:
    """A parameter of ones."""
    return nn.Parameter(torch.ones(*shape))


class Block(nn.Module):
    """Parameters and arithmetic of one block. Letters as in `engine.model`.

    Attributes:
        load: Tokens that each expert got in the last forward.
        dropout: Share of what a half block adds that is dropped while training.
    """

    load: Tensor
    gate_bias: Tensor

    def __init__(
        self, config: ModelConfig, n_experts: int, n_active: int, *, ratio: int = 0, kv_source: bool = False,
        index_source: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config, self.n_experts, self.n_active, self.ratio = config, n_experts, n_active, ratio
        self.kv_source, self.index_source = kv_source, index_source
        d, hd, heads, f = config.dim, config.head_dim, config.n_heads, config.moe_inter_dim
        rq, groups, ro = config.q_lora_rank, config.o_groups, config.o_lora_rank
        self.attn_norm, self.ffn_norm = ones(d), ones(d)
        self.wq_a, self.q_norm = normal(rq, d, std=d**-0.5), ones(rq)
        self.wq_b = normal(heads * hd, rq, std=rq**-0.5)
        self.wkv, self.kv_norm = normal(hd, d, std=d**-0.5), ones(hd)
        self.wo_a = normal(groups * ro, heads * hd // groups, std=(heads * hd // groups) ** -0.5)
        self.wo_b = normal(d, groups * ro, std=(groups * ro) ** -0.5 * 0.5)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        if kv_source:
            self.c_wkv, self.c_norm = normal(hd, d, std=d**-0.5), ones(hd)
            if ratio > 1:
                self.c_wgate = normal(hd, d, std=d**-0.5)
        if index_source:
            hi, di = config.index_n_heads, config.index_head_dim
            self.i_wq_b = normal(hi * di, rq, std=rq**-0.5)
            self.i_weights = normal(hi, d, std=0.5 * d**-0.5)
            if kv_source:
                self.i_wk, self.i_norm = normal(di, hd, std=hd**-0.5), ones(di)
        self.gate = normal(n_experts, d, std=d**-0.5)
        self.register_buffer("gate_bias", torch.zeros(n_experts))
        self.w1, self.w3 = normal(n_experts, f, d, std=d**-0.5), normal(n_experts, f, d, std=d**-0.5)
        self.w2 = normal(n_experts, d, f, std=f**-0.5 * 0.5)
        self.s1, self.s3 = normal(f, d, std=d**-0.5), normal(f, d, std=d**-0.5)
        self.s2 = normal(d, f, std=f**-0.5 * 0.5)
        for half in ("attn", "ffn"):
            self._add_mix(half, config.hc_mult, d)
        self.load, self.dropout = torch.zeros(n_experts), 0.0

    def _add_mix(self, half: str, m: int, d: int) -> None:
        base = torch.zeros((2 + m) * m)
        base[:m] = -math.log(m - 1) + 0.3 * torch.randn(m)
        base[m : 2 * m] = 0.3 * torch.randn(m)
        base[2 * m :] = (3.0 * torch.eye(m) + 0.3 * torch.randn(m, m)).flatten()
        self.register_parameter(f"hc_{half}_fn", normal((2 + m) * m, m * d, std=(m * d) ** -0.5))
        self.register_parameter(f"hc_{half}_base", nn.Parameter(base))
        self.register_parameter(f"hc_{half}_scale", nn.Parameter(torch.full((3,), 0.2)))

    def _mix(self, h: Tensor, half: str) -> tuple[Tensor, Tensor, Tensor]:
        config, flat = self.config, h.flatten(-2)
        z = F.linear(flat, getattr(self, f"hc_{half}_fn"))
        scale, base = getattr(self, f"hc_{half}_scale"), getattr(self, f"hc_{half}_base")
        mixed: tuple[Tensor, Tensor, Tensor] = sinkhorn_mix(
            z, flat, scale, base, config.hc_mult, config.hc_sinkhorn_iters, config.hc_eps
        )
        return mixed

    def moe(self, x: Tensor, read: Reader) -> Tensor:
        """Routed experts and the shared one. Shapes: x, result [n, D]. Notes the load."""
        k, n = self.n_active, len(x)
        score = F.softplus(F.linear(x, read(self.gate, "bf16"))).sqrt()  # [n, E]
        chosen = (score.detach() + self.gate_bias).topk(k, -1).indices  # [n, K] the bias chooses, it does not weigh
        weight = score.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.config.route_scale
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        tally = torch.bincount(flat, minlength=self.n_experts)
        self.load = tally
        room = (tally + _ROW_MULTIPLE - 1) // _ROW_MULTIPLE * _ROW_MULTIPLE
        shift = (room.cumsum(0) - room) - (tally.cumsum(0) - tally)
        place = torch.arange(len(flat)) + shift[flat[order]]
        counts: list[int] = room.tolist()
        source = torch.full((sum(counts),), n)
        source[place] = order // k
        share = weight.new_zeros(sum(counts)).index_copy(0, place, weight.flatten()[order])
        w13 = read(torch.cat((self.w1, self.w3), 1), "fp4")
        rows = torch.cat((x, x.new_zeros(1, x.shape[1]))).index_select(0, source)
        limit = self.config.swiglu_limit
        y = grouped(swiglu(grouped(rows, w13, counts), share.unsqueeze(-1), limit), read(self.w2, "fp4"), counts)
        out = x.new_zeros(n + 1, x.shape[1]).index_add(0, source, y)[:n]
        both = linear(x, torch.cat((read(self.s1, "fp8"), read(self.s3, "fp8"))))
        return out + linear(swiglu(both, x.new_ones(n, 1), limit), read(self.s2, "fp8"))

    def queries(self, x: Tensor, read: Reader, turn: Rotation) -> tuple[Tensor, Tensor]:
        """The compressed query [n, rq], which the indexer reads too, and the turned queries [n, H, hd]."""
        qr = norm(linear(x, read(self.wq_a, "fp8")), read(self.q_norm, "bf16"))
        q = linear(qr, read(self.wq_b, "fp8")).unflatten(-1, (self.config.n_heads, self.config.head_dim))
        return qr, rotate_tail(q, *turn)

    def window_kv(self, x: Tensor, read: Reader, turn: Rotation) -> Tensor:
        """Keys, which are the values too, of the window. Shapes: x [n, D], result [n, hd]."""
        kept: Tensor = rotate_tail(norm(linear(x, read(self.wkv, "fp8")), read(self.kv_norm, "bf16")), *turn)
        return kept

    def output(self, o: Tensor, read: Reader, turn: Rotation) -> Tensor:
        """Heads turned back and projected. Shapes: o [n, H, hd], result [n, D]."""
        o = rotate_tail(o, turn[0], -turn[1]).flatten(-2)
        groups = self.config.o_groups
        wa = read(self.wo_a, "fp8").view(groups, self.config.o_lora_rank, -1)
        middle = torch.cat([linear(part, wa[i]) for i, part in enumerate(o.chunk(groups, -1))], -1)
        return linear(middle, read(self.wo_b, "fp8"))

    def run(self, h: Tensor, pre: Tensor, attention: Callable[[Tensor], Tensor], read: Reader) -> tuple[Tensor, Tensor]:
        """Both half blocks. Shapes: h [n, m, D]; pre [n, m], the mix handed in and on."""
        a_pre, a_post, a_comb = self._mix(h, "attn")
        x = collapse_norm(h, pre, read(self.attn_norm, "bf16"))
        h = expand(self._dropped(attention(x)), h, a_post, a_comb)
        f_pre, f_post, f_comb = self._mix(h, "ffn")
        x = collapse_norm(h, a_pre, read(self.ffn_norm, "bf16"))
        return expand(self._dropped(self.moe(x, read)), h, f_post, f_comb), f_pre

    def _dropped(self, y: Tensor) -> Tensor:
        if not self.dropout:
            return y
        kept = torch.rand_like(y) >= self.dropout  # several times quicker than a draw from a Bernoulli distribution
        return y * kept / (1 - self.dropout)


class Engram(nn.Module):
    """One hashed table and what is done with its rows."""

    def __init__(self, config: ModelConfig, n_rows: int) -> None:
        super().__init__()
        self.config = config
        d, m = config.dim, config.hc_mult
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
        self.table = normal(n_rows, config.engram_head_dim, std=0.5)
        self.wkv = normal(d * (m + 1), columns, std=columns**-0.5)
        self.q_weight, self.k_weight = ones(m, d), ones(m, d)

    def forward(self, h: Tensor, rows: Tensor, keep: Tensor, read: Reader) -> Tensor:
        """Shapes: h [n, m, D]; rows [n, columns]; keep [n], 0 where a position sees no engram."""
        m, d = self.config.hc_mult, self.config.dim
        looked_up = read(F.embedding(rows, self.table), "row8").flatten(-2)
        both = linear(looked_up, read(self.wkv, "fp8"))
        key, value = both[..., : m * d].unflatten(-1, (m, d)), both[..., m * d :]
        weight = read(self.q_weight, "bf16") * read(self.k_weight, "bf16")
        added: Tensor = engram_add(h, key, value, keep, weight, d**-0.5)
        return added
