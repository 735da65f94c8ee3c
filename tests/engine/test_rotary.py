"""Rotation against complex multiplication; frequencies against the YaRN formula in Python numbers."""

import cmath
import math
from dataclasses import replace

import torch

from engine.config import ModelConfig
from engine.rotary import frequencies, rotate


def test_only_the_tail_turns_in_adjacent_pairs_by_position_times_frequency(tiny_config: ModelConfig) -> None:
    x = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 7, 1000])
    freq = frequencies(tiny_config, compressing=False)
    got = rotate(x, positions, freq)
    assert torch.equal(got[..., :8], x[..., :8])
    assert torch.equal(got[0], x[0])
    for t, p in enumerate(positions.tolist()):
        for i in range(16):
            turned = complex(*x[t, 1, 8 + 2 * i : 10 + 2 * i].tolist()) * cmath.exp(1j * p * freq[i].item())
            error = abs(complex(*got[t, 1, 8 + 2 * i : 10 + 2 * i].tolist()) - turned)
            assert error < 1e-6 * (p + 10), (p, i)  # a float32 angle is off by its own size times 2^-24


def test_rotating_back_undoes_it(tiny_config: ModelConfig) -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([0, 1, 99, 5000])
    freq = frequencies(tiny_config, compressing=True)
    assert (rotate(rotate(x, positions, freq), positions, freq, back=True) - x).abs().max() < 1e-5


def test_window_layers_use_the_plain_base(tiny_config: ModelConfig) -> None:
    want = [10000 ** (-2 * i / 32) for i in range(16)]
    assert torch.allclose(frequencies(tiny_config, compressing=False), torch.tensor(want), rtol=1e-6)


def test_compressing_layers_use_yarn_whatever_the_length(tiny_config: ModelConfig) -> None:
    config = replace(tiny_config, rope_head_dim=64, original_seq_len=65536, rope_factor=16.0)

    def dim_for(turns: float) -> float:
        return 64 * math.log(65536 / (turns * 2 * math.pi)) / (2 * math.log(160000))

    low, high = max(math.floor(dim_for(32)), 0), min(math.ceil(dim_for(1)), 63)
    for i, got in enumerate(frequencies(config, compressing=True).tolist()):
        ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
        plain = 160000 ** (-2 * i / 64)
        assert math.isclose(got, plain / 16 * ramp + plain * (1 - ramp), rel_tol=1e-5)
    plain_only = frequencies(replace(config, original_seq_len=0), compressing=True)
    assert torch.allclose(plain_only, torch.tensor([160000 ** (-2 * i / 64) for i in range(32)]), rtol=1e-6)


def test_angles_are_float32_products(tiny_config: ModelConfig) -> None:
    # At 999,983 a double-precision angle differs visibly; the released runtime multiplies in float32.
    position, freq = 999_983, frequencies(tiny_config, compressing=False)
    angle = torch.tensor(float(position), dtype=torch.float32) * freq[3]
    got = rotate(torch.tensor([[*[0.0] * 6, 1.0, 0.0, *[0.0] * 24]]), torch.tensor([position]), freq)
    assert got[0, 6].item() == torch.cos(angle).item() and got[0, 7].item() == torch.sin(angle).item()


def test_positions_and_tables_that_take_turns_are_not_mixed_up(tiny_config: ModelConfig) -> None:
    """Angles are kept between calls; every call must see those of its own positions and table."""
    tables = [frequencies(tiny_config, compressing=compressing) for compressing in (True, False)]
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    for first in (0, 5, 5, 900):
        positions = torch.tensor([first, first + 1])
        for freq in (*tables, *tables):
            angle = positions.to(torch.float32).unsqueeze(1) * freq
            turned = torch.view_as_real(torch.view_as_complex(x.view(2, 16, 2)) * torch.polar(torch.ones(2, 16), angle))
            assert torch.allclose(rotate(x, positions, freq), turned.flatten(1), atol=1e-5)
            back = rotate(rotate(x, positions, freq), positions, freq, back=True)
            assert torch.allclose(back, x, atol=1e-5)
