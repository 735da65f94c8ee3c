"""Hyper-connections against section 7 of the architecture, written out with Python loops in float64."""

import math

import torch

from engine.config import ModelConfig
from engine.hyper import Mix, collapse, mix, update
from engine.numerics import EXACT
from engine.weights import MixWeights


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_mix_follows_the_formula(tiny_config: ModelConfig) -> None:
    m, dim, eps = tiny_config.hc_mult, 6, tiny_config.hc_eps
    generator = torch.Generator().manual_seed(5)
    h = torch.randn(2, m, dim, generator=generator)
    weights = MixWeights(
        fn=torch.randn((2 + m) * m, m * dim, generator=generator) * 0.3,
        base=torch.randn((2 + m) * m, generator=generator),
        scale=torch.tensor([0.7, 1.3, 0.9]),
    )
    got = mix(h, weights, tiny_config)
    for row in range(2):
        v = h[row].flatten().double().tolist()
        norm = 1 / math.sqrt(sum(x * x for x in v) / len(v) + tiny_config.norm_eps)
        z = [sum(f * x for f, x in zip(line, v, strict=True)) * norm for line in weights.fn.double().tolist()]
        base, scale = weights.base.double().tolist(), weights.scale.double().tolist()
        for c in range(m):
            assert abs(got.pre[row, c].item() - (sigmoid(z[c] * scale[0] + base[c]) + eps)) < 1e-6
            assert abs(got.post[row, c].item() - 2 * sigmoid(z[m + c] * scale[1] + base[m + c])) < 1e-6
        comb = [[z[2 * m + i * m + j] * scale[2] + base[2 * m + i * m + j] for j in range(m)] for i in range(m)]
        comb = [[math.exp(x) / sum(math.exp(y) for y in line) + eps for x in line] for line in comb]
        for step in range(tiny_config.hc_sinkhorn_iters):
            if step:
                comb = [[x / (sum(line) + eps) for x in line] for line in comb]
            columns = [sum(comb[i][j] for i in range(m)) + eps for j in range(m)]
            comb = [[comb[i][j] / columns[j] for j in range(m)] for i in range(m)]
        assert (got.comb[row].double() - torch.tensor(comb, dtype=torch.float64)).abs().max() < 1e-6


def test_comb_is_summed_over_its_first_index() -> None:
    h = torch.eye(2).view(1, 2, 2)  # copy c is the unit vector c
    comb = torch.tensor([[[0.1, 0.2], [0.3, 0.4]]])
    got = update(h, torch.zeros(1, 2), Mix(torch.zeros(1, 2), torch.zeros(1, 2), comb), EXACT)
    assert torch.allclose(got[0], torch.tensor([[0.1, 0.3], [0.2, 0.4]]))


def test_the_output_is_scattered_by_post_and_the_stream_collapsed_by_pre() -> None:
    y = torch.tensor([[1.0, 2.0]])
    got = update(
        torch.zeros(1, 2, 2), y, Mix(torch.zeros(1, 2), torch.tensor([[3.0, 5.0]]), torch.zeros(1, 2, 2)), EXACT
    )
    assert got[0].tolist() == [[3.0, 6.0], [5.0, 10.0]]
    assert collapse(got, torch.tensor([[2.0, -1.0]]), EXACT).tolist() == [[1.0, 2.0]]
