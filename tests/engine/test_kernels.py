"""Matrix products on packed weights against products of the plainly expanded ones."""

import pytest
import torch

from engine.formats import expand_fp4, expand_fp8
from engine.kernels import Matrix, grouped_matmul, matmul, torch_path


def matrices(seed: int, n: int, k: int) -> tuple[Matrix, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, (n, k), generator=generator, dtype=torch.uint8)
    weight[(weight & 0x7F) == 0x7F] = 0
    scale = torch.randint(118, 130, (-(-n // 32), -(-k // 32)), generator=generator, dtype=torch.uint8)
    return Matrix(kind="fp8", weight=weight, scale=scale), expand_fp8(weight, scale)


@pytest.mark.parametrize(("n", "k"), [(1, 32), (33, 40), (100, 96), (300, 64)])
@pytest.mark.parametrize("panel_bytes", [1, 40_000, 8 << 20])
def test_fp8_product_in_any_panel_size(monkeypatch: pytest.MonkeyPatch, n: int, k: int, panel_bytes: int) -> None:
    monkeypatch.setattr(torch_path, "_PANEL_BYTES", panel_bytes)
    matrix, plain = matrices(n, n, k)
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(1))
    want = x.double() @ plain.double().t()
    got = matmul(x, matrix)
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("panel_bytes", [1, 8 << 20])
def test_fp4_product(monkeypatch: pytest.MonkeyPatch, panel_bytes: int) -> None:
    monkeypatch.setattr(torch_path, "_PANEL_BYTES", panel_bytes)
    generator = torch.Generator().manual_seed(9)
    packed = torch.randint(0, 256, (70, 48), generator=generator, dtype=torch.uint8)
    scale = torch.randint(118, 130, (70, 3), generator=generator, dtype=torch.uint8)
    x = torch.randn(4, 96, generator=generator)
    want = x.double() @ expand_fp4(packed, scale).double().t()
    got = matmul(x, Matrix(kind="fp4", weight=packed, scale=scale))
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_unquantised_product(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(77, 24, generator=generator).to(dtype)
    x = torch.randn(3, 24, generator=generator)
    want = x.double() @ weight.double().t()
    got = matmul(x, Matrix(kind="plain", weight=weight, scale=None))
    assert (got.double() - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("rank", [32, 20, 48])
def test_groups_meet_their_own_rows_also_where_a_scale_block_spans_two(rank: int) -> None:
    groups, width = 3, 64
    matrix, plain = matrices(rank, groups * rank, width)
    x = torch.randn(2, groups * width, generator=torch.Generator().manual_seed(2))
    got = grouped_matmul(x, matrix, groups)
    for g in range(groups):
        want = x[:, g * width : (g + 1) * width].double() @ plain[g * rank : (g + 1) * rank].double().t()
        assert (got[:, g * rank : (g + 1) * rank].double() - want).abs().max() <= 1e-5 * want.abs().max()
