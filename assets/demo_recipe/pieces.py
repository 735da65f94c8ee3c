"""The row-wise functions of a forward and its two matrix products, written so that a CPU trains them quickly.

The one thing a reader would get wrong: everything here takes rows of any number on the leading axis, and nothing of it
is faster than plain torch until `go_fast` was called: then small functions are compiled, one instance for each
combination of the other sizes, and where this processor multiplies bf16 faster, large products are made in it, with
float32 weights kept. Checks run without.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ModelConfig

EPSILON = 1e-20
_KINDS_OF_SHAPES = 512
"""One code object serves all instances of a compiled function, so torch's own limit is too low."""

_FORMATS = (torch.float32, torch.bfloat16)
_TRIALS = 30


class _Speed:
    """What `go_fast` switched on."""

    compiled = False
    half = False


def go_fast(*, compiled: bool = True) -> str:
    """Train quickly from now on: with compiled functions, which take a C++ compiler, and the faster products.

    Which number format that is, for people.
    """
    _Speed.half, _Speed.compiled = _half_pays(), compiled
    if compiled:
        torch._dynamo.config.recompile_limit = _KINDS_OF_SHAPES
    return "bf16" if _Speed.half else "float32"


def _half_pays() -> bool:
    """Whether a product of typical size is faster in bf16. It is ten times slower with AVX2 alone."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for one another tell more of other programs than of the format
    pairs = [(torch.ones(512, 256, dtype=kind), torch.ones(512, 256, dtype=kind)) for kind in _FORMATS]
    seconds = [math.inf, math.inf]
    for _ in range(_TRIALS):
        for i, (x, w) in enumerate(pairs):
            started = time.perf_counter()
            x @ w.T
            seconds[i] = min(seconds[i], time.perf_counter() - started)
    torch.set_num_threads(n_threads)
    return seconds[1] * 1.2 < seconds[0]


def fused(n_row_args: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function whose first `n_row_args` arguments share a leading axis of any length."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        made: dict[tuple[object, ...], Callable[..., Any]] = {}

        def call(*args: Any) -> Any:
            if not _Speed.compiled:
                return function(*args)
            key = tuple(
                a.shape[1:] if i < n_row_args else a if isinstance(a, int | float) else None for i, a in enumerate(args)
            )
            if key not in made:
                fixed = {i: a for i, a in enumerate(args) if isinstance(a, int | float)}

                def body(*tensors: Tensor) -> Any:
                    rest = iter(tensors)
                    return function(*(fixed[i] if i in fixed else next(rest) for i in range(len(args))))

                made[key] = torch.compile(body)
            tensors = [a for a in args if isinstance(a, Tensor)]
            for t in tensors[:n_row_args]:
                torch._dynamo.maybe_mark_dynamic(t, 0)
            return made[key](*tensors)

        return call

    return wrap


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


@fused(1)
def norm(x: Tensor, w: Tensor) -> Tensor:
    """RMS norm. Shapes: x [n, D], w [D]."""
    return w * _rms(x)


@fused(2)
def collapse_norm(h: Tensor, pre: Tensor, w: Tensor) -> Tensor:
    """The copies of the stream as one row, normed. Shapes: h [n, m, D], pre [n, m], result [n, D]."""
    return w * _rms((pre.unsqueeze(-1) * h).sum(-2))


@fused(2)
def sinkhorn_mix(
    z: Tensor, flat: Tensor, scale: Tensor, base: Tensor, m: int, rounds: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of a half block: pre [n, m], post [n, m], comb [n, m, m], the last made doubly stochastic."""
    z = z * torch.rsqrt(flat.square().mean(-1, keepdim=True) + EPSILON)
    pre = torch.sigmoid(z[..., :m] * scale[0] + base[:m]) + eps
    post = 2 * torch.sigmoid(z[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (z[..., 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
    comb = torch.exp(comb - comb.amax(-1, keepdim=True))
    comb = comb / comb.sum(-1, keepdim=True) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


@fused(4)
def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The stream after a half block: copy j gets post[j] y + sum over i of comb[i, j] h[i]."""
    return post.unsqueeze(-1) * y.unsqueeze(-2) + (comb.unsqueeze(-1) * h.unsqueeze(-2)).sum(-3)


@fused(3)
def rotate_tail(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last columns, in neighbouring pairs. Shapes: x [n, hd] or [n, H, hd]; cos, sin [n, r], r pairs."""
    r = cos.shape[-1]
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    tail = x[..., -2 * r :].unflatten(-1, (r, 2))
    a, b = tail[..., 0], tail[..., 1]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., : -2 * r], turned), dim=-1)


@fused(2)
def swiglu(both: Tensor, weight: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU of gate and up side by side, times a weight for each row. Shapes: both [n, 2F], weight [n, 1]."""
    gate, up = both.chunk(2, -1)
    return weight * (F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit))


@fused(4)
def engram_add(h: Tensor, key: Tensor, value: Tensor, keep: Tensor, weight: Tensor, root: float) -> Tensor:
    """The stream with what its rows say, gated for each copy. Shapes: h, key [n, m, D]; value [n, D]; keep [n]."""
    inverse = torch.rsqrt(h.square().mean(-1) + EPSILON) * torch.rsqrt(key.square().mean(-1) + EPSILON)
    dot = (h * weight * key).sum(-1) * inverse * root
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
    return h + (gate * keep.unsqueeze(-1)).unsqueeze(-1) * value.unsqueeze(-2)


def sink_softmax(logits: Tensor, sink: Tensor) -> Tensor:
    """Softmax over the last axis with one more logit that takes part in the denominator only."""
    full = torch.cat((logits, sink.expand(*logits.shape[:-1], 1)), -1).softmax(-1)
    return full[..., :-1]


def _half(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16) if _Speed.half else t


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        x, w = _half(x), _half(w)
        ctx.save_for_backward(x, w)
        return (x @ w.T).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        g = grads[0].to(x.dtype)
        return (g @ w).float(), (g.T @ x).float()


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [n, K] times w [N, K] -> [n, N] float32."""
    return _Linear.apply(x, w)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, counts: list[int]) -> Tensor:
        x, w = _half(x), _half(w)
        ctx.save_for_backward(x, w)
        ctx.counts = counts
        out = x.new_empty(x.shape[0], w.shape[1])
        start = 0
        for group, n in enumerate(counts):
            if n:
                torch.mm(x[start : start + n], w[group].T, out=out[start : start + n])
            start += n
        return out.float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        g = grads[0].to(x.dtype)
        gx, gw = torch.empty_like(x), torch.zeros_like(w)
        start = 0
        for group, n in enumerate(ctx.counts):
            if n:
                torch.mm(g[start : start + n], w[group], out=gx[start : start + n])
                torch.mm(g[start : start + n].T, x[start : start + n], out=gw[group])
            start += n
        return gx.float(), gw.float(), None


def grouped(x: Tensor, w: Tensor, counts: list[int]) -> Tensor:
    """Rows sorted by group, each group times its own matrix: x [n, K], w [E, N, K], `counts` rows each -> [n, N]."""
    return _Grouped.apply(x, w, counts)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, [n, r]."""


def rotations(config: ModelConfig, *, compressing: bool, length: int) -> Rotation:
    """Cosines and sines of positions 0 to `length`, with YaRN where positions are compressed."""
    d = config.rope_head_dim
    base = config.compress_rope_theta if compressing else config.rope_theta
    inverse = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    if compressing and config.original_seq_len > 0:

        def dim_for(turns: float) -> float:
            return d * math.log(config.original_seq_len / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dim_for(config.beta_fast)), 0)
        high = min(math.ceil(dim_for(config.beta_slow)), d - 1)
        ramp = ((torch.arange(d // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
        inverse = inverse / config.rope_factor * ramp + inverse * (1 - ramp)
    angle = torch.arange(length, dtype=torch.float32).unsqueeze(1) * inverse
    return torch.cos(angle), torch.sin(angle)
