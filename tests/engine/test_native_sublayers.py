"""What lies between the products: native calls against the plain torch steps, and rows against themselves alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine import numerics
from engine.config import load_config
from engine.engram import engram
from engine.errors import KernelError
from engine.hyper import Mix, collapse, mix, rms_norm, update
from engine.indexer import choose
from engine.kernels import Matrix
from engine.kernels.native_path import INSTRUCTION_SETS, NativeKernels, library_file
from engine.moe import gated, route
from engine.numerics import EXACT
from engine.rotary import rotate
from engine.weights import EngramWeights, FfnWeights, MixWeights
from tests.engine.conftest import TINY

pytestmark = pytest.mark.skipif(library_file() is None, reason="the native kernels were not built: no C++ compiler")

ROWS, COPIES, WIDTH = 33, 4, 250
CONFIG = replace(load_config(TINY / "checkpoint").config, hc_mult=COPIES, dim=WIDTH, hc_sinkhorn_iters=20)
LIMIT = 2e-6
"""Of values about 1: some float32 roundings in another order, and another library's exp."""


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeKernels]:
    """The library with each instruction set that runs here, while the functions of the engine take the torch path."""
    try:
        loaded = NativeKernels.load(request.param)
    except KernelError:
        pytest.skip(f"the processor has no {request.param}")
    monkeypatch.setattr(numerics, "native", lambda: None)
    loaded.set_threads(1)
    yield loaded
    NativeKernels.load("native").set_threads(torch.get_num_threads())


