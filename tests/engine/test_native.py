"""The native kernels against `engine/formats.py` in double precision, and against themselves in other cuts."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.errors import KernelError
from engine.formats import E4M3, expand_fp4, expand_fp8
from engine.kernels import Matrix
from engine.kernels.native_path import INSTRUCTION_SETS, NativeKernels, library_file

pytestmark = pytest.mark.skipif(library_file() is None, reason="the native kernels were not built: no C++ compiler")

LIMIT = 1e-6
"""Largest error as a share of sum |x| |w|: float32 sums in any order stay below this at these widths."""


def runs_here(name: str) -> bool:
    """Whether this processor has the instruction set."""
    try:
        NativeKernels.load(name)
    except KernelError:
        return False
    return True


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The library with each instruction set that runs here, on one thread."""
    if not runs_here(request.param):
        pytest.skip(f"the processor has no {request.param}")
    loaded = NativeKernels.load(request.param)
    loaded.set_threads(1)
    yield loaded
    NativeKernels.load("native").set_threads(torch.get_num_threads())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(kind: str, n: int, k: int, seed: int = 0, *, shift: int = 0) -> tuple[Matrix, Tensor]:
    """A random matrix, and what it stands for. `shift` moves its bytes off any alignment."""
    generator = seeded(seed)

    def stored(*shape: int, low: int = 0, high: int = 256) -> Tensor:
        size = shape[0] * shape[1]
        return torch.randint(low, high, (size + shift,), generator=generator, dtype=torch.uint8)[shift:].view(shape)

    if kind == "fp8":
        weight = stored(n, k)
        weight[(weight & 0x7F) == 0x7F] = 0
        scale = stored(-(-n // 32), -(-k // 32), low=118, high=130)
        return Matrix(kind="fp8", weight=weight, scale=scale), expand_fp8(weight, scale)
    if kind == "fp4":
        weight, scale = stored(n, k // 2), stored(n, k // 32, low=118, high=130)
        return Matrix(kind="fp4", weight=weight, scale=scale), expand_fp4(weight, scale)
    weight = torch.randn(n, k, generator=generator).to(torch.bfloat16 if kind == "bf16" else torch.float32)
    return Matrix(kind="plain", weight=weight, scale=None), weight.float()


def close(got: Tensor, x: Tensor, plain: Tensor) -> None:
    want = x.double() @ plain.double().t()
    scale = x.double().abs() @ plain.double().abs().t()
    assert ((got.double() - want).abs() <= LIMIT * scale).all()


@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16", "f32"])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 32), (3, 64), (31, 96), (33, 160), (70, 544), (130, 1056), (37, 1), (5, 7), (40, 200), (66, 1001)]
)
def test_a_product_of_any_size(native: NativeKernels, kind: str, n: int, k: int) -> None:
    if kind == "fp4":
        k = -(-k // 32) * 32
    matrix, plain = make(kind, n, k, seed=n)
    x = torch.randn(7, k, generator=seeded(1))
    close(native.matmul(x, matrix), x, plain)
    close(native.matmul(x[:1], matrix), x[:1], plain)


@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16", "f32"])
def test_a_row_does_not_depend_on_its_company_or_the_threads(native: NativeKernels, kind: str) -> None:
    n, k = 333, 1120
    matrix, _ = make(kind, n, k, seed=3)
    x = torch.randn(70, k, generator=seeded(4))
    alone = torch.cat([native.matmul(x[i : i + 1], matrix) for i in range(70)])
    for threads in (1, 2, 3):
        native.set_threads(threads)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 67, 70):
            assert torch.equal(native.matmul(x[:rows], matrix), alone[:rows])
        assert torch.equal(native.matmul(x[17:], matrix), alone[17:])


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("shift", [1, 2, 3, 5, 31])
def test_bytes_need_no_alignment(native: NativeKernels, kind: str, shift: int) -> None:
    matrix, plain = make(kind, 45, 224, shift=shift)
    x = torch.randn(4 * 224 + shift, generator=seeded(1))[shift:].view(4, 224)
    close(native.matmul(x, matrix), x, plain)


@pytest.mark.parametrize("rows", [1, 5])
def test_every_fp8_code(native: NativeKernels, rows: int) -> None:
    """Row c of the matrix holds code c once; times 1 it is the code's value, to the last bit, and NaN stays NaN."""
    weight = torch.zeros(256, 40, dtype=torch.uint8)
    column = torch.arange(256) * 7 % 40
    weight[torch.arange(256), column] = torch.arange(256, dtype=torch.uint8)
    matrix = Matrix(kind="fp8", weight=weight, scale=torch.full((8, 2), 127, dtype=torch.uint8))
    got = native.matmul(torch.ones(rows, 40), matrix)
    assert torch.equal(got.nan_to_num(-1e9), E4M3.nan_to_num(-1e9).expand(rows, 256))


@pytest.mark.parametrize("rows", [1, 5])
def test_every_fp4_code(native: NativeKernels, rows: int) -> None:
    """Every byte at every place of a row, found again by a one in one column."""
    packed = (torch.arange(256).unsqueeze(1) + 37 * torch.arange(48)).to(torch.uint8)
    scale = torch.full((256, 3), 127, dtype=torch.uint8)
    matrix = Matrix(kind="fp4", weight=packed, scale=scale)
    got = native.matmul(torch.eye(96), matrix)
    assert torch.equal(got, expand_fp4(packed, scale).t())
    assert torch.equal(native.matmul(torch.eye(96)[:rows], matrix), got[:rows])


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("byte", [0, 1, 100, 200])
def test_scale_bytes(native: NativeKernels, kind: str, rows: int, byte: int) -> None:
    """Byte 0 is 2**-127, a float32 below the smallest normal one."""
    matrix, _ = make(kind, 50, 192)
    assert matrix.scale is not None
    matrix.scale.fill_(byte)
    expand = expand_fp8 if kind == "fp8" else expand_fp4
    x = torch.randn(rows, 192, generator=seeded(5)) * 8
    close(native.matmul(x, matrix), x, expand(matrix.weight, matrix.scale))
    assert torch.equal(native.matmul(x[:1], matrix), native.matmul(x, matrix)[:1])


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_nan_scale_reaches_the_rows_of_its_block_and_no_other(native: NativeKernels, kind: str, rows: int) -> None:
    matrix, _ = make(kind, 70, 160)
    assert matrix.scale is not None
    matrix.scale[1, 2] = 255
    nan = native.matmul(torch.ones(rows, 160), matrix).isnan()
    want = torch.zeros(70, dtype=torch.bool)
    want[slice(32, 64) if kind == "fp8" else slice(1, 2)] = True
    assert torch.equal(nan, want.expand(rows, 70))


@pytest.mark.parametrize("rank", [32, 20, 48, 96])
@pytest.mark.parametrize("rows", [1, 4])
def test_groups_meet_their_own_rows(native: NativeKernels, rank: int, rows: int) -> None:
    groups, width = 3, 96
    matrix, plain = make("fp8", groups * rank, width)
    x = torch.randn(rows, groups * width, generator=seeded(2))
    for threads in (1, 2):
        native.set_threads(threads)
        got = native.matmul(x, matrix, groups)
        for g in range(groups):
            rows_of = slice(g * rank, (g + 1) * rank)
            close(got[:, rows_of], x[:, g * width : (g + 1) * width], plain[rows_of])


def test_the_strides_of_a_cut_are_followed(native: NativeKernels) -> None:
    matrix, plain = make("fp8", 20, 64)
    wide = torch.randn(5, 200, generator=seeded(1))
    close(native.matmul(wide[:, 30:94], matrix), wide[:, 30:94], plain)
    assert native.matmul(wide[:0, :64], matrix).shape == (0, 20)


@pytest.mark.parametrize(
    ("x", "matrix"),
    [
        (torch.zeros(2, 64), Matrix(kind="fp8", weight=torch.zeros(8, 32, dtype=torch.uint8), scale=None)),
        (torch.zeros(2, 64), make("fp8", 8, 96)[0]),
        (torch.zeros(64), make("fp8", 8, 64)[0]),
        (torch.zeros(2, 64, dtype=torch.float64), make("fp8", 8, 64)[0]),
        (torch.zeros(64, 2).t(), make("fp8", 8, 64)[0]),
        (torch.zeros(1, 64).expand(3, 64), make("fp8", 8, 64)[0]),
        (torch.zeros(2, 64), Matrix(kind="plain", weight=torch.zeros(8, 64, dtype=torch.float16), scale=None)),
        (torch.zeros(2, 64), Matrix(kind="plain", weight=torch.zeros(64, 8).t(), scale=None)),
        (
            torch.zeros(2, 40),
            Matrix(
                kind="fp4",
                weight=torch.zeros(8, 20, dtype=torch.uint8),
                scale=torch.zeros(8, 1, dtype=torch.uint8),
            ),
        ),
        (
            torch.zeros(2, 64),
            Matrix(
                kind="fp8",
                weight=torch.zeros(40, 64, dtype=torch.uint8),
                scale=torch.zeros(1, 2, dtype=torch.uint8),
            ),
        ),
        (
            torch.zeros(2, 64),
            Matrix(
                kind="fp4",
                weight=torch.zeros(8, 32, dtype=torch.uint8),
                scale=torch.zeros(2, 8, dtype=torch.uint8).t(),
            ),
        ),
    ],
)
def test_what_the_library_could_not_read_is_refused(x: Tensor, matrix: Matrix) -> None:
    with pytest.raises(KernelError):
        NativeKernels.load().matmul(x, matrix)


def test_uneven_groups_are_refused() -> None:
    with pytest.raises(KernelError, match="3 groups"):
        NativeKernels.load().matmul(torch.zeros(1, 96), make("fp8", 64, 32)[0], groups=3)


def test_the_variable_picks_the_path_and_says_why_not() -> None:
    missing = next(name for name in INSTRUCTION_SETS if not runs_here(name))
    code = (
        "import os, sys\n"
        "from engine import kernels\n"
        "for os.environ[kernels.VARIABLE] in sys.argv[1:]:\n"
        "    kernels.native.cache_clear()\n"
        "    try:\n"
        "        print(kernels.path())\n"
        "    except kernels.KernelError as error:\n"
        "        print(error, error.hint)\n"
    )  # in a process of its own, as the choice is a whole process's
    choices = ("torch", "portable", "", "fast", missing)
    said = subprocess.run([sys.executable, "-c", code, *choices], capture_output=True, text=True, check=True).stdout
    of = dict(zip(choices, said.splitlines(), strict=True))
    assert of["torch"] == "torch (ARTESIAN_KERNELS asks for it)"
    assert of["portable"] == "native portable"
    assert of[""].startswith("native ")
    assert "ARTESIAN_KERNELS is 'fast'" in of["fast"]
    assert f"has no {missing}" in of[missing]


def test_torch_keeps_one_thread_beside_the_native_ones() -> None:
    before = torch.get_num_threads()
    try:
        kernels.set_threads(2)
        assert torch.get_num_threads() == (2 if kernels.native() is None else 1)
    finally:
        kernels.set_threads(before)
        torch.set_num_threads(before)


def experts_of(n: int, width: int, inner: int) -> list[tuple[Matrix, Matrix, Matrix]]:
    return [
        (make("fp4", inner, width, 3 * i)[0], make("fp4", inner, width, 3 * i + 1)[0], make("fp4", width, inner, i)[0])
        for i in range(n)
    ]


@pytest.mark.parametrize("limit", [0.0, 2.0])
@pytest.mark.parametrize("rows", [1, 5])
def test_routed_experts_are_their_products(native: NativeKernels, rows: int, limit: float) -> None:
    width, inner, used = 160, 96, 3
    experts = experts_of(4, width, inner)
    x = torch.randn(rows, width, generator=seeded(1))
    weights = torch.rand(rows, used, generator=seeded(2))
    chosen = torch.stack([torch.randperm(4, generator=seeded(i))[:used] for i in range(rows)])
    uses = [(chosen.flatten() == e).nonzero().flatten().tolist() for e in range(4)]
    out = torch.full((rows, used, width), torch.nan)
    native.routed_experts(x, experts, uses, weights, limit, out)
    for place, e in enumerate(chosen.flatten().tolist()):
        row, rank = divmod(place, used)
        w1, w3, w2 = (expand_fp4(m.weight, m.scale).double() for m in experts[e] if m.scale is not None)
        gate, up = w1 @ x[row].double(), w3 @ x[row].double()
        if limit:
            gate, up = gate.clamp_max(limit), up.clamp(-limit, limit)
        hidden = torch.nn.functional.silu(gate) * up * weights[row, rank].double()
        assert ((out[row, rank] - w2 @ hidden).abs() <= LIMIT * (w2.abs() @ hidden.abs()).max() * 4).all()
    native.set_threads(2)
    for row in range(rows):
        alone = torch.full((1, used, width), torch.nan)
        of_row = [[p - row * used for p in some if p // used == row] for some in uses]
        native.routed_experts(x[row : row + 1], experts, of_row, weights[row : row + 1], limit, alone)
        assert torch.equal(alone[0], out[row])


def test_more_uses_than_fit_together_are_the_same_to_the_last_bit(native: NativeKernels) -> None:
    """1,024 are gone through together: here there are 2,100 of one expert and 75 of others before and behind it."""
    width, inner, rows = 64, 32, 2_175
    experts = experts_of(4, width, inner)
    x, weights = torch.randn(rows, width, generator=seeded(1)), torch.rand(rows, 1, generator=seeded(2))
    uses = [[*range(50)], [], [*range(50, 2_150)], [*range(2_150, rows)]]
    out = torch.full((rows, 1, width), torch.nan)
    native.routed_experts(x, experts, uses, weights, 2.0, out)
    for expert, some in enumerate(uses):
        for row in some[:: max(1, len(some) // 25)]:
            alone = torch.full((1, 1, width), torch.nan)
            only = [[0] if e == expert else [] for e in range(4)]
            native.routed_experts(x[row : row + 1], experts, only, weights[row : row + 1], 2.0, alone)
            assert torch.equal(alone[0], out[row])


def test_routed_experts_refuse_what_does_not_fit(native: NativeKernels) -> None:
    experts, x, weights, out = experts_of(1, 64, 32), torch.zeros(2, 64), torch.zeros(2, 3), torch.zeros(2, 3, 64)
    with pytest.raises(KernelError, match="a use lies outside"):
        native.routed_experts(x, experts, [[6]], weights, 0.0, out)
    with pytest.raises(KernelError, match="lists of uses"):
        native.routed_experts(x, experts, [], weights, 0.0, out)
    with pytest.raises(KernelError, match="an expert's matrix"):
        native.routed_experts(x, [(experts[0][2], *experts[0][1:])], [[0]], weights, 0.0, out)
    with pytest.raises(KernelError, match="not contiguous float32"):
        native.routed_experts(x, experts, [[0]], weights, 0.0, out.transpose(0, 1))


@pytest.mark.parametrize(("heads", "width"), [(4, 64), (3, 40), (17, 24)])
@pytest.mark.parametrize("before", [0, 2, 20])
def test_attention_is_a_softmax_over_own_keys(native: NativeKernels, heads: int, width: int, before: int) -> None:
    rows, size, generator = 6, 8, seeded(heads)
    query = torch.randn(rows, heads, width, generator=generator)
    window = torch.randn(before + rows, width, generator=generator)
    latents = torch.randn(11, width, generator=generator)
    selection = torch.tensor([[0, 5, -1], [-1, -1, -1], [1, 2, 3], [10, -1, -1], [0, 9, 10], [4, -1, -1]])
    sink = torch.randn(heads, generator=generator)
    got = native.attend(query, window, size, latents, selection, sink)
    for t in range(rows):
        newest = before + t
        chosen = selection[t][selection[t] >= 0]
        keys = torch.cat((window[max(0, newest - size + 1) : newest + 1], latents[chosen]))
        scores = query[t].double() @ keys.double().t() * width**-0.5
        weight = torch.softmax(torch.cat((scores, sink.double().unsqueeze(1)), 1), 1)[:, :-1]
        torch.testing.assert_close(got[t].double(), weight @ keys.double(), rtol=0, atol=2e-6)
    alone = native.attend(query[-1:], window, size, latents, selection[-1:], sink)
    assert torch.equal(alone[0], got[-1])
    none = native.attend(query, window, size, None, None, sink)
    assert torch.equal(none[1], got[1])


def test_attention_refuses_a_latent_there_is_not(native: NativeKernels) -> None:
    query, keys = torch.zeros(1, 2, 8), torch.zeros(3, 8)
    with pytest.raises(KernelError, match="names a latent"):
        native.attend(query, keys, 4, keys, torch.tensor([[0, 3]]), torch.zeros(2))
    with pytest.raises(KernelError, match="fewer than rows"):
        native.attend(torch.zeros(4, 2, 8), keys, 4, None, None, torch.zeros(2))


@pytest.mark.parametrize(("heads", "width", "n"), [(8, 32, 5), (3, 20, 700), (64, 128, 513)])
def test_index_scores(native: NativeKernels, heads: int, width: int, n: int) -> None:
    query = torch.randn(3, heads, width, generator=seeded(1))
    weight = torch.randn(3, heads, generator=seeded(2))
    keys = torch.randn(n, width, generator=seeded(3))
    got = native.index_scores(query, weight, keys)
    want = (torch.relu(query.double() @ keys.double().t()) * weight.double().unsqueeze(-1)).sum(1)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * heads * width**0.5)
    native.set_threads(2)
    assert torch.equal(native.index_scores(query[1:2], weight[1:2], keys)[0], got[1])
    assert torch.equal(native.index_scores(query, weight, keys[: n // 2]), got[:, : n // 2])
