"""Matrix products of weights that lie on a card; rows may come from memory, and the result goes back to them.

By Triton's kernel where it can be used, else by torch, which expands a panel of weights at a time. The first gives a
row the same bits in whatever company, the second does not.
"""

import torch
from torch import Tensor

from engine.errors import CardFull
from engine.kernels.fused import available, can_multiply, matmul_fused
from engine.kernels.matrix import Matrix
from engine.kernels.torch_path import matmul_fp4, matmul_fp8, matmul_plain

MOST_ROWS = 256
"""Of one pass, so that a long prompt takes no more of a card's memory than `planner.cards` leaves for it."""


def matmul_on_card(x: Tensor, matrix: Matrix, groups: int = 1, *, in_blocks: bool = False) -> Tensor:
    """x W^T in float32, block-diagonal over `groups`, on the device of `x`. Shapes: x [T, groups*K]; result [T, N].

    `in_blocks` adds 32 columns at a time, as `kernels.matmul` says. Raises: CardFull.
    """
    device = matrix.weight.device
    try:
        if x.shape[0] <= MOST_ROWS:
            return _product(x.to(device), matrix, groups, in_blocks).to(x.device)
        out = x.new_empty((x.shape[0], matrix.weight.shape[0]))
        for row in range(0, x.shape[0], MOST_ROWS):
            rows = slice(row, row + MOST_ROWS)
            out[rows] = _product(x[rows].to(device), matrix, groups, in_blocks).to(x.device)
    except torch.OutOfMemoryError as error:
        raise CardFull(f"{device} has no memory left", hint=FULL_HINT) from error
    return out


def near(x: Tensor, *matrices: Matrix) -> Tensor:
    """Rows on the card where all of these matrices lie, so that they cross the bus once on their way from one to the
    next; as they are where that is not so, or they are too many. Raises: CardFull.
    """
    device = matrices[0].weight.device
    if device.type == "cpu" or x.shape[0] > MOST_ROWS or any(matrix.weight.device != device for matrix in matrices):
        return x
    try:
        return x.to(device)
    except torch.OutOfMemoryError as error:
        raise CardFull(f"{device} has no memory left", hint=FULL_HINT) from error


FULL_HINT = "Give it less with --vram, or close what else uses it."


def _product(x: Tensor, matrix: Matrix, groups: int, in_blocks: bool) -> Tensor:
    """The same over rows that are on the card, where the result stays."""
    if x.device.type == "cuda" and not in_blocks and available() and can_multiply(matrix, groups):
        with torch.cuda.device(x.device):  # where Triton launches; no card has run this: see `fused`
            return matmul_fused(x, matrix, groups)
    if matrix.scale is None:
        return matmul_plain(x, matrix.weight)
    if matrix.kind == "fp4":
        return matmul_fp4(x, matrix.weight, matrix.scale, in_blocks=in_blocks)
    if groups == 1:
        return matmul_fp8(x, matrix.weight, matrix.scale, in_blocks=in_blocks)
    n, k = matrix.weight.shape[0] // groups, matrix.weight.shape[1]
    parts = [
        matmul_fp8(x[:, g * k : (g + 1) * k], matrix.weight, matrix.scale, first=g * n, n=n) for g in range(groups)
    ]
    return torch.cat(parts, dim=1)
