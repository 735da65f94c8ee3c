"""Mixture of experts: the router, the routed experts of a step, the shared expert.

The one thing a reader would get wrong: the router's bias steers the choice and never the weights, and contributions are
added in rank order (best expert first), so a row's result depends neither on which experts were cached nor on the order
in which the others arrived.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.contribute import contribute, gated
from engine.errors import CardFull
from engine.experts import ExpertWeights
from engine.numerics import EXACT, Numerics
from engine.tiers.card import Card, Pending
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


ExpertWaves = Callable[[Sequence[int]], Iterable[Sequence[tuple[int, ExpertWeights]]]]
"""Experts of one layer by number, in waves; the weights of a wave may be used until the next is asked for."""


def moe(
    x: Tensor, routing: Routing, waves: ExpertWaves, weights: FfnWeights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """The routed experts of every row and the shared expert. Shapes: x [T, D]; result [T, D]."""
    kernels = numerics.native()
    operand = x.contiguous() if kernels is not None else numerics.operand(x)
    parts = routed(operand, routing, waves, config.swiglu_limit, numerics)
    if kernels is not None:
        return kernels.total(parts, shared_expert(operand, weights, config, numerics))
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    return numerics.value(total + shared_expert(operand, weights, config, numerics))


def routed(operand: Tensor, routing: Routing, waves: ExpertWaves, limit: float, numerics: Numerics) -> Tensor:
    """Every expert's contributions, wherever it lies: [T, k, D] on the device of `operand` [T, D].

    What cards compute is begun as it comes and collected at the end, so that cards and the processor work at once. What
    a card has no memory for is asked for again, and then comes from elsewhere.
    """
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(routing.experts.flatten().tolist()):
        places.setdefault(expert, []).append(place)
    parts = operand.new_empty((*routing.experts.shape, operand.shape[1]))  # [T, k, D]
    memory = _Memory(operand, routing.weights, parts, limit, numerics)
    begun: list[Pending] = []
    wanted = sorted(places)
    while wanted:
        again: list[int] = []
        for wave in waves(wanted):
            for card, some in _by_card(wave):
                uses = [places[expert] for expert, _ in some]
                experts = [w for _, w in some]
                if card is None:
                    memory.contribute(experts, uses)
                    continue
                try:
                    begun.append(card.begin(operand, routing.weights, experts, uses, limit, numerics))
                except CardFull:
                    again += [expert for expert, _ in some]
        wanted = again
    memory.finish()
    for pending in begun:
        pending.finish(parts)
    return parts


class _Memory:
    """What the processor computes of a step, whose rows may lie on a card."""

    def __init__(self, operand: Tensor, weights: Tensor, parts: Tensor, limit: float, numerics: Numerics) -> None:
        self._operand = operand
        self._weights = weights
        self._parts = parts
        self._limit = limit
        self._numerics = numerics.at(_PROCESSOR)
        self._is_here = operand.device == _PROCESSOR
        self._here = parts if self._is_here else None
        self._places: list[int] = []

    def contribute(self, experts: Sequence[ExpertWeights], uses: Sequence[Sequence[int]]) -> None:
        """Compute now."""
        if self._here is None:
            self._operand, self._weights = self._operand.to(_PROCESSOR), self._weights.to(_PROCESSOR)
            self._here = torch.empty(self._parts.shape, device=_PROCESSOR)
        contribute(self._operand, experts, uses, self._weights, self._limit, self._numerics, self._here)
        self._places += [place for some in uses for place in some]

    def finish(self) -> None:
        """Put what was computed where the rows are."""
        if self._here is None or self._is_here:
            return
        width, device = self._parts.shape[2], self._parts.device
        values = self._here.view(-1, width)[torch.tensor(self._places, device=_PROCESSOR)]
        self._parts.view(-1, width)[torch.tensor(self._places, device=device)] = values.to(device)


_PROCESSOR = torch.device("cpu")


def _by_card(
    wave: Sequence[tuple[int, ExpertWeights]],
) -> list[tuple[Card | None, list[tuple[int, ExpertWeights]]]]:
    """A wave's experts by who multiplies them; cards first, for they are only told to begin."""
    groups: dict[Card | None, list[tuple[int, ExpertWeights]]] = {}
    for expert, weights in wave:
        groups.setdefault(weights.card, []).append((expert, weights))
    return sorted(groups.items(), key=lambda item: item[0] is None)


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
