"""The checkpoint's number formats, slowly and plainly: the reference every kernel is judged by.

Owns decoding (fp8 e4m3, fp4 e2m1, e8m0 scales, engram rows) and the rounding that `reference` mode applies to
activations. What a reader would get wrong: fp8 matrices carry one scale per 32x32 block, fp4 matrices one per row and
32 columns, engram rows one per row and 32 columns; a scale byte is an exponent, and byte 0 means 2**-127, not zero.

Source: spec of the released checkpoint format; OCP Microscaling Formats 1.0 (e8m0, e2m1); OCP 8-bit Floating Point
1.0 (e4m3).
"""

import numpy as np
import torch
from torch import Tensor

from engine.errors import FormatError

SCALE_BLOCK = 32
"""Columns (and for fp8 matrices also rows) that share one scale."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight fp4 codes; bit 3 of a nibble is the sign."""

E8M0_NAN = 0xFF
E4M3_MAX = 448.0
E2M1_MAX = 6.0


def _e8m0_values() -> Tensor:
    exponents = torch.arange(256, dtype=torch.float64) - 127
    values = torch.pow(torch.tensor(2.0, dtype=torch.float64), exponents).to(torch.float32)
    values[E8M0_NAN] = torch.nan
    return values


def _e4m3_values() -> Tensor:
    codes = torch.arange(256, dtype=torch.int32)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * torch.pow(2.0, exponent.to(torch.float32) - 7)
    values = torch.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values = torch.where(codes >= 128, -values, values)
    values[0x7F] = values[0xFF] = torch.nan
    return values


E8M0 = _e8m0_values()
"""[256] float32: the value of every scale byte; 255 is NaN."""

E4M3 = _e4m3_values()
"""[256] float32: the value of every e4m3 byte; 0x7F and 0xFF are NaN, there is no infinity."""

E2M1 = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=torch.float32)
"""[16] float32: the value of every fp4 code."""

_E2M1_PAIRS = torch.stack(
    (E2M1[torch.arange(256) & 15], E2M1[torch.arange(256) >> 4]), dim=1
)  # [256, 2] low nibble first


def expand_scale(scale: Tensor) -> Tensor:
    """E8M0 bytes to float32 factors.

    Shapes: scale [...] uint8; result [...] float32.
    Source: OCP Microscaling 1.0, section 5.4.1: 2**(byte - 127), 255 is NaN.
    """
    return E8M0[scale.to(torch.int32)]


