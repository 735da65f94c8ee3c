"""Matrix products on packed weights in plain torch.

Weights stay packed in memory: a few rows at a time are expanded to float32, multiplied and dropped, so the extra
memory is `_PANEL_BYTES`, not the matrix.
"""

import torch
from torch import Tensor

from engine.formats import SCALE_BLOCK, expand_fp4, expand_scale

_PANEL_BYTES = 8 << 20
"""Expanded float32 weights held at once."""


def _panel_rows(k: int) -> int:
    return max(SCALE_BLOCK, _PANEL_BYTES // (4 * k) // SCALE_BLOCK * SCALE_BLOCK)


def matmul_fp8(x: Tensor, weight: Tensor, scale: Tensor, *, first: int = 0, n: int | None = None) -> Tensor:
    """x W^T for an fp8 matrix with 32x32 scale blocks, or for its rows first..first+n.

    Shapes: x [T, K] float32; weight [N, K] uint8; scale [ceil(N/32), ceil(K/32)] uint8; result [T, n] float32.
    `first` need not be a multiple of 32: a scale block can span two groups of rows.
    """
    k = weight.shape[1]
    n = weight.shape[0] if n is None else n
    out = x.new_empty((x.shape[0], n))
    values = weight.view(torch.float8_e4m3fn)
    step = _panel_rows(k)
    for row in range(0, n, step):
        rows = torch.arange(first + row, first + min(row + step, n))
        panel = values[int(rows[0]) : int(rows[-1]) + 1].to(torch.float32)
        factor = expand_scale(scale[rows // SCALE_BLOCK]).repeat_interleave(SCALE_BLOCK, 1)[:, :k]
        out[:, row : row + step] = x @ panel.mul_(factor).t()
    return out


def matmul_fp4(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """x W^T for a packed fp4 matrix.

    Shapes: x [T, K] float32; packed [N, K/2] uint8; scale [N, K/32] uint8; result [T, N] float32.
    """
    n, half = packed.shape
    out = x.new_empty((x.shape[0], n))
    step = _panel_rows(2 * half)
    for row in range(0, n, step):
        panel = expand_fp4(packed[row : row + step], scale[row : row + step])
        out[:, row : row + step] = x @ panel.t()
    return out


def matmul_plain(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T for an unquantised matrix.

    Shapes: x [T, K] float32; weight [N, K] bfloat16 or float32; result [T, N] float32.
    """
    if weight.dtype is torch.float32:
        return x @ weight.t()
    n, k = weight.shape
    out = x.new_empty((x.shape[0], n))
    step = _panel_rows(k)
    for row in range(0, n, step):
        out[:, row : row + step] = x @ weight[row : row + step].to(torch.float32).t()
    return out
