"""Hyper-connections: the residual stream in m copies and how a half block reads and writes it.

The one thing a reader would get wrong: a half block collapses the stream with the `pre` of the half block *before* it
and hands its own to the next; only `post` and `comb` are used where they are made.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kernels import FRESH, Matrix, Workspace
from engine.kernels.card_path import pieces
from engine.numerics import EXACT, Numerics, sigmoid
from engine.weights import MixWeights


class Mix(NamedTuple):
    """Coefficients of one half block for each position."""

    pre: Tensor  # [T, m] collapses the stream, in the next half block
    post: Tensor  # [T, m] scatters the half block's output
    comb: Tensor  # [T, m, m] mixes the copies; summed over its first copy index


def rms(x: Tensor, eps: float) -> Tensor:
    """1 / root mean square over the last axis, kept: [..., 1] float32."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x / rms(x) in float32. Shapes: x [..., W]; weight [W]."""
    return x * rms(x, eps) * weight


def normed(x: Tensor, weight: Tensor, eps: float, numerics: Numerics, work: Workspace = FRESH) -> Tensor:
    """`rms_norm` as a value of the forward. Shapes: x [..., W]; weight [W]."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.norm(x.contiguous(), weight, eps, work)
    return numerics.value(rms_norm(x, weight, eps))


def mix(
    h: Tensor, weights: MixWeights, config: ModelConfig, numerics: Numerics = EXACT, work: Workspace = FRESH
) -> Mix:
    """The three coefficient sets of a half block, from the stream as it enters; all float32.

    Shapes: h [T, m, D]. The comb matrix starts with a softmax and one column normalisation, then alternates rows and
    columns (Sinkhorn), ending on columns.
    Source: spec/architecture section 7.
    """
    m, eps = config.hc_mult, config.hc_eps
    kernels = numerics.native()
    if kernels is not None:
        rounds, x = config.hc_sinkhorn_iters, h.contiguous()
        return Mix(*kernels.mix(x, weights.fn, weights.base, weights.scale, config.norm_eps, eps, rounds, work))
    some = pieces(h)
    if len(some) > 1:
        parts = zip(*(mix(h[rows], weights, config, numerics) for rows in some), strict=True)
        return Mix(*(torch.cat(part) for part in parts))
    flat = h.flatten(1)  # [T, m*D] copy-major
    product = numerics.product(flat, Matrix(kind="plain", weight=weights.fn, scale=None))
    z = product * rms(flat, config.norm_eps)  # [T, (2+m)*m]
    scale, base = weights.scale, weights.base
    pre = sigmoid(z[:, :m] * scale[0] + base[:m]) + eps
    post = 2 * sigmoid(z[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (z[:, 2 * m :] * scale[2] + base[2 * m :]).view(-1, m, m)
    # Exponential, sum and division as three float32 steps: torch.softmax differs from them in the last bit, and one bit
    # of `comb` decides how the bfloat16 stream rounds (61 instead of 129 of 130 golden prompt positions then agree).
    comb = torch.exp(comb - comb.amax(2, keepdim=True))
    comb = comb / comb.sum(2, keepdim=True) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return Mix(pre, post, comb)


def collapse(h: Tensor, pre: Tensor, numerics: Numerics) -> Tensor:
    """sum over copies of pre[c] * h[c]. Shapes: h [T, m, D]; pre [T, m]; result [T, D]."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.collapse(h.contiguous(), pre.contiguous(), None, 0.0)
    total = pre[:, :1] * h[:, 0]
    for copy in range(1, h.shape[1]):
        total = total + pre[:, copy : copy + 1] * h[:, copy]
    return numerics.value(total)


def collapse_normed(
    h: Tensor, pre: Tensor, weight: Tensor, eps: float, numerics: Numerics, work: Workspace = FRESH
) -> Tensor:
    """`collapse`, then `normed`: what a half block works on.

    Shapes: h [T, m, D]; pre [T, m]; weight [D]; result [T, D].
    """
    kernels = numerics.native()
    if kernels is not None:
        return kernels.collapse(h.contiguous(), pre.contiguous(), weight, eps, work)
    some = pieces(h)
    if len(some) > 1:
        return torch.cat([collapse_normed(h[rows], pre[rows], weight, eps, numerics) for rows in some])
    return normed(collapse(h, pre, numerics), weight, eps, numerics)


def update(h: Tensor, y: Tensor, coefficients: Mix, numerics: Numerics, out: Tensor | None = None) -> Tensor:
    """post[j] * y + sum over i of comb[i, j] * h[i]. Shapes: h [T, m, D]; y [T, D]; result like h.

    The native kernels put the result in `out` if given, which is not h; many rows on a card are updated where they are.

    Products and sums are separate float32 steps in copy order, as in the released runtime: fused ones round a
    bfloat16 stream differently often enough to be seen (of 130 golden prompt positions 42 instead of 129 then agree to
    the last bit).
    """
    kernels = numerics.native()
    if kernels is not None:
        return kernels.update(h.contiguous(), y.contiguous(), coefficients.post, coefficients.comb, out)
    some = pieces(h)
    if len(some) > 1:
        for rows in some:
            h[rows] = update(h[rows], y[rows], Mix(*(part[rows] for part in coefficients)), numerics)
        return h
    mixed = coefficients.comb[:, 0].unsqueeze(-1) * h[:, :1]  # [T, m, D]
    for copy in range(1, h.shape[1]):
        mixed = mixed + coefficients.comb[:, copy].unsqueeze(-1) * h[:, copy : copy + 1]
    return numerics.value(coefficients.post.unsqueeze(-1) * y.unsqueeze(1) + mixed)
