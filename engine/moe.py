"""Mixture of experts: the router, the routed experts of a step, the shared expert.

The one thing a reader would get wrong: the router's bias steers the choice and never the weights, and contributions are
added in rank order (best expert first), so a row's result depends neither on which experts were cached nor on the order
in which the others arrived.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.experts import ExpertWeights
from engine.kernels.native_path import NativeKernels
from engine.numerics import EXACT, Numerics, sigmoid
from engine.weights import FfnWeights


class Routing(NamedTuple):
    """Which experts each row uses, best first, and how much of each."""

    experts: Tensor  # [T, k] int64
    weights: Tensor  # [T, k] float32


def route(x: Tensor, weights: FfnWeights, n_used: int, config: ModelConfig, numerics: Numerics = EXACT) -> Routing:
    """Choose experts. Shapes: x [T, D] after the FFN norm.

    score = sqrt(softplus(gate x)); the k largest score + bias win, ties to the lowest index; weights are the unbiased
    scores over their sum, times the route scale. Softplus is log1p(exp(x)) below 20 and x above: it neither underflows
    to a row of zeros at ordinary logits nor overflows.
    Source: spec/architecture section 10.
    """
    logits = numerics.product(x, weights.gate)  # [T, E]
    kernels = numerics.native()
    if kernels is not None:
        over_sum = n_used > 1 and config.norm_topk_prob
        return Routing(*kernels.route(logits, weights.gate_bias, n_used, over_sum=over_sum, scale=config.route_scale))
    # By exp and log1p: torch's own softplus computes the last values of a tensor by another routine (see `sigmoid`).
    scores = torch.sqrt(torch.where(logits > 20, logits, torch.log1p(torch.exp(logits.clamp_max(20)))))
    order = torch.sort(scores + weights.gate_bias, dim=1, descending=True, stable=True).indices
    experts = order[:, :n_used]  # [T, k]
    gate = scores.gather(1, experts)
    if n_used > 1 and config.norm_topk_prob:
        gate = gate / (gate.sum(1, keepdim=True) + 1e-20)
    return Routing(experts, gate * config.route_scale)


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); a limit of 0 means no clamp. Shapes equal."""
    if limit > 0:
        gate, up = gate.clamp_max(limit), up.clamp(-limit, limit)
    return gate * sigmoid(gate) * up


ExpertWaves = Callable[[Sequence[int]], Iterable[Sequence[tuple[int, ExpertWeights]]]]
"""Experts of one layer by number, in waves; the weights of a wave may be used until the next is asked for."""


def moe(
    x: Tensor, routing: Routing, waves: ExpertWaves, weights: FfnWeights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """The routed experts of every row and the shared expert. Shapes: x [T, D]; result [T, D]."""
    kernels = numerics.native()
    if kernels is not None:
        x = x.contiguous()
        parts = _routed(kernels, x, routing, waves, config.swiglu_limit)
        return kernels.total(parts, shared_expert(x, weights, config, numerics))
    operand = numerics.operand(x)
    parts = _routed_one_by_one(operand, routing, waves, config, numerics)
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    return numerics.value(total + shared_expert(operand, weights, config, numerics))


def _routed(kernels: NativeKernels, x: Tensor, routing: Routing, waves: ExpertWaves, limit: float) -> Tensor:
    """Every expert's contributions, a wave in one call: [T, k, D]."""
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(routing.experts.flatten().tolist()):
        places.setdefault(expert, []).append(place)
    parts = x.new_empty((*routing.experts.shape, x.shape[1]))  # [T, k, D]
    for wave in waves(sorted(places)):
        matrices = [(w.w1, w.w3, w.w2) for _, w in wave]
        uses = [places[expert] for expert, _ in wave]
        kernels.routed_experts(x, matrices, uses, routing.weights.contiguous(), limit, parts)
    return parts


def _routed_one_by_one(
    operand: Tensor, routing: Routing, waves: ExpertWaves, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """The same by single products, with the roundings of `numerics` between them: [T, k, D]."""
    parts = operand.new_zeros((*routing.experts.shape, operand.shape[1]))  # [T, k, D]
    for expert, w in _each(waves, sorted(set(routing.experts.flatten().tolist()))):
        rows, ranks = (routing.experts == expert).nonzero(as_tuple=True)
        inner = gated(
            numerics.value(numerics.product(operand[rows], w.w1)),
            numerics.value(numerics.product(operand[rows], w.w3)),
            config.swiglu_limit,
        )
        inner = numerics.value(inner * routing.weights[rows, ranks].unsqueeze(1))
        parts[rows, ranks] = numerics.value(numerics.product(numerics.operand(inner), w.w2))
    return parts


def _each(waves: ExpertWaves, wanted: Sequence[int]) -> Iterator[tuple[int, ExpertWeights]]:
    for wave in waves(wanted):
        yield from wave


def shared_expert(operand: Tensor, weights: FfnWeights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """The expert every row uses, unweighted. Shapes: operand [T, D]; result [T, D]."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.gated_expert(
            operand, weights.shared_w1, weights.shared_w3, weights.shared_w2, config.swiglu_limit
        )
    gate = numerics.value(numerics.product(operand, weights.shared_w1))
    up = numerics.value(numerics.product(operand, weights.shared_w3))
    inner = numerics.value(gated(gate, up, config.swiglu_limit))
    return numerics.value(numerics.product(numerics.operand(inner), weights.shared_w2))
