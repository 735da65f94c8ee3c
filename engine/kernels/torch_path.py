"""Matrix products on packed weights in plain torch.

Weights stay packed in memory: some rows at a time are expanded to float32, multiplied and dropped, so the extra memory
is `_PANEL_BYTES`, not the matrix. Tables are read with `index_select`: three to five times faster here than indexing or
than torch's own float8 conversion (64x256 on one thread: 67 us against 169 and 238; fp4 two values at a time, 87
against 409).
"""

from functools import cache

import torch
from torch import Tensor

from engine.formats import E2M1, E4M3, E8M0, SCALE_BLOCK

_PANEL_BYTES = 8 << 20
"""Expanded float32 weights held at once."""

_BYTES = torch.arange(256)
_E2M1_PAIRS = torch.stack((E2M1[_BYTES & 15], E2M1[_BYTES >> 4]), dim=1).view(torch.float64).view(256)
"""Both values of an fp4 byte, low nibble first, moved as one 8-byte item."""


def _panel_rows(k: int) -> int:
    return max(SCALE_BLOCK, _PANEL_BYTES // (4 * k) // SCALE_BLOCK * SCALE_BLOCK)


_TABLES = {"e8m0": E8M0, "e4m3": E4M3, "e2m1 pairs": _E2M1_PAIRS}


@cache
def _table(name: str, device: torch.device) -> Tensor:
    """A table [256], where it is read."""
    return _TABLES[name].to(device)


def _look_up(name: str, codes: Tensor) -> Tensor:
    """The table's values of codes, flat. Shapes: codes [...] uint8; result [numel]."""
    return _table(name, codes.device).index_select(0, codes.reshape(-1).to(torch.int32))


def _scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Every 32 columns times their own factor, in place. Shapes: values [R, K] float32; scale [R, ceil(K/32)] uint8."""
    rows, k = values.shape
    factor = _look_up("e8m0", scale).view(rows, -1)
    if k % SCALE_BLOCK:
        return values.mul_(factor.repeat_interleave(SCALE_BLOCK, 1)[:, :k])
    values.view(rows, -1, SCALE_BLOCK).mul_(factor.unsqueeze(-1))
    return values


def _product(x: Tensor, panel: Tensor, in_blocks: bool) -> Tensor:
    """x panel^T in float32: [T, K], [n, K] -> [T, n]; `in_blocks` adds 32 columns at a time, in order."""
    if not in_blocks:
        return x @ panel.t()
    out = x[:, :SCALE_BLOCK] @ panel[:, :SCALE_BLOCK].t()
    for start in range(SCALE_BLOCK, x.shape[1], SCALE_BLOCK):
        out.addmm_(x[:, start : start + SCALE_BLOCK], panel[:, start : start + SCALE_BLOCK].t())
    return out


def matmul_fp8(
    x: Tensor, weight: Tensor, scale: Tensor, *, first: int = 0, n: int | None = None, in_blocks: bool = False
) -> Tensor:
    """x W^T for an fp8 matrix with 32x32 scale blocks, or for its rows first..first+n.

    Shapes: x [T, K] float32; weight [N, K] uint8; scale [ceil(N/32), ceil(K/32)] uint8; result [T, n] float32.
    `first` need not be a multiple of 32: a scale block can span two groups of rows.
    """
    k = weight.shape[1]
    stop = weight.shape[0] if n is None else first + n
    out = x.new_empty((x.shape[0], stop - first))
    step = _panel_rows(k)
    for row in range(first, stop, step):
        rows = slice(row, min(row + step, stop))
        values = _look_up("e4m3", weight[rows]).view(-1, k)
        block_of_row = torch.arange(rows.start, rows.stop, device=weight.device) // SCALE_BLOCK
        panel = _scaled(values, scale.index_select(0, block_of_row))
        out[:, row - first : rows.stop - first] = _product(x, panel, in_blocks)
    return out


def matmul_fp4(x: Tensor, packed: Tensor, scale: Tensor, *, in_blocks: bool = False) -> Tensor:
    """x W^T for a packed fp4 matrix.

    Shapes: x [T, K] float32; packed [N, K/2] uint8; scale [N, K/32] uint8; result [T, N] float32.
    """
    n, half = packed.shape
    out = x.new_empty((x.shape[0], n))
    step = _panel_rows(2 * half)
    for row in range(0, n, step):
        rows = slice(row, row + step)
        values = _look_up("e2m1 pairs", packed[rows]).view(torch.float32).view(-1, 2 * half)
        out[:, rows] = _product(x, _scaled(values, scale[rows]), in_blocks)
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
