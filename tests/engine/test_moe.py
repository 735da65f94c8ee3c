"""The router and the expert sum against their formulas in plain Python numbers (architecture, section 10)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from engine.config import ModelConfig
from engine.experts import ExpertWeights
from engine.kernels import Matrix
from engine.moe import Routing, gated, moe, route
from engine.numerics import EXACT, NUMERICS, NumericsName
from engine.weights import FfnWeights


def plain(weight: torch.Tensor) -> Matrix:
    return Matrix(kind="plain", weight=weight, scale=None)


def ffn(gate: torch.Tensor, bias: torch.Tensor, width: int = 4) -> FfnWeights:
    dim = gate.shape[1]
    zero = plain(torch.zeros(width, dim))
    return FfnWeights(
        norm=torch.ones(dim), gate=plain(gate), gate_bias=bias, shared_w1=zero, shared_w3=zero,
        shared_w2=plain(torch.zeros(dim, width)),
    )  # fmt: skip


def test_the_bias_chooses_and_does_not_weigh(tiny_config: ModelConfig) -> None:
    logits = [2.0, 1.0, 0.0, -1.0]
    weights = ffn(torch.diag(torch.tensor(logits)), torch.tensor([0.0, 0.0, 0.0, 9.0]))
    routing = route(torch.ones(1, 4), weights, 2, tiny_config)
    assert routing.experts.tolist() == [[3, 0]]  # the biased one first
    score = [math.sqrt(math.log1p(math.exp(logits[e]))) for e in (3, 0)]
    want = [s / sum(score) * tiny_config.route_scale for s in score]
    assert routing.weights[0].tolist() == pytest.approx(want, rel=1e-6)


def test_equal_scores_go_to_the_lowest_index(tiny_config: ModelConfig) -> None:
    routing = route(torch.ones(1, 2), ffn(torch.zeros(300, 2), torch.zeros(300)), 3, tiny_config)
    assert routing.experts.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("level", [-60.0, -20.0, 19.0, 21.0, 500.0])
def test_softplus_neither_vanishes_nor_overflows(tiny_config: ModelConfig, level: float) -> None:
    gate = torch.full((4, 1), level)
    gate[0] += 1
    routing = route(torch.ones(1, 1), ffn(gate, torch.zeros(4)), 2, tiny_config)
    top, other = (
        math.sqrt(x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))) for x in (level + 1, level)
    )
    want = [top / (top + other) * tiny_config.route_scale, other / (top + other) * tiny_config.route_scale]
    assert routing.weights[0].tolist() == pytest.approx(want, rel=1e-5)


def test_one_expert_is_not_renormalised(tiny_config: ModelConfig) -> None:
    routing = route(torch.ones(1, 1), ffn(torch.tensor([[1.0], [0.5]]), torch.zeros(2)), 1, tiny_config)
    assert routing.weights.item() == pytest.approx(math.sqrt(math.log1p(math.e)) * tiny_config.route_scale, rel=1e-6)


def test_the_gate_is_clamped_from_above_only_and_the_up_branch_on_both_sides() -> None:
    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    got = gated(torch.tensor([5.0, -5.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 7.0, -7.0]), 2.0)
    assert got.tolist() == pytest.approx([silu(2.0), silu(-5.0), 2 * silu(1.0), -2 * silu(1.0)], rel=1e-6)
    assert gated(torch.tensor([5.0]), torch.tensor([7.0]), 0.0).item() == pytest.approx(7 * silu(5.0), rel=1e-6)


def test_contributions_do_not_depend_on_the_order_experts_arrive_in(tiny_config: ModelConfig) -> None:
    generator = torch.Generator().manual_seed(8)
    dim, width, n = 16, 8, 6
    config = replace(tiny_config, dim=dim, moe_inter_dim=width)
    experts = {
        e: ExpertWeights(
            w1=plain(torch.randn(width, dim, generator=generator)),
            w2=plain(torch.randn(dim, width, generator=generator)),
            w3=plain(torch.randn(width, dim, generator=generator)),
        )
        for e in range(n)
    }
    x = torch.randn(5, dim, generator=generator)
    chosen = torch.stack([torch.randperm(n, generator=generator)[:3] for _ in range(5)])
    routing = Routing(chosen, torch.rand(5, 3, generator=generator))
    weights = ffn(torch.zeros(n, dim), torch.zeros(n), width)

    def run(order: Sequence[int], size: int) -> torch.Tensor:
        def waves(wanted: Sequence[int]) -> Iterator[Sequence[tuple[int, ExpertWeights]]]:
            arriving = [e for e in order if e in wanted]
            for first in range(0, len(arriving), size):
                yield [(e, experts[e]) for e in arriving[first : first + size]]

        return moe(x, routing, waves, weights, config, EXACT)

    want = run(range(n), n)
    assert torch.equal(run(range(n - 1, -1, -1), 2), want)
    assert torch.equal(run([3, 0, 5, 1, 4, 2], 1), want)
    by_hand = torch.zeros(5, dim, dtype=torch.float64)
    for row in range(5):
        for rank in range(3):
            w = experts[int(chosen[row, rank])]
            gate, up = w.w1.weight.double() @ x[row].double(), w.w3.weight.double() @ x[row].double()
            inner = gate.clamp_max(2.0) * torch.sigmoid(gate.clamp_max(2.0)) * up.clamp(-2.0, 2.0)
            by_hand[row] += w.w2.weight.double() @ (inner * routing.weights[row, rank].double())
    assert (want.double() - by_hand).abs().max() < 1e-4


def corner(value: float) -> Matrix:
    weight = torch.zeros(32, 32)
    weight[0, 0] = value
    return plain(weight)


@pytest.mark.parametrize(("mode", "want"), [("exact", 0.0), ("reference", 1.0)])
def test_outputs_are_added_by_rank_or_as_the_vendor_does_by_expert(
    tiny_config: ModelConfig, mode: NumericsName, want: float
) -> None:
    # By rank (2^25 + 1) - 2^25 is 0 in float32; by expert, section 15, (2^25 - 2^25) + 1 is 1. 32 is its own SiLU.
    outputs = {0: 2.0**25, 2: -(2.0**25), 5: 1.0}
    experts = {e: ExpertWeights(w1=corner(32), w3=corner(1), w2=corner(out / 32)) for e, out in outputs.items()}
    routing = Routing(torch.tensor([[0, 5, 2]]), torch.ones(1, 3))
    config = replace(tiny_config, dim=32, moe_inter_dim=32, swiglu_limit=0.0)
    x = torch.zeros(1, 32)
    x[0, 0] = 1

    def waves(wanted: Sequence[int]) -> Iterator[Sequence[tuple[int, ExpertWeights]]]:
        yield [(e, experts[e]) for e in wanted]

    got = moe(x, routing, waves, ffn(torch.zeros(6, 32), torch.zeros(6), 32), config, NUMERICS[mode])
    assert got[0, 0].item() == want
