"""Matrix products on weights as they are stored; picks the path that computes them.

The rest of the engine calls `matmul` and never sees a packed byte.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.kernels.torch_path import matmul_fp4, matmul_fp8, matmul_plain

MatrixKind = Literal["fp8", "fp4", "plain"]

PATH = "torch"
"""The path in use, for `artesian doctor` and the record of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix as stored; applied as y = x W^T."""

    kind: MatrixKind
    weight: Tensor
    """[N, K] uint8 (fp8), [N, K/2] uint8 (fp4), or [N, K] bfloat16/float32 (plain)."""
    scale: Tensor | None
    """uint8 e8m0: [ceil(N/32), ceil(K/32)] for fp8, [N, K/32] for fp4, None for plain."""


def matmul(x: Tensor, matrix: Matrix, *, in_blocks: bool = False) -> Tensor:
    """x W^T in float32.

    Shapes: x [T, K] float32; result [T, N] float32. `in_blocks` adds the products of an fp8 or fp4 matrix 32
    columns at a time, in order, as the released kernels do; it costs up to twice the time.
    """
    if matrix.scale is None:
        return matmul_plain(x, matrix.weight)
    if matrix.kind == "fp8":
        return matmul_fp8(x, matrix.weight, matrix.scale, in_blocks=in_blocks)
    return matmul_fp4(x, matrix.weight, matrix.scale, in_blocks=in_blocks)


def grouped_matmul(x: Tensor, matrix: Matrix, groups: int) -> Tensor:
    """Block-diagonal product: group g of x's columns meets rows g*N/groups .. of an fp8 matrix.

    Shapes: x [T, groups*K] float32; matrix [N, K]; result [T, N] float32.
    """
    assert matrix.kind == "fp8" and matrix.scale is not None
    n, k = matrix.weight.shape[0] // groups, matrix.weight.shape[1]
    parts = [
        matmul_fp8(x[:, g * k : (g + 1) * k], matrix.weight, matrix.scale, first=g * n, n=n) for g in range(groups)
    ]
    return torch.cat(parts, dim=1)
