"""Formats against the standards' own tables, worked out by hand, and against the fixture's dequantised samples."""

import json
import math

import pytest
import torch

from engine.errors import FormatError
from engine.formats import (
    E2M1,
    E4M3,
    E8M0,
    check_codes,
    expand_fp4,
    expand_fp8,
    expand_rows,
    expand_scale,
    round_bf16,
    round_fp4,
    round_fp4_e4m3,
    round_fp8,
)  # fmt: skip
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY


def e4m3(code: int) -> float:
    """OCP 8-bit Floating Point 1.0, table 2, from the bits and in Python numbers."""
    sign, exponent, mantissa = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def test_all_256_fp8_codes_have_the_value_of_the_standard() -> None:
    for code, value in enumerate(E4M3.tolist()):
        want = e4m3(code)
        assert value == want or (math.isnan(value) and math.isnan(want)), code


def test_all_fp8_codes_agree_with_torch() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(E4M3.nan_to_num(nan=999.0), theirs.nan_to_num(nan=999.0))


def test_all_16_fp4_codes_have_the_value_of_the_standard() -> None:
    assert E2M1.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_a_scale_byte_is_an_exponent_and_zero_is_not_zero() -> None:
    values = expand_scale(torch.tensor([0, 1, 127, 128, 254, 255], dtype=torch.uint8)).tolist()
    assert values[:5] == [2.0**-127, 2.0**-126, 1.0, 2.0, 2.0**127] and math.isnan(values[5])
    assert all(E8M0[b].item() == 2.0 ** (b - 127) for b in range(255))


