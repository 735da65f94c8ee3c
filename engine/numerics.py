"""The two numeric modes, as the places where they differ.

`exact` keeps activations in float32 and rounds nothing. `reference` holds activations in bfloat16 and quantises those
the released runtime quantises. The forward calls these by the role of a value and never asks which mode it is in, but
for attention, whose probabilities the reference rounds in blocks, and the sum over experts, which it makes by number.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.formats import round_bf16, round_fp4, round_fp4_e4m3, round_fp8
from engine.kernels import FRESH, Matrix, Workspace, grouped_matmul, matmul, native
from engine.kernels.native_path import NativeKernels

NumericsName = Literal["exact", "reference"]


class Product(Protocol):
    """A product with any matrix; a native one lies in `work`."""

    def __call__(self, x: Tensor, matrix: Matrix, work: Workspace = FRESH) -> Tensor:
        """Shapes: x [T, K]; result [T, N]."""


class GroupedProduct(Protocol):
    """The block-diagonal product of `kernels.grouped_matmul`; a native one lies in `work`."""

    def __call__(self, x: Tensor, matrix: Matrix, groups: int, work: Workspace = FRESH) -> Tensor:
        """Shapes: x [T, groups*K]; result [T, N]."""


def _same(x: Tensor) -> Tensor:
    return x


def _in_blocks(x: Tensor, matrix: Matrix, work: Workspace = FRESH) -> Tensor:
    return matmul(x, matrix, work, in_blocks=True)


def _by_torch(x: Tensor, matrix: Matrix, groups: int, work: Workspace = FRESH) -> Tensor:
    return grouped_matmul(x, matrix, groups, work, by_torch=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Rounding by role; every function but the products keeps shape and dtype (float32)."""

    name: NumericsName
    value: Callable[[Tensor], Tensor]
    """Any result that the released runtime holds in bfloat16."""
    operand: Callable[[Tensor], Tensor]
    """Input of an fp8 or fp4 matrix."""
    product: Product
    """Product of an input [T, K] with any matrix: [T, N]. The released kernels add 32 columns of a packed one at a
    time, and the order shows: in a library's order, 102 instead of 129 of 130 golden prompt positions agree to the
    last bit."""
    grouped: GroupedProduct
    """The block-diagonal product of `kernels.grouped_matmul`."""
    window_kv: Callable[[Tensor], Tensor]
    """A window key after rotation."""
    compressed_kv: Callable[[Tensor], Tensor]
    """A compressed key after rotation."""
    index: Callable[[Tensor], Tensor]
    """An index query or key after rotation."""
    cached: torch.dtype
    """What window keys, compressed keys and index keys are stored as. `reference` has rounded them to values that
    bfloat16 holds, so half the memory loses nothing; in `exact`, where nothing is rounded, anything but float32 would.
    """
    on_card: bool = False
    """For tensors of a card, which the native kernels cannot read."""

    def native(self) -> NativeKernels | None:
        """The native kernels for what lies between the products, or None where torch does it: without the library,
        on a card, and in `reference`, whose roundings it does not know.
        """
        return native() if self.name == "exact" and not self.on_card else None

    def at(self, device: torch.device) -> "Numerics":
        """The same roundings for tensors of a device."""
        return (NUMERICS if device.type == "cpu" else _ON_CARD)[self.name]


EXACT = Numerics(
    name="exact",
    value=_same,
    operand=_same,
    product=matmul,
    grouped=grouped_matmul,
    window_kv=_same,
    compressed_kv=_same,
    index=_same,
    cached=torch.float32,
)
REFERENCE = Numerics(
    name="reference",
    value=round_bf16,
    operand=round_fp8,
    product=_in_blocks,
    grouped=_by_torch,
    window_kv=lambda x: round_bf16(round_fp8(x)),
    compressed_kv=lambda x: round_bf16(round_fp4_e4m3(x)),
    index=lambda x: round_bf16(round_fp4(x)),
    cached=torch.bfloat16,
)

NUMERICS: dict[NumericsName, Numerics] = {"exact": EXACT, "reference": REFERENCE}
_ON_CARD: dict[NumericsName, Numerics] = {name: replace(some, on_card=True) for name, some in NUMERICS.items()}


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)). Any shape.

    From `torch.exp`, which gives a value the same bits wherever it stands: torch's own sigmoid and silu compute the
    last few values of a tensor by another routine, so a row would depend on how many rows there are.
    """
    return 1 / (1 + torch.exp(-x))
