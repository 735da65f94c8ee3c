"""Matrix products of weights that lie on a card, with rows that lie there too.

By Triton's kernel where it can be used, else by torch, which expands a panel of weights at a time. The first gives a
row the same bits in whatever company, the second does not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.fused import available, can_multiply, matmul_fused
from engine.kernels.matrix import Matrix
from engine.kernels.torch_path import matmul_fp4, matmul_fp8, matmul_plain

MOST_ROWS = 256
"""Of what is wider than the stream, so that a long prompt takes no more of a card's memory than `planner.cards` leaves
for it.
"""
FULL_HINT = "Give it less with --vram, or close what else uses it."


def pieces(x: Tensor) -> Sequence[slice]:
    """The rows of a tensor in the pieces that a sub-layer goes through: all at once in memory, `MOST_ROWS` on a card.

    The memory of a prompt is planned for; a card has less, and nothing between two attention halves mixes rows.
    """
    n = x.shape[0]
    if x.is_cpu or n <= MOST_ROWS:
        return (slice(0, n),)
    return [slice(row, min(row + MOST_ROWS, n)) for row in range(0, n, MOST_ROWS)]


def matmul_on_card(x: Tensor, matrix: Matrix, groups: int = 1, *, in_blocks: bool = False) -> Tensor:
    """x W^T in float32, block-diagonal over `groups`. Shapes: x [T, groups*K], where the matrix lies; result [T, N].

    `in_blocks` adds 32 columns at a time, as `kernels.matmul` says.
    """
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
