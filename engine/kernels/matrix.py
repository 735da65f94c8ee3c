"""A weight matrix as stored, which every path multiplies by."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

MatrixKind = Literal["fp8", "fp4", "plain"]


class NativeMatrix(NamedTuple):
    """What the native library is told of a matrix."""

    format: int
    n: int
    k: int
    weight: int
    """Address."""
    scale: int | None
    """Address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix as stored; applied as y = x W^T."""

    kind: MatrixKind
    weight: Tensor
    """[N, K] uint8 (fp8), [N, K/2] uint8 (fp4), or [N, K] bfloat16/float32 (plain)."""
    scale: Tensor | None
    """uint8 e8m0: [ceil(N/32), ceil(K/32)] for fp8, [N, K/32] for fp4, None for plain."""
    checked: list[NativeMatrix] = field(default_factory=list, init=False, repr=False, compare=False)
    """One, once the native library was found able to read it: shapes and addresses of a matrix do not change."""
