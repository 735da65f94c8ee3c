"""The stored number formats: the values weights have once they are stored, and the bytes of the released format.

Owns rounding (fp4 with a scale for each row and 32 columns, fp8 with one for each 32x32 block or for each row and 32
columns, bf16) and packing. The one thing a reader would get wrong: gradients pass through a rounding as if there were
none, so a weight can move although its stored value does not yet.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from engine.formats import E2M1_MAX, E2M1_VALUES, E4M3_MAX, SCALE_BLOCK

Form = Literal["fp4", "fp8", "row8", "bf16", "f32"]
"""How a weight is stored: expert, dense matrix, engram row, plain, exact."""

_LEAST = 1e-12
"""Stands for the largest value of a block of zeros."""


def _exponent(largest: Tensor, limit: float) -> Tensor:
    """Exponent of the smallest power of two that brings `largest` down to `limit`. Shape unchanged."""
    return torch.ceil(torch.log2(largest.clamp_min(_LEAST) / limit))


def _nearest_e2m1(x: Tensor) -> Tensor:
    """The nearest fp4 value, ties to the even code; |x| <= 6. Shape unchanged."""
    size = x.abs()
    coarse = torch.where(size < 4, torch.round(x), torch.round(x * 0.5) * 2)
    return torch.where(size < 2, torch.round(x * 2) * 0.5, coarse)


def _by_columns(w: Tensor) -> Tensor:
    """[..., K] -> [..., K/32, 32]."""
    return w.unflatten(-1, (-1, SCALE_BLOCK))


def _by_blocks(w: Tensor) -> Tensor:
    """[N, K] -> [N/32, 32, K/32, 32]; both must be multiples of 32."""
    return w.view(w.shape[0] // SCALE_BLOCK, SCALE_BLOCK, w.shape[1] // SCALE_BLOCK, SCALE_BLOCK)


def round_fp4(w: Tensor) -> Tensor:
    """`w` [..., K] as fp4 storage gives it back."""
    groups = _by_columns(w)
    scale = torch.exp2(_exponent(groups.abs().amax(-1, keepdim=True), E2M1_MAX))
    return (_nearest_e2m1((groups / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).flatten(-2)


def round_fp8(w: Tensor) -> Tensor:
    """`w` [N, K] as fp8 storage in 32x32 blocks gives it back."""
    blocks = _by_blocks(w)
    scale = torch.exp2(_exponent(blocks.abs().amax(dim=(1, 3), keepdim=True), E4M3_MAX))
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).view_as(w)


def round_row8(w: Tensor) -> Tensor:
    """`w` [..., K] as the storage of engram rows gives it back."""
    groups = _by_columns(w)
    scale = torch.exp2(_exponent(groups.abs().amax(-1, keepdim=True), E4M3_MAX))
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def round_bf16(w: Tensor) -> Tensor:
    """`w` as bf16 storage gives it back."""
    return w.to(torch.bfloat16).float()


ROUND: Mapping[Form, Callable[[Tensor], Tensor]] = {
    "fp4": round_fp4,
    "fp8": round_fp8,
    "row8": round_row8,
    "bf16": round_bf16,
    "f32": lambda w: w,
}


class _Through(torch.autograd.Function):
    """Forward: the rounded value. Backward: as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        return rounding(w)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Reader:
    """How a forward reads weights: as they are, or as their storage would give them back."""

    def __init__(self, *, rounded: bool, rounding: Mapping[Form, Callable[[Tensor], Tensor]] = ROUND) -> None:
        self.rounded = rounded
        self._rounding = rounding

    def __call__(self, w: Tensor, form: Form) -> Tensor:
        return _Through.apply(w, self._rounding[form]) if self.rounded and form != "f32" else w


# --- bytes -----------------------------------------------------------------------------------------------------------


def _scale_bytes(exponent: Tensor) -> Tensor:
    return (exponent.to(torch.int32) + 127).to(torch.uint8).view(torch.float8_e8m0fnu).contiguous()


def pack_fp4(w: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes [N, K/2], low nibble the even column, and scales [N, K/32] of `w` [N, K]."""
    groups = _by_columns(w)
    exponent = _exponent(groups.abs().amax(-1, keepdim=True), E2M1_MAX)
    value = _nearest_e2m1((groups / torch.exp2(exponent)).clamp(-E2M1_MAX, E2M1_MAX)).flatten(-2)
    code = torch.bucketize(value.abs().contiguous(), torch.tensor(E2M1_VALUES)).to(torch.uint8)
    code = code | (torch.signbit(value).to(torch.uint8) << 3)
    packed = (code[:, 0::2] | (code[:, 1::2] << 4)).contiguous().view(torch.int8)
    return packed, _scale_bytes(exponent.squeeze(-1))


def pack_fp8(w: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and scales [N/32, K/32] of `w` [N, K]."""
    blocks = _by_blocks(w)
    exponent = _exponent(blocks.abs().amax(dim=(1, 3), keepdim=True), E4M3_MAX)
    code = (blocks / torch.exp2(exponent)).reshape(w.shape).contiguous().to(torch.float8_e4m3fn)
    return code, _scale_bytes(exponent[:, 0, :, 0])


def pack_row8(w: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [R, W] and scales [R, W/32] of engram rows `w` [R, W]."""
    groups = _by_columns(w)
    exponent = _exponent(groups.abs().amax(-1, keepdim=True), E4M3_MAX)
    code = (groups / torch.exp2(exponent)).flatten(-2).to(torch.float8_e4m3fn).contiguous()
    return code, _scale_bytes(exponent.squeeze(-1))
