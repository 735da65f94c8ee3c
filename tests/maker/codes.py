"""Numbers to stored codes: e4m3, e2m1, e8m0, bf16. The inverse of what an engine does, for tests only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def _encode(x: Floats, mantissa_bits: int, least_exponent: int, largest_code: int) -> NDArray[Any]:
    """Codes of |x| in a small float format, nearest even, clamped. Codes count up with values, so rounding carries."""
    size = np.abs(x)
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, least_exponent), least_exponent)
    steps = np.rint(np.ldexp(size, mantissa_bits - exponent)).astype(np.int64)
    return np.asarray(np.minimum(steps + ((exponent - least_exponent) << mantissa_bits), largest_code))


def encode_e4m3(x: Floats) -> Bytes:
    """e4m3 codes of x, nearest even, clamped to 448. Shape unchanged."""
    return (_encode(x, 3, -6, 0x7E) | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def encode_e2m1(x: Floats) -> Bytes:
    """e2m1 codes of x, nearest even, clamped to 6, one per byte. Shape unchanged."""
    return (_encode(x, 1, 0, 7) | np.where(np.signbit(x), 8, 0)).astype(np.uint8)


def encode_bf16(x: Floats) -> NDArray[np.uint16]:
    """bf16 bit patterns of x, nearest even. Shape unchanged; x must be finite."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _exponents(largest: Floats, limit: float) -> NDArray[Any]:
    """e8m0 codes of the smallest powers of two that bring `largest` down to `limit`."""
    fraction, exponent = np.frexp(np.maximum(largest, limit * 2.0**-120) / limit)
    return np.asarray(exponent - (fraction == 0.5) + 127)


def encode_fp8(x: Floats) -> tuple[Bytes, Bytes]:
    """Codes [N, K] and e8m0 scales [ceil(N/32), ceil(K/32)] of a dense matrix; last blocks may be short."""
    n, k = x.shape
    padded = np.zeros((-(-n // 32) * 32, -(-k // 32) * 32))
    padded[:n, :k] = np.abs(x)
    scale = _exponents(padded.reshape(padded.shape[0] // 32, 32, -1, 32).max(axis=(1, 3)), 448.0)
    wide = np.repeat(np.repeat(2.0 ** (scale - 127.0), 32, axis=0)[:n], 32, axis=1)[:, :k]
    return encode_e4m3(x / wide), scale.astype(np.uint8)


def encode_rows(x: Floats) -> tuple[Bytes, Bytes]:
    """Codes [R, W] and e8m0 scales [R, W/32] of table rows; W must be a multiple of 32."""
    scale = _exponents(np.abs(x).reshape(len(x), -1, 32).max(axis=2), 448.0)
    return encode_e4m3(x / np.repeat(2.0 ** (scale - 127.0), 32, axis=1)), scale.astype(np.uint8)


def encode_fp4(x: Floats) -> tuple[Bytes, Bytes]:
    """Packed pairs [N, K/2], low nibble the even column, and e8m0 scales [N, K/32]; K must be a multiple of 32."""
    scale = _exponents(np.abs(x).reshape(len(x), -1, 32).max(axis=2), 6.0)
    codes = encode_e2m1(x / np.repeat(2.0 ** (scale - 127.0), 32, axis=1))
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), scale.astype(np.uint8)
