"""The kernel for cards, in Triton's interpreter, which needs no card.

Usage: TRITON_INTERPRET=1 python -m tests.engine.fused_check      (with Triton installed; silent when all is right)

What this cannot show is that a card computes the same.
"""

import torch
from torch import Tensor

from engine.formats import E4M3, E8M0, expand_fp4, expand_fp8
from engine.kernels import Matrix
from engine.kernels.fused import can_multiply, matmul_fused


def made_up(kind: str, n: int, k: int) -> tuple[Matrix, Tensor]:
    """A matrix of random codes, and what the slow decoding makes of it."""
    draw = torch.Generator().manual_seed(n * k)
    if kind == "plain":
        weight = torch.randn((n, k), generator=draw).to(torch.bfloat16)
        return Matrix(kind="plain", weight=weight, scale=None), weight.double()
    weight = torch.randint(0, 256, (n, k // 2 if kind == "fp4" else k), generator=draw, dtype=torch.uint8)
    shape = (n if kind == "fp4" else -(-n // 32), k // 32)
    scale = torch.randint(118, 133, shape, generator=draw, dtype=torch.uint8)
    if kind == "fp4":
        return Matrix(kind="fp4", weight=weight, scale=scale), expand_fp4(weight, scale).double()
    weight[(weight & 0x7F) == 0x7F] = 0
    return Matrix(kind="fp8", weight=weight, scale=scale), expand_fp8(weight, scale).double()


def check_products() -> None:
    """Whole tiles and parts of them, one row and more than one pass; a row alone has the same bits."""
    for kind in ("fp8", "fp4", "plain"):
        for n, k, rows in ((64, 128, 1), (70, 192, 9)):
            matrix, exact = made_up(kind, n, k)
            assert can_multiply(matrix)
            x = torch.randn((rows, k), generator=torch.Generator().manual_seed(1))
            got, want = matmul_fused(x, matrix), x.double() @ exact.t()
            assert float((got - want).abs().max()) < 1e-6 * float(want.abs().max()), (kind, n, k)
            alone = torch.cat([matmul_fused(x[row : row + 1], matrix) for row in range(rows)])
            assert torch.equal(alone, got), (kind, n, k)


def check_groups() -> None:
    """A group of columns meets its own rows."""
    matrix, exact = made_up("fp8", 64, 128)
    x = torch.randn((3, 256), generator=torch.Generator().manual_seed(2))
    want = torch.cat([x[:, :128].double() @ exact[:32].t(), x[:, 128:].double() @ exact[32:].t()], dim=1)
    assert float((matmul_fused(x, matrix, 2) - want).abs().max()) < 1e-6 * float(want.abs().max())
    assert not can_multiply(made_up("fp8", 96, 128)[0], 2)  # 48 rows of a group are no whole tiles


def check_codes() -> None:
    """Every fp8 code and some scales, the smallest and largest among them, are exactly their values."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    ones = torch.full((1, 2), 127, dtype=torch.uint8)
    weight = codes.view(4, 64).repeat(8, 1)
    got = matmul_fused(torch.eye(64), Matrix(kind="fp8", weight=weight, scale=ones)).t()
    assert torch.equal(got, E4M3[weight.int()])
    one = torch.full((32, 64), 0x38, dtype=torch.uint8)  # 1.0
    first = torch.eye(64)[:1]
    for byte in (0, 1, 100, 127, 254):
        scale = torch.full((1, 2), byte, dtype=torch.uint8)
        assert float(matmul_fused(first, Matrix(kind="fp8", weight=one, scale=scale))[0, 0]) == float(E8M0[byte])


if __name__ == "__main__":
    check_products()
    check_groups()
    check_codes()
