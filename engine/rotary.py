"""Rotary position encoding of the tail of a vector, in adjacent pairs.

Angles are float32 products of position and frequency, as in the released runtime: at positions near a million a
double-precision angle differs visibly.
"""

import math
import threading

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.numerics import Numerics


def frequencies(config: ModelConfig, *, compressing: bool) -> Tensor:
    """Rotation frequencies of a layer: [rd/2] float32, radians per position.

    Layers that read compressed positions use `compress_rope_theta` with the YaRN correction whenever `original_seq_len`
    is positive, whatever the length of the sequence; window layers and draft stages use plain `rope_theta`.
    Source: YaRN (arXiv 2309.00071), without its attention temperature.
    """
    width = config.rope_head_dim
    base = float(config.compress_rope_theta if compressing else config.rope_theta)
    freq = 1.0 / torch.pow(base, torch.arange(0, width, 2, dtype=torch.float32) / width)  # [rd/2]
    if not compressing or config.original_seq_len <= 0:
        return freq

    def dim_for(turns: float) -> float:
        return width * math.log(config.original_seq_len / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dim_for(config.beta_fast)), 0)
    high = min(math.ceil(dim_for(config.beta_slow)), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return freq / config.rope_factor * ramp + freq * (1 - ramp)


def rotate(x: Tensor, positions: Tensor, freq: Tensor, *, back: bool = False) -> Tensor:
    """Rotate the last `2 * len(freq)` values of each vector by its position.

    Shapes: x [T, ..., W] float32; positions [T] int64; freq [rd/2]; result like x. `back` applies the conjugate.
    """
    width = 2 * freq.shape[0]
    cos, sin, minus_sin = _turns.of(positions, freq)
    if back:
        sin = minus_sin
    shape = (x.shape[0], *([1] * (x.dim() - 2)), width // 2)
    cos, sin = cos.view(shape), sin.view(shape)
    pairs = x[..., -width:].reshape(*x.shape[:-1], width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    tail = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-width], tail), dim=-1)


def rotated(x: Tensor, positions: Tensor, freq: Tensor, numerics: Numerics, *, back: bool = False) -> Tensor:
    """`rotate` as a value of the forward. The caller gives x up: the native kernels turn it in place."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.rotate(x.contiguous(), positions, freq, back=back)
    return numerics.value(rotate(x, positions, freq, back=back))


class _Turns(threading.local):
    """The angles of a forward, whose layers all turn by the same positions: of each table the last that were asked for.

    They are known by their tensors, which nobody writes to. Of a decode step three of four rotations take them from
    here.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]] = {}

    def of(self, positions: Tensor, freq: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """cos, sin and -sin [T, rd/2] of every position's angles."""
        last = self._last.get(id(freq))
        if last is not None and last[0] is positions and last[1] is freq:
            return last[2]
        angle = positions.to(torch.float32).unsqueeze(1) * freq  # [T, rd/2]
        sin = torch.sin(angle)
        turns = (torch.cos(angle), sin, -sin)
        if len(self._last) >= _MOST_TABLES:
            self._last.clear()
        self._last[id(freq)] = (positions, freq, turns)
        return turns


_MOST_TABLES = 4
_turns = _Turns()
