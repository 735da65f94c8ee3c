"""How fast the kernels consume stored weights, beside what memory and the processor give in the same minute.

The one thing a reader would get wrong: weights are cold. Every product takes the next of many copies, together larger
than any cache, as a forward does; a matrix measured twice in a row would come from the cache.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

import torch
from torch import Tensor

from engine.kernels import torch_path
from engine.kernels.matrix import Matrix
from engine.kernels.native_path import NativeKernels

ROWS = (1, 2, 4, 6, 16, 64)
"""Rows of activations each kernel is measured with."""

COLD_BYTES = 256 << 20
"""Weights each kernel goes through in turn; last caches hold up to some 100 MB."""

_FMA_STEPS = 5_000_000
"""Some ten milliseconds: in less, the second thread may wake too late to count."""
_E8M0_ONE = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kernel on weights of a released shape."""

    name: str
    kind: str
    """"expert" (three fp4 matrices, w1 and w3 [n, k], w2 [k, n]), "fp8", "bf16" or "f32"."""
    n: int
    k: int

    @property
    def stored_bytes(self) -> int:
        """Bytes of weights and scales that one product reads."""
        cells = self.n * self.k
        if self.kind == "expert":
            return 3 * (cells // 2 + cells // 32)
        if self.kind == "fp8":
            return cells + cells // 1024
        return cells * (2 if self.kind == "bf16" else 4)

    @property
    def multiply_adds(self) -> int:
        """Of one row of activations."""
        return self.n * self.k * (3 if self.kind == "expert" else 1)


RELEASED = (
    Shape(name="fp4 expert", kind="expert", n=2304, k=5120),
    Shape(name="fp8 trunk", kind="fp8", n=5120, k=8192),
    Shape(name="bf16 head", kind="bf16", n=8192, k=5120),
    Shape(name="f32 mix", kind="f32", n=24, k=20480),
)


@dataclass(slots=True, kw_only=True)
class Arm:
    """One kernel with one number of rows on one path: seconds of each round."""

    shape: Shape
    rows: int
    path: str
    seconds: list[float] = field(default_factory=list)

    @property
    def rate_bytes_s(self) -> float:
        """Stored weights consumed a second, median."""
        return self.shape.stored_bytes / median(self.seconds)

    @property
    def multiply_adds_s(self) -> float:
        """Multiply-adds a second, median."""
        return self.shape.multiply_adds * self.rows / median(self.seconds)


@dataclass(slots=True, kw_only=True)
class Floors:
    """What the machine gave, a figure for each round."""

    read_bytes_s: list[float] = field(default_factory=list)
    multiply_adds_s: list[float] = field(default_factory=list)


Call = Callable[[], object]


class KernelBench:
    """Rounds of all arms, one product each, so that whatever else the machine does meets them alike.

    Attributes:
        arms: Results so far.
        floors: Likewise, of the machine.
    """

    def __init__(
        self, kernels: NativeKernels, *, shapes: tuple[Shape, ...] = RELEASED, cold_bytes: int = COLD_BYTES
    ) -> None:
        self._kernels = kernels
        self._memory = torch.ones(cold_bytes // 4)
        self.floors = Floors()
        self.arms: list[Arm] = []
        self._calls: list[Call] = []
        generator = torch.Generator().manual_seed(0)
        # No NaN code: bytes below 120 are finite in every packed format.
        packed = torch.randint(0, 120, (cold_bytes,), generator=generator, dtype=torch.uint8)
        for shape in shapes:
            weights = packed if shape.kind in ("expert", "fp8") else self._memory.view(torch.uint8)
            for rows in ROWS:
                x = torch.randn(rows, shape.k, generator=generator)
                for path, call in self._paths(shape, x, weights):
                    self.arms.append(Arm(shape=shape, rows=rows, path=path))
                    self._calls.append(call)

    def _paths(self, shape: Shape, x: Tensor, memory: Tensor) -> Iterator[tuple[str, Call]]:
        if shape.kind != "expert":
            single = cycle(_copies(shape, memory))
            yield "native", lambda: self._kernels.matmul(x, next(single))
            yield "torch", lambda: _torch_product(x, next(single))
            return
        experts = cycle(_experts(shape, memory))
        weights = torch.ones(x.shape[0], 1)
        out = torch.empty(x.shape[0], 1, shape.k)
        uses = [list(range(x.shape[0]))]
        yield "native", lambda: self._kernels.routed_experts(x, [next(experts)], uses, weights, 10.0, out)

        def by_torch() -> Tensor:
            w1, w3, w2 = next(experts)
            inner = torch.nn.functional.silu(_torch_product(x, w1)) * _torch_product(x, w3)
            return _torch_product(inner, w2)

        yield "torch", by_torch

    def round(self) -> None:
        """Measure the floors and every arm once."""
        before = time.perf_counter()
        self._kernels.read(self._memory)
        self.floors.read_bytes_s.append(self._memory.nbytes / (time.perf_counter() - before))
        before = time.perf_counter()
        made = self._kernels.multiply_adds(_FMA_STEPS)
        self.floors.multiply_adds_s.append(made / (time.perf_counter() - before))
        for arm, call in zip(self.arms, self._calls, strict=True):
            before = time.perf_counter()
            call()
            arm.seconds.append(time.perf_counter() - before)


def _copies(shape: Shape, memory: Tensor) -> list[Matrix]:
    """The memory cut into matrices of this shape; at least one."""
    itemsize = {"fp8": 1, "bf16": 2, "f32": 4}[shape.kind]
    size = shape.n * shape.k * itemsize
    scale = None
    if shape.kind == "fp8":
        scale = torch.full((-(-shape.n // 32), -(-shape.k // 32)), _E8M0_ONE, dtype=torch.uint8)
    dtype = {"fp8": torch.uint8, "bf16": torch.bfloat16, "f32": torch.float32}[shape.kind]
    return [
        Matrix(
            kind="fp8" if shape.kind == "fp8" else "plain",
            weight=memory[at : at + size].view(dtype).view(shape.n, shape.k),
            scale=scale,
        )
        for at in range(0, memory.numel() - size + 1, size)
    ]


def _experts(shape: Shape, memory: Tensor) -> list[tuple[Matrix, Matrix, Matrix]]:
    """The memory cut into experts (w1, w3, w2); at least one."""
    size = shape.n * shape.k // 2
    cuts = [memory[at : at + size] for at in range(0, memory.numel() - size + 1, size)]

    def fp4(cut: Tensor, n: int, k: int) -> Matrix:
        scale = torch.full((n, k // 32), _E8M0_ONE, dtype=torch.uint8)
        return Matrix(kind="fp4", weight=cut.view(n, k // 2), scale=scale)

    return [
        (fp4(w1, shape.n, shape.k), fp4(w3, shape.n, shape.k), fp4(w2, shape.k, shape.n))
        for w1, w3, w2 in zip(cuts[::3], cuts[1::3], cuts[2::3], strict=False)
    ]


def _torch_product(x: Tensor, matrix: Matrix) -> Tensor:
    if matrix.scale is None:
        return torch_path.matmul_plain(x, matrix.weight)
    if matrix.kind == "fp8":
        return torch_path.matmul_fp8(x, matrix.weight, matrix.scale)
    return torch_path.matmul_fp4(x, matrix.weight, matrix.scale)