def values(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_stand_alone(native: NativeKernels, call: Callable[[slice], Tensor], want: Tensor) -> None:
    """`call` with some of the rows gives these rows of `want`, which was made of all on one thread."""
    for threads in (1, 2):
        native.set_threads(threads)
        assert torch.equal(call(slice(None)), want)
        for some in (slice(0, 1), slice(0, 2), slice(3, 8), slice(20, 26), slice(32, 33)):
            assert torch.equal(call(some), want[some])


def test_norm(native: NativeKernels) -> None:
    x, weight = values(1, ROWS, 3, WIDTH), values(2, WIDTH)
    got = native.norm(x, weight, 1e-20)
    torch.testing.assert_close(got, rms_norm(x, weight, 1e-20), rtol=LIMIT, atol=LIMIT)
    rows_stand_alone(native, lambda rows: native.norm(x[rows], weight, 1e-20), got)


@pytest.mark.parametrize("back", [False, True])
def test_rotation(native: NativeKernels, back: bool) -> None:
    x, freq = values(1, ROWS, 5, 40), torch.rand(8, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(ROWS) * 31_000  # up to a million, where float32 angles are coarse
    got = native.rotate(x.clone(), positions, freq, back=back)
    torch.testing.assert_close(got, rotate(x, positions, freq, back=back), rtol=0, atol=4 * LIMIT)
    assert torch.equal(got[..., :24], x[..., :24])
    rows_stand_alone(native, lambda rows: native.rotate(x[rows].clone(), positions[rows], freq, back=back), got)


def mix_weights() -> MixWeights:
    n = (2 + COPIES) * COPIES
    return MixWeights(fn=values(3, n, COPIES * WIDTH) / 8, base=values(4, n), scale=values(5, 3))


def mixed(native: NativeKernels, h: Tensor, weights: MixWeights) -> tuple[Tensor, Tensor, Tensor]:
    return native.mix(h, weights.fn, weights.base, weights.scale, 1e-20, CONFIG.hc_eps, CONFIG.hc_sinkhorn_iters)


def test_mix(native: NativeKernels) -> None:
    h, weights = values(1, ROWS, COPIES, WIDTH), mix_weights()
    got, want = mixed(native, h, weights), mix(h, weights, CONFIG)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)  # logits of some tens before an exponential
    torch.testing.assert_close(got[2].sum(1), torch.ones(ROWS, COPIES), rtol=0, atol=1e-5)  # it ends on columns
    for part in range(3):
        rows_stand_alone(native, lambda rows, part=part: mixed(native, h[rows], weights)[part], got[part])


def test_collapse_and_update(native: NativeKernels) -> None:
    h, y, weight = values(1, ROWS, COPIES, WIDTH), values(2, ROWS, WIDTH), values(3, WIDTH)
    pre, post, comb = values(4, ROWS, COPIES), values(5, ROWS, COPIES), values(6, ROWS, COPIES, COPIES)
    plain = native.collapse(h, pre, None, 0.0)
    torch.testing.assert_close(plain, collapse(h, pre, EXACT), rtol=LIMIT, atol=4 * LIMIT)
    got = native.collapse(h, pre, weight, 1e-20)
    torch.testing.assert_close(got, rms_norm(plain, weight, 1e-20), rtol=LIMIT, atol=LIMIT)
    rows_stand_alone(native, lambda rows: native.collapse(h[rows], pre[rows], weight, 1e-20), got)
    got = native.update(h, y, post, comb)
    torch.testing.assert_close(got, update(h, y, Mix(pre, post, comb), EXACT), rtol=LIMIT, atol=8 * LIMIT)
    rows_stand_alone(native, lambda rows: native.update(h[rows], y[rows], post[rows], comb[rows]), got)


def test_parts_are_added_in_order(native: NativeKernels) -> None:
    parts, last = values(1, ROWS, 6, WIDTH), values(2, ROWS, WIDTH)
    want = parts[:, 0]
    for rank in range(1, 6):
        want = want + parts[:, rank]
    assert torch.equal(native.total(parts, last), want + last)


def test_router(native: NativeKernels) -> None:
    x, gate = values(1, ROWS, WIDTH), Matrix(kind="plain", weight=values(2, 48, WIDTH), scale=None)
    gate.weight[40] = gate.weight[7]  # equal logits
    nothing = Matrix(kind="plain", weight=torch.zeros(1, 1), scale=None)
    bias = values(3, 48) / 4
    bias[40] = bias[7] = 30.0
    weights = FfnWeights(
        norm=values(4, WIDTH), gate=gate, gate_bias=bias, shared_w1=nothing, shared_w3=nothing, shared_w2=nothing
    )
    want = route(x, weights, 6, CONFIG, EXACT)
    logits = x @ gate.weight.t()
    experts, shares = native.route(logits, bias, 6, over_sum=CONFIG.norm_topk_prob, scale=float(CONFIG.route_scale))
    assert torch.equal(experts, want.experts)
    torch.testing.assert_close(shares, want.weights, rtol=4 * LIMIT, atol=LIMIT)
    first = (experts == 7).nonzero()
    second = (experts == 40).nonzero()
    assert first.shape[0] == ROWS and torch.equal(first[:, 1] + 1, second[:, 1])  # of equal ones the lowest first
    for some in (slice(0, 1), slice(3, 8)):
        alone = native.route(logits[some], bias, 6, over_sum=CONFIG.norm_topk_prob, scale=CONFIG.route_scale)
        assert torch.equal(alone[0], experts[some]) and torch.equal(alone[1], shares[some])


def test_the_router_takes_logits_of_any_size(native: NativeKernels) -> None:
    logits = torch.tensor([[-200.0, 0.0, 19.9, 20.1, 5e4, -3.0]])
    experts, shares = native.route(logits, torch.zeros(6), 6, over_sum=False, scale=1.0)
    assert experts.tolist() == [[4, 3, 2, 1, 5, 0]]
    want = torch.nn.functional.softplus(logits.double()).sqrt().gather(1, experts)
    torch.testing.assert_close(shares.double(), want, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("wanted", [1, 5, 64, 1000])
@pytest.mark.parametrize("restricted", [False, True])
def test_groups_of_equal_score_go_to_the_lowest(native: NativeKernels, wanted: int, restricted: bool) -> None:
    generator = torch.Generator().manual_seed(wanted)
    scores = torch.randint(-6, 6, (ROWS, 203), generator=generator) / 2.0  # many ties
    scores[:, 50:60] = -torch.inf
    counts = torch.randint(0, 204, (ROWS,), generator=generator)
    counts[0] = 0
    config = replace(CONFIG, index_topk=wanted, candidate_block_size=8)
    # Fewer blocks than there are groups: what lies behind the last is not allowed.
    allowed = torch.rand(ROWS, 20, generator=generator) < 0.6 if restricted else None
    got = native.choose_groups(scores, counts, allowed, 8, wanted)
    assert torch.equal(got, choose(scores, counts, allowed, config, EXACT))
    rows_stand_alone(
        native,
        lambda rows: native.choose_groups(
            scores[rows], counts[rows], None if allowed is None else allowed[rows], 8, wanted
        ),
        got,
    )


def test_a_gated_expert_is_its_products(native: NativeKernels) -> None:
    x = values(1, ROWS, WIDTH)
    w1, w3, w2 = (
        Matrix(kind="plain", weight=values(seed, n, k) / 8, scale=None)
        for seed, n, k in ((2, 96, WIDTH), (3, 96, WIDTH), (4, WIDTH, 96))
    )
    inner = gated(x @ w1.weight.t(), x @ w3.weight.t(), 2.0)
    got = native.gated_expert(x, w1, w3, w2, 2.0)
    torch.testing.assert_close(got, inner @ w2.weight.t(), rtol=1e-5, atol=1e-5)
    rows_stand_alone(native, lambda rows: native.gated_expert(x[rows], w1, w3, w2, 2.0), got)


def test_engram_gate(native: NativeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    h, projected = values(1, ROWS, COPIES, WIDTH), values(2, ROWS, (COPIES + 1) * WIDTH)
    projected[4, :WIDTH] = 0.0  # a key that is nothing
    weights = EngramWeights(
        wkv=Matrix(kind="plain", weight=torch.eye((COPIES + 1) * WIDTH), scale=None),
        q_weight=values(3, COPIES, WIDTH), k_weight=values(4, COPIES, WIDTH),
    )  # fmt: skip
    weight = weights.q_weight * weights.k_weight
    got = native.engram(h, projected, weight, CONFIG.norm_eps)
    want = engram(h, projected, weights, CONFIG, EXACT)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    rows_stand_alone(native, lambda rows: native.engram(h[rows], projected[rows], weight, CONFIG.norm_eps), got)


def test_what_the_library_could_not_read_is_refused(native: NativeKernels) -> None:
    h = torch.zeros(2, COPIES, WIDTH)
    with pytest.raises(KernelError):
        native.norm(h.transpose(0, 1), torch.zeros(WIDTH), 0.0)
    with pytest.raises(KernelError):
        native.rotate(h, torch.zeros(3, dtype=torch.int64), torch.zeros(2))
    with pytest.raises(KernelError, match="pairs do not fit"):
        native.rotate(torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64), torch.zeros(4))
    with pytest.raises(KernelError):
        native.update(h, torch.zeros(2, WIDTH + 1), torch.zeros(2, COPIES), torch.zeros(2, COPIES, COPIES))
    with pytest.raises(KernelError, match="cannot be chosen"):
        native.route(torch.zeros(1, 4), torch.zeros(4), 5, over_sum=True, scale=1.0)
    with pytest.raises(KernelError):
        native.choose_groups(torch.zeros(2, 9), torch.zeros(2), None, 8, 3)
