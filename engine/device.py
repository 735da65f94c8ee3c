"""Facts about processors and GPUs, as numbers for the planner.

Asking for GPUs may take a second and start the driver; measuring the arithmetic takes half a second and 160 MB for as
long. The one thing a reader would get wrong: weights are cold. Every product takes the next of many copies, together
larger than any cache, as a forward does.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from engine.kernels import Matrix, matmul, native
from planner.facts import Gpu, Rates

COLD_BYTES = 160 << 20
"""Weights gone through for one figure; last caches hold up to some 100 MB."""
MANY_ROWS = 32
"""Rows of the product whose limit is arithmetic and not memory."""
_PASSES = 2
_PATTERN = 0x35
"""Every weight byte: a small finite number in each of the formats."""
_ONE = 127
"""The scale 2^0."""


def gpus() -> tuple[Gpu, ...]:
    """Every device torch can compute on, with what is free on it now. Raises: what torch raises on a broken driver."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        integrated = bool(getattr(properties, "is_integrated", False))
        found.append(Gpu(name=properties.name, total_bytes=total, free_bytes=free, unified=integrated))
    if torch.backends.mps.is_available():
        total = int(torch.mps.recommended_max_memory())
        found.append(Gpu(name="Apple GPU", total_bytes=total, free_bytes=total, unified=True))
    return tuple(found)


def card_devices() -> tuple[torch.device, ...]:
    """The devices with memory of their own, in the order in which `gpus` and a plan's cards name them."""
    indices = range(torch.cuda.device_count())
    own = [i for i in indices if not bool(getattr(torch.cuda.get_device_properties(i), "is_integrated", False))]
    return tuple(torch.device("cuda", index) for index in own)


def free_card_bytes(device: torch.device) -> int | None:
    """What is free on a card now, what torch keeps for itself not counted; None of what is no card."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def measure_arithmetic() -> Rates:
    """What the kernels consume now, on the threads that are set: products of released shapes, the better of two
    passes.
    """
    memory = torch.full((COLD_BYTES,), _PATTERN, dtype=torch.uint8)
    kernels = native()
    floats = memory.view(torch.float32)
    read_s = _best(lambda: kernels.read(floats) if kernels is not None else floats.sum())
    one, many = torch.ones(1, _WIDTH), torch.ones(MANY_ROWS, _WIDTH)
    fp4, fp8, plain = (_copies(memory, kind) for kind in ("fp4", "fp8", "plain"))
    few = fp4[: max(1, len(fp4) // 8)]
    many_s = _best(lambda: _all(many, few))
    cells = sum(matrix.weight.numel() * 2 for matrix in few)
    return Rates(
        memory_bytes_s=COLD_BYTES / read_s,
        fp4_bytes_s=_stored(fp4) / _best(lambda: _all(one, fp4)),
        fp8_bytes_s=_stored(fp8) / _best(lambda: _all(one, fp8)),
        plain_bytes_s=_stored(plain) / _best(lambda: _all(one, plain)),
        multiply_adds_s=MANY_ROWS * cells / many_s,
        source="measured",
    )


_WIDTH, _HEIGHT = 5120, 2304


def _best(work: Callable[[], object]) -> float:
    """Seconds of the faster of `_PASSES`."""
    seconds = []
    for _ in range(_PASSES):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return max(min(seconds), 1e-9)


def _all(x: Tensor, matrices: list[Matrix]) -> None:
    for matrix in matrices:
        matmul(x, matrix)


def _stored(matrices: list[Matrix]) -> int:
    return sum(m.weight.nbytes + (m.scale.nbytes if m.scale is not None else 0) for m in matrices)


def _copies(memory: Tensor, kind: str) -> list[Matrix]:
    """The memory cut into matrices of a released shape."""
    row_bytes = {"fp4": _WIDTH // 2, "fp8": _WIDTH, "plain": 2 * _WIDTH}[kind]
    size = _HEIGHT * row_bytes
    cuts = [memory[at : at + size].view(_HEIGHT, row_bytes) for at in range(0, memory.numel() - size + 1, size)]
    if kind == "plain":
        return [Matrix(kind="plain", weight=cut.view(torch.bfloat16), scale=None) for cut in cuts]
    if kind == "fp4":
        scale = torch.full((_HEIGHT, _WIDTH // 32), _ONE, dtype=torch.uint8)
        return [Matrix(kind="fp4", weight=cut, scale=scale) for cut in cuts]
    scale = torch.full((_HEIGHT // 32, _WIDTH // 32), _ONE, dtype=torch.uint8)
    return [Matrix(kind="fp8", weight=cut, scale=scale) for cut in cuts]
