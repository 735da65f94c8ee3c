"""Matrix products on a card that read weights as they are stored, by Triton, where that can be imported.

Every call goes through rows eight at a time, with the same shapes for one row as for eight, so that a row's result does
not depend on how many rows share the call. The one thing a reader would get wrong: nothing here was run on a card in
this version; the arithmetic was checked in Triton's interpreter (`tests/engine/test_fused.py`, where Triton is there).

Source of the bit patterns: an e4m3 byte moved into the bits of a float16 is the value over 2^8, an e2m1 nibble the
value over 2^14, denormals included, which float16 keeps.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from engine.formats import SCALE_BLOCK
from engine.kernels.matrix import Matrix

_ROWS = 8
"""Of one pass. Fewer are filled up: the weights are read once for all of them."""
_TILE_N = 32
"""Weight rows of one program: those that share an fp8 scale."""
_TILE_K = 128
"""Weight columns at a time."""


@cache
def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401 - only present beside a torch that has a card; importing it takes a second
    except ImportError:
        return False
    return True


def can_multiply(matrix: Matrix, groups: int = 1) -> bool:
    """Whether the shapes are those the kernel goes through in whole tiles; all of the release are."""
    n, k = matrix.weight.shape
    if matrix.kind == "fp4":
        k *= 2
    per_group = n // groups
    whole = per_group % _TILE_N == 0 or groups == 1
    return whole and k % (2 * SCALE_BLOCK) == 0 and (matrix.kind != "plain" or matrix.weight.dtype is torch.bfloat16)


def matmul_fused(x: Tensor, matrix: Matrix, groups: int = 1) -> Tensor:
    """x W^T in float32, block-diagonal over `groups`. Shapes: x [T, groups*K] float32, on the card; result [T, N]."""
    x = x.contiguous()
    weight, n = matrix.weight, matrix.weight.shape[0]
    k = x.shape[1] // groups
    out = x.new_empty((x.shape[0], n))
    scale = weight if matrix.scale is None else matrix.scale  # a plain matrix has none, and none is read
    grid = (-(-n // _TILE_N), -(-x.shape[0] // _ROWS))
    _kernel()[grid](
        x, weight, scale, out, x.shape[0], n, k, n // groups, x.shape[1], scale.stride(0),
        KIND=("fp8", "fp4", "plain").index(matrix.kind), R=_ROWS, TILE_N=_TILE_N, TILE_K=_TILE_K,
        num_warps=8,  # 128 registers of a thread for the 8 x 32 x 128 products of a step; more would spill
    )  # fmt: skip
    return out


@cache
def _kernel() -> Any:
    """The kernel, compiled when it is first called."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[misc, untyped-decorator, unused-ignore]
    def product(  # type: ignore[no-untyped-def]
        x_ptr, w_ptr, s_ptr, out_ptr, n_rows, n, k, n_of_group, x_stride, s_stride,
        KIND: tl.constexpr, R: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    ):  # fmt: skip
        first = tl.program_id(0) * TILE_N
        row = tl.program_id(1) * R + tl.arange(0, R)  # [R]
        out_col = first + tl.arange(0, TILE_N)  # [TILE_N]
        there, in_rows = out_col < n, row < n_rows
        x_row = x_ptr + row.to(tl.int64) * x_stride + (first // n_of_group) * k
        w_row = out_col.to(tl.int64)
        total = tl.zeros((R, TILE_N), dtype=tl.float32)
        if KIND == 1:
            for start in range(0, k // 2, TILE_K // 2):
                byte = start + tl.arange(0, TILE_K // 2)  # two columns each, the even one in the low nibble
                inside = byte < k // 2
                use = there[:, None] & inside[None, :]
                packed = tl.load(w_ptr + w_row[:, None] * (k // 2) + byte[None, :], mask=use, other=0).to(tl.uint16)
                power = tl.load(s_ptr + w_row[:, None] * s_stride + (byte // 16)[None, :], mask=use, other=127)
                bits = tl.where(power == 0, 1 << 22, power.to(tl.int32) << 23)  # of 2^(power - 127)
                factor = bits.to(tl.float32, bitcast=True)
                low = ((packed & 8) << 12) | ((packed & 7) << 9)
                high = ((packed & 0x80) << 8) | ((packed & 0x70) << 5)
                even = low.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0 * factor
                odd = high.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0 * factor
                wanted = in_rows[:, None] & inside[None, :]
                x_even = tl.load(x_row[:, None] + 2 * byte[None, :], mask=wanted, other=0.0)
                x_odd = tl.load(x_row[:, None] + 2 * byte[None, :] + 1, mask=wanted, other=0.0)
                both = x_even[:, None, :] * even[None, :, :] + x_odd[:, None, :] * odd[None, :, :]
                total += tl.sum(both, axis=2)
        else:
            for start in range(0, k, TILE_K):
                col = start + tl.arange(0, TILE_K)
                inside = col < k
                use = there[:, None] & inside[None, :]
                stored = tl.load(w_ptr + w_row[:, None] * k + col[None, :], mask=use, other=0)
                if KIND == 0:
                    code = stored.to(tl.uint16)
                    half = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.float16, bitcast=True)
                    power = tl.load(s_ptr + (first // 32) * s_stride + col // 32, mask=inside, other=127)
                    bits = tl.where(power == 0, 1 << 22, power.to(tl.int32) << 23)  # of 2^(power - 127)
                    value = half.to(tl.float32) * 256.0 * bits.to(tl.float32, bitcast=True)[None, :]
                else:
                    value = stored.to(tl.float32)
                given = tl.load(x_row[:, None] + col[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
                total += tl.sum(given[:, None, :] * value[None, :, :], axis=2)
        tl.store(
            out_ptr + row.to(tl.int64)[:, None] * n + out_col[None, :], total, mask=in_rows[:, None] & there[None, :]
        )

    return product
