"""Matrix products on weights as they are stored; picks the path that computes them.

The rest of the engine calls `matmul` and never sees a packed byte. The native library is used where it was built; plain
torch computes the same elsewhere. The variable ARTESIAN_KERNELS picks one: `torch`, `native` (the widest instruction
set here), or an instruction set by name (`avx512`, `avx2`, `neon`, `portable`). It is read with the first product.
"""

import os
from functools import cache

import torch
from torch import Tensor

from engine.errors import KernelError
from engine.kernels.card_path import matmul_on_card
from engine.kernels.matrix import Matrix, MatrixKind
from engine.kernels.native_path import INSTRUCTION_SETS, NativeKernels, library_file
from engine.kernels.torch_path import matmul_fp4, matmul_fp8, matmul_plain
from engine.kernels.workspace import FRESH, Workspace

__all__ = [
    "FRESH",
    "VARIABLE",
    "Matrix",
    "MatrixKind",
    "Workspace",
    "grouped_matmul",
    "matmul",
    "native",
    "path",
    "set_threads",
]

VARIABLE = "ARTESIAN_KERNELS"


@cache
def native() -> NativeKernels | None:
    """The native kernels in use, or None on the torch path.

    Raises: KernelError when the variable asks for what this machine does not have.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "torch" or (not wanted and library_file() is None):
        return None
    if wanted and wanted not in ("native", *INSTRUCTION_SETS):
        raise KernelError(
            f"{VARIABLE} is {wanted!r}", hint=f"It may be torch, native, {', '.join(INSTRUCTION_SETS)}, or unset."
        )
    kernels = NativeKernels.load(wanted or "native")
    kernels.set_threads(torch.get_num_threads())
    return kernels


def path() -> str:
    """The path in use, for `artesian doctor`: "native avx2" for example, or "torch" and why.

    Raises: KernelError as `native` does.
    """
    kernels = native()
    if kernels is not None:
        return f"native {kernels.instruction_set}"
    return f"torch ({'the native kernels were not built' if library_file() is None else f'{VARIABLE} asks for it'})"


def set_threads(n: int) -> None:
    """How many threads a product may use, on either path; until it is called, as many as torch uses.

    On the native path torch itself then gets one: what is left to it is small, and its threads spin for a while after
    each step, on the cores that the others want.
    """
    kernels = native()
    if kernels is not None:
        kernels.set_threads(n)
    torch.set_num_threads(n if kernels is None else 1)


def matmul(x: Tensor, matrix: Matrix, work: Workspace = FRESH, *, in_blocks: bool = False) -> Tensor:
    """x W^T in float32. On the native path a row's result depends on that row alone, to the last bit, and lies in
    `work`.

    Shapes: x [T, K] float32; result [T, N] float32. `in_blocks` adds as the released kernels do: the
    products of an fp8 or fp4 matrix 32 columns at a time, in order, those of a plain matrix as torch does. It never
    takes the native path. A matrix on a card is multiplied there, by rows there.
    """
    if not matrix.weight.is_cpu:
        return matmul_on_card(x, matrix, in_blocks=in_blocks)
    kernels = native()
    if kernels is not None and not in_blocks:
        return kernels.matmul(x.contiguous(), matrix, 1, work)
    if matrix.scale is None:
        return matmul_plain(x, matrix.weight)
    if matrix.kind == "fp8":
        return matmul_fp8(x, matrix.weight, matrix.scale, in_blocks=in_blocks)
    return matmul_fp4(x, matrix.weight, matrix.scale, in_blocks=in_blocks)


def grouped_matmul(
    x: Tensor, matrix: Matrix, groups: int, work: Workspace = FRESH, *, by_torch: bool = False
) -> Tensor:
    """Block-diagonal product: group g of x's columns meets rows g*N/groups .. of an fp8 matrix.

    Shapes: x [T, groups*K] float32; matrix [N, K]; result [T, N] float32. `by_torch` adds in torch's order and never
    takes the native path.
    """
    assert matrix.kind == "fp8" and matrix.scale is not None
    if not matrix.weight.is_cpu:
        return matmul_on_card(x, matrix, groups)
    kernels = native()
    if kernels is not None and not by_torch:
        return kernels.matmul(x.contiguous(), matrix, groups, work)
    n, k = matrix.weight.shape[0] // groups, matrix.weight.shape[1]
    parts = [
        matmul_fp8(x[:, g * k : (g + 1) * k], matrix.weight, matrix.scale, first=g * n, n=n) for g in range(groups)
    ]
    return torch.cat(parts, dim=1)