def expand_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """Expand an fp8 matrix with 32x32 scale blocks to float32.

    Shapes: weight [N, K] uint8 (e4m3 bytes); scale [ceil(N/32), ceil(K/32)] uint8 (e8m0); result [N, K].
    The last block of a dimension that is not a multiple of 32 is short. Allocates the result and the expanded scales.
    Raises: FormatError if the scale's shape is not the blocked shape of the weight.
    """
    n, k = weight.shape
    want = (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
    if tuple(scale.shape) != want:
        raise FormatError(f"fp8 weight of shape {[n, k]} has a scale of shape {list(scale.shape)}, not {list(want)}")
    values = E4M3[weight.to(torch.int32)]
    factor = expand_scale(scale).repeat_interleave(SCALE_BLOCK, 0)[:n].repeat_interleave(SCALE_BLOCK, 1)[:, :k]
    return values.mul_(factor)


def expand_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Expand a packed fp4 matrix to float32.

    Shapes: packed [N, K/2] uint8, column 2c in the low nibble of byte c; scale [N, K/32] uint8 (e8m0); result [N, K].
    Raises: FormatError if K is not a multiple of 32 or the scale's shape does not follow from it.
    """
    n, k = packed.shape[0], packed.shape[1] * 2
    if k % SCALE_BLOCK or tuple(scale.shape) != (n, k // SCALE_BLOCK):
        raise FormatError(f"fp4 weight of shape {[n, k]} has a scale of shape {list(scale.shape)}")
    values = _E2M1_PAIRS[packed.to(torch.int32)].view(n, k // SCALE_BLOCK, SCALE_BLOCK)
    return (values * expand_scale(scale).unsqueeze(-1)).view(n, k)


def expand_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Expand engram rows to float32.

    Shapes: weight [R, W] uint8 (e4m3); scale [R, ceil(W/32)] uint8 (e8m0), one per 32 columns of that row; result [R,
    W].
    """
    # Neither by indexing nor by repeating factors: torch wakes its threads for both, however few rows there are. On a
    # busy machine 24 of them took 5 ms, and 0.3 so.
    values = E4M3.index_select(0, weight.reshape(-1).to(torch.int32)).view(weight.shape)
    factor = expand_scale(scale)
    if values.shape[1] % SCALE_BLOCK:
        return values.mul_(factor.repeat_interleave(SCALE_BLOCK, 1)[:, : values.shape[1]])
    values.view(*factor.shape, SCALE_BLOCK).mul_(factor.unsqueeze(-1))
    return values


def check_codes(name: str, weight: Tensor, scale: Tensor | None, *, fp8: bool) -> None:
    """Refuse NaN codes, which would spread silently through every sum they meet.

    Shapes: weight [N, M] uint8; scale [...] uint8 or None. `fp8` says whether weight bytes are e4m3; fp4 has no NaN.
    Raises: FormatError naming the tensor, the position and the byte.
    Source: OCP 8-bit Floating Point 1.0: e4m3 NaN is S.1111.111; OCP Microscaling 1.0: e8m0 NaN is 0xFF.
    """
    if fp8:
        _refuse(f"{name}.weight", weight, 0x7F, "a NaN code of fp8 e4m3")
    if scale is not None:
        _refuse(f"{name}.scale", scale, E8M0_NAN, "the NaN code of an e8m0 scale")


_CHECK_BYTES = 1 << 18
"""Looked through at once, so that what it takes stays in the cache."""


def _refuse(name: str, data: Tensor, mask: int, what: str) -> None:
    """Refuse a byte in which every bit of `mask` is set.

    By the largest byte, as comparing each takes far longer (6.6 MB of fp8: 9.3 ms against 0.4; the scales of a released
    expert's matrix: 0.53 ms against 0.01), and every expert that is read goes through this. By numpy, as torch would
    wake its threads for each piece.
    """
    flat = data.reshape(-1).numpy()
    for start in range(0, flat.size, _CHECK_BYTES):
        piece = flat[start : start + _CHECK_BYTES]
        if mask != 0xFF:
            piece = piece & np.uint8(mask)
        if piece.max() == mask:
            at = start + int((piece == mask).argmax())
            place: list[int] = []
            rest = at
            for size in reversed(data.shape):
                rest, index = divmod(rest, size)
                place.insert(0, index)
            raise FormatError(
                f"{name}{place} holds byte 0x{int(flat[at]):02X}, {what}",
                hint="The shard is damaged or was converted wrongly. Fetch it again and run `artesian audit`.",
            )


# --- rounding of activations, `reference` mode only ------------------------------------------------------------------


def round_bf16(x: Tensor) -> Tensor:
    """Round float32 to the nearest bfloat16, kept in float32. Shape unchanged."""
    return x.to(torch.bfloat16).to(torch.float32)


def _power_of_two_ceil(x: Tensor) -> Tensor:
    """2**ceil(log2(x)) for positive float32 x, decided on the bits so that no logarithm rounds."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return torch.ldexp(torch.ones_like(x), exponent)


def _blocks(x: Tensor, size: int) -> Tensor:
    if x.shape[-1] % size:
        raise FormatError(f"activations of width {x.shape[-1]} cannot be rounded in blocks of {size}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _round_e2m1(x: Tensor) -> Tensor:
    """Nearest fp4 value of |x| <= 6, ties to the even code: 0.25->0, 0.75->1, 1.25->1, 1.75->2, 2.5->2, 3.5->4."""
    magnitude = x.abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign(torch.round(magnitude / step) * step, x)


def round_fp8(x: Tensor) -> Tensor:
    """Round to e4m3 with one power-of-two scale per 32 values ("q8" of the spec). Shape [..., K], K % 32 == 0.

    Source: spec/architecture section 15: amax = max(|x|, 1e-4), scale = 2**ceil(log2(amax * fl32(1/448))), nearest
    even.
    """
    blocks = _blocks(x, SCALE_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = _power_of_two_ceil(amax * torch.tensor(1 / E4M3_MAX, dtype=torch.float32))
    codes = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(torch.float32) * scale).reshape(x.shape)


def round_fp4(x: Tensor) -> Tensor:
    """Round to e2m1 with one power-of-two scale per 32 values ("q4"). Shape [..., K], K % 32 == 0.

    Source: spec/architecture section 15: amax = max(|x|, 6 * 2**-126), scale = 2**ceil(log2(amax * fl32(1/6))).
    """
    blocks = _blocks(x, SCALE_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-126)
    scale = _power_of_two_ceil(amax * torch.tensor(1 / E2M1_MAX, dtype=torch.float32))
    return (_round_e2m1((blocks / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).reshape(x.shape)


def round_fp4_e4m3(x: Tensor) -> Tensor:
    """Round to e2m1 with one e4m3 scale per 16 values ("q4k", compressed KV). Shape [..., K], K % 16 == 0.

    Source: spec/architecture section 15: amax = max(|x|, 6 * 2**-9), scale = e4m3(amax / 6).
    """
    blocks = _blocks(x, 16)
    amax = blocks.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-9)
    scale = (amax / E2M1_MAX).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)
    return (_round_e2m1((blocks / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).reshape(x.shape)
