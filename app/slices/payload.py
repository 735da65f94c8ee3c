"""Bytes of a slice's tensors: random, finite, of a sensible size, and drawn once.

A few random blocks are made and every tensor is cut from one of them at a random place, because drawing 8 GB takes
longer than writing them. No two experts are equal, and a drive that looks for repeated blocks finds none.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.inventory import FP4_COLUMNS, ExpectedTensor, Group

Bytes = NDArray[np.uint8]

_POOL_BYTES = 1 << 25
_ONE = 127
"""The e8m0 code of 2^0."""
_RMS_FP4 = 2.93
"""Root mean square of the sixteen e2m1 values, 0 0.5 1 1.5 2 3 4 6 and their negatives."""
_RMS_FP8 = 0.84
"""Root mean square of the e4m3 codes drawn here: exponents 4 to 7 of bias 7, any mantissa."""


class Payload:
    """Draws the bytes of tensors. The same seed and the same order of calls give the same bytes."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        raw: Bytes = self._random.integers(0, 256, _POOL_BYTES, dtype=np.uint8)
        # Sign and mantissa as they come, exponent 4 to 7: 0.125 to 1.875, never one of the two NaN codes.
        small: Bytes = raw & np.uint8(0x9F) | np.uint8(0x20)
        self._pools: dict[object, Bytes] = {"I8": raw, "F8_E4M3": small}
        self._normal = self._random.standard_normal(_POOL_BYTES // 8, dtype=np.float32)

    def chunks(self, tensor: ExpectedTensor) -> Iterator[memoryview]:
        """The tensor's bytes in row order, in pieces; nothing for an engram table, which stays a hole of zeros."""
        if tensor.group is Group.ENGRAM and tensor.role.startswith("engram.embed."):
            return iter(())
        n_bytes = math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]
        return self._cut(self._pool(tensor), n_bytes, _ITEM_BYTES[tensor.dtype])

    def _cut(self, pool: Bytes, n_bytes: int, item_bytes: int) -> Iterator[memoryview]:
        at = int(self._random.integers(0, len(pool) // item_bytes)) * item_bytes
        while n_bytes:
            piece = pool[at : at + n_bytes]
            yield memoryview(piece)  # type: ignore[arg-type]
            n_bytes -= len(piece)
            at = 0

    def _pool(self, tensor: ExpectedTensor) -> Bytes:
        match tensor.dtype:
            case "I8" | "F8_E4M3":
                return self._pools[tensor.dtype]
            case "F8_E8M0":
                middle = _middle_scale(tensor)
                if middle not in self._pools:
                    self._pools[middle] = self._random.integers(
                        middle - 1, middle + 2, _POOL_BYTES // 8, dtype=np.uint8
                    )
                return self._pools[middle]
            case _:
                key = (tensor.dtype, *_spread(tensor))
                if key not in self._pools:
                    self._pools[key] = self._floats(*key)
                return self._pools[key]

    def _floats(self, dtype: str, mean: float, std: float) -> Bytes:
        values = self._normal * np.float32(std) + np.float32(mean)
        # The upper half of a float32 is its bf16, rounded towards zero.
        stored = values if dtype == "F32" else np.ascontiguousarray(values.view("<u2")[1::2])
        return stored.view(np.uint8)


_ITEM_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
"""Bytes of one element, by the dtypes a slice has."""


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype a slice has."""
    return _ITEM_BYTES[dtype]


def _middle_scale(tensor: ExpectedTensor) -> int:
    """The e8m0 code that brings a product with the matrix to the size of what went in, within a factor of two."""
    rms = _RMS_FP4 if tensor.group is Group.EXPERTS else _RMS_FP8
    return _ONE + round(math.log2(1 / (rms * math.sqrt(tensor.shape[1] * FP4_COLUMNS))))


def _spread(tensor: ExpectedTensor) -> tuple[float, float]:
    """Mean and deviation of an unquantised tensor: as near to a trained one as makes the forward's numbers ordinary."""
    role = tensor.role
    if "norm" in role or role in ("engram.q_weight", "engram.k_weight"):
        return 1.0, 0.1
    if role.endswith("_scale"):
        return 0.5, 0.05
    if role.endswith(("_base", "gate.bias", "gate.bias_vl", "attn_sink")) or role == "embed.weight":
        return 0.0, 1.0 if role == "embed.weight" else 0.1
    return 0.0, tensor.shape[-1] ** -0.5