@pytest.mark.parametrize(("n", "k"), [(32, 32), (33, 31), (1, 1), (65, 100)])
def test_fp8_blocks_are_32_by_32_also_where_the_last_is_short(n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(n * 1000 + k)
    weight = torch.randint(0, 0x7F, (n, k), generator=generator, dtype=torch.uint8)
    scale = torch.randint(120, 135, (-(-n // 32), -(-k // 32)), generator=generator, dtype=torch.uint8)
    got = expand_fp8(weight, scale)
    for i in (0, n // 2, n - 1):
        for j in (0, k // 2, k - 1):
            assert got[i, j].item() == e4m3(int(weight[i, j])) * 2.0 ** (int(scale[i // 32, j // 32]) - 127)


def test_fp4_holds_the_even_column_in_the_low_nibble_with_a_scale_per_row() -> None:
    packed = torch.zeros(2, 32, dtype=torch.uint8)
    packed[0, 0] = 0xF2  # columns 0 and 1: 1.0 and -6.0
    packed[1, 31] = 0x1D  # columns 62 and 63: -3.0 and 0.5
    scale = torch.tensor([[127, 127], [127, 130]], dtype=torch.uint8)
    got = expand_fp4(packed, scale)
    assert got.shape == (2, 64)
    assert got[0, :2].tolist() == [1.0, -6.0] and got[1, 62:].tolist() == [-24.0, 4.0]


def test_engram_rows_have_a_scale_per_row_and_32_columns() -> None:
    weight = torch.full((2, 40), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.tensor([[127, 128], [126, 129]], dtype=torch.uint8)
    got = expand_rows(weight, scale)
    assert (
        got[0, 31].item() == 1.0 and got[0, 32].item() == 2.0 and got[1, 0].item() == 0.5 and got[1, 39].item() == 4.0
    )


def test_misshapen_scales_are_refused() -> None:
    with pytest.raises(FormatError, match=r"fp8 weight of shape \[33, 32\]"):
        expand_fp8(torch.zeros(33, 32, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))
    with pytest.raises(FormatError, match="fp4 weight"):
        expand_fp4(torch.zeros(2, 24, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8))


def test_dequantised_samples_of_the_fixture() -> None:
    samples = json.loads((TINY / "golden" / "tensor_samples.json").read_text())
    seen = set()
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        for sample in samples:
            name, entry = sample["name"], checkpoint.tensors[sample["name"]]
            raw = torch.frombuffer(checkpoint.read(name), dtype=torch.uint8)
            if entry.dtype in ("F8_E4M3", "I8"):
                scale_entry = checkpoint.tensors[name.replace(".weight", ".scale")]
                scale = torch.frombuffer(checkpoint.read(scale_entry.name), dtype=torch.uint8).view(scale_entry.shape)
                if ".engram.embed." in name:
                    values = expand_rows(raw.view(entry.shape), scale)
                elif entry.dtype == "I8":
                    values = expand_fp4(raw.view(entry.shape), scale)
                else:
                    values = expand_fp8(raw.view(entry.shape), scale)
            else:
                values = raw.view({"BF16": torch.bfloat16, "F32": torch.float32}[entry.dtype]).view(entry.shape).float()
            seen.add(entry.dtype)
            assert list(values.shape) == sample["shape"], name
            assert values.double().sum().item() == pytest.approx(sample["sum"], rel=1e-6, abs=1e-4), name
            assert values.double().square().sum().item() == pytest.approx(sample["sum_of_squares"], rel=1e-6), name
            for row, want in sample["rows"].items():
                assert values[int(row)][: len(want["first"])].tolist() == want["first"], (name, row)
                assert values[int(row)][-len(want["last"]) :].tolist() == want["last"], (name, row)
    assert {"F8_E4M3", "I8"} <= seen


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (5.01, 6), (0.26, 0.5), (-2.5, -2)],
)
def test_fp4_rounding_breaks_ties_to_the_even_code(value: float, rounded: float) -> None:
    x = torch.zeros(32)
    x[0], x[1] = 6.0, value  # amax 6 makes the scale 1
    assert round_fp4(x)[1].item() == rounded
    assert round_fp4_e4m3(x[:16])[1].item() == rounded


def test_fp8_rounding_takes_the_smallest_power_of_two_scale_that_fits() -> None:
    x = torch.zeros(64)
    x[0], x[1], x[2] = 448.0, 2.0**-9, 17.0  # scale 1: the smallest subnormal stays; 17 ties to the even 16
    x[32], x[33] = 449.0, 2.0**-9  # scale 2: 224.5 -> 224; half the smallest subnormal ties to zero
    got = round_fp8(x)
    assert got[:3].tolist() == [448.0, 2.0**-9, 16.0]
    assert got[32:34].tolist() == [448.0, 0.0]


def test_rounding_twice_changes_nothing() -> None:
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(3)) * 10
    for rounding in (round_bf16, round_fp8, round_fp4, round_fp4_e4m3):
        once = rounding(x)
        assert torch.equal(rounding(once), once), rounding.__name__
        assert not torch.equal(once, x)


def test_zero_blocks_stay_zero_with_a_finite_scale() -> None:
    for rounding in (round_fp8, round_fp4, round_fp4_e4m3):
        assert torch.equal(rounding(torch.zeros(32)), torch.zeros(32))


def test_widths_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(FormatError, match="width 33"):
        round_fp8(torch.zeros(33))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_codes_are_refused_by_tensor_and_position(code: int) -> None:
    weight = torch.zeros(40, 50, dtype=torch.uint8)
    scale = torch.full((2, 2), 127, dtype=torch.uint8)
    check_codes("layers.3.attn.wkv", weight, scale, fp8=True)
    weight[37, 4] = code
    with pytest.raises(FormatError, match=rf"layers\.3\.attn\.wkv\.weight\[37, 4\] holds byte 0x{code:02X}"):
        check_codes("layers.3.attn.wkv", weight, scale, fp8=True)
    check_codes("expert", weight, scale, fp8=False)  # fp4 has no NaN
    scale[1, 0] = 255
    with pytest.raises(FormatError, match=r"expert\.scale\[1, 0\] holds byte 0xFF"):
        check_codes("expert", weight, scale, fp8=False)


def test_scale_zero_is_legal() -> None:
    check_codes("x", torch.zeros(1, 32, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), fp8=True)
