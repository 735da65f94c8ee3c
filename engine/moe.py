"""Mixture of experts: the router, the routed experts of a step, the shared expert.

The one thing a reader would get wrong: the router's bias steers the choice and never the weights, and contributions are
added in rank order (best expert first), so a row's result depends neither on which experts were cached nor on the order
in which the others arrived.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.contribute import contribute, gated
from engine.errors import CardFull
from engine.experts import ExpertWeights
from engine.kernels import FRESH, Workspace
from engine.kernels.card_path import FULL_HINT, MOST_ROWS
from engine.numerics import EXACT, Numerics
from engine.tiers.card import Card, Pending
from engine.weights import FfnWeights


class Routing(NamedTuple):
    """Which experts each row uses, best first, and how much of each."""

    experts: Tensor  # [T, k] int64
    weights: Tensor  # [T, k] float32


def route(
    x: Tensor, weights: FfnWeights, n_used: int, config: ModelConfig, numerics: Numerics = EXACT,
    work: Workspace = FRESH,
) -> Routing:  # fmt: skip
    """Choose experts. Shapes: x [T, D] after the FFN norm.

    score = sqrt(softplus(gate x)); the k largest score + bias win, ties to the lowest index; weights are the unbiased
    scores over their sum, times the route scale. Softplus is log1p(exp(x)) below 20 and x above: it neither underflows
    to a row of zeros at ordinary logits nor overflows.
    Source: spec/architecture section 10.
    """
    logits = numerics.product(x, weights.gate, work)  # [T, E]
    kernels = numerics.native()
    if kernels is not None:
        over_sum, scale = n_used > 1 and config.norm_topk_prob, config.route_scale
        return Routing(*kernels.route(logits, weights.gate_bias, n_used, over_sum=over_sum, scale=scale, work=work))
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
    x: Tensor, routing: Routing, waves: ExpertWaves, weights: FfnWeights, config: ModelConfig, numerics: Numerics,
    work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """The routed experts of every row and the shared expert. Shapes: x [T, D]; result [T, D]."""
    kernels = numerics.native()
    operand = x.contiguous() if kernels is not None else numerics.operand(x)
    shared = _begin_shared(operand, weights, config, numerics, work)
    parts = routed(operand, routing, waves, config.swiglu_limit, numerics, work)
    if kernels is not None:
        return kernels.total(parts, shared(), work)
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    return numerics.value(total + shared())


def routed(
    operand: Tensor, routing: Routing, waves: ExpertWaves, limit: float, numerics: Numerics, work: Workspace = FRESH
) -> Tensor:
    """Every expert's contributions, wherever it lies: operand [T, D] -> [T, k, D].

    What cards compute is begun as it comes and collected later, so that cards and the processor work at once. What a
    card has no memory for is asked for again, and then comes from elsewhere.
    """
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(chain.from_iterable(routing.experts.tolist())):
        places.setdefault(expert, []).append(place)
    parts = work.take(*routing.experts.shape, operand.shape[1])  # [T, k, D]
    begun: deque[Pending] = deque()
    wanted = sorted(places)
    while wanted:
        again: list[int] = []
        for wave in waves(wanted):
            for card, some in _by_card(wave):
                uses = [places[expert] for expert, _ in some]
                experts = [w for _, w in some]
                if card is None:
                    contribute(operand, experts, uses, routing.weights, limit, numerics, parts)
                    continue
                try:
                    begun.append(card.begin(operand, routing.weights, experts, uses, limit, numerics))
                except CardFull:
                    again += [expert for expert, _ in some]
                while len(begun) > _MOST_BEGUN:
                    begun.popleft().finish(parts)
        wanted = again
    for pending in begun:
        pending.finish(parts)
    return parts


_MOST_BEGUN = 4
"""Waves whose results may wait in memory: a prompt has dozens."""


def _by_card(
    wave: Sequence[tuple[int, ExpertWeights]],
) -> list[tuple[Card | None, list[tuple[int, ExpertWeights]]]]:
    """A wave's experts by who multiplies them; cards first, for they are only told to begin."""
    groups: dict[Card | None, list[tuple[int, ExpertWeights]]] = {}
    for expert, weights in wave:
        groups.setdefault(weights.card, []).append((expert, weights))
    return sorted(groups.items(), key=lambda item: item[0] is None)


def _begin_shared(
    operand: Tensor, weights: FfnWeights, config: ModelConfig, numerics: Numerics, work: Workspace
) -> Callable[[], Tensor]:
    """The shared expert of every row, begun at once where its weights lie on a card."""
    device = weights.shared_w1.weight.device
    if device.type == "cpu" or operand.shape[0] > MOST_ROWS:  # more are gone through in pieces
        return lambda: shared_expert(operand, weights, config, numerics, work)
    try:
        there = shared_expert(operand.to(device), weights, config, numerics.at(device))
    except torch.OutOfMemoryError as error:
        raise CardFull(f"{device} has no memory left", hint=FULL_HINT) from error
    return lambda: there.to(operand.device)


def shared_expert(
    operand: Tensor, weights: FfnWeights, config: ModelConfig, numerics: Numerics, work: Workspace = FRESH
) -> Tensor:
    """The expert every row uses, unweighted. Shapes: operand [T, D]; result [T, D]."""
    kernels = numerics.native() if weights.shared_w1.weight.is_cpu else None
    if kernels is not None:
        return kernels.gated_expert(
            operand, weights.shared_w1, weights.shared_w3, weights.shared_w2, config.swiglu_limit, work
        )
    gate = numerics.value(numerics.product(operand, weights.shared_w1))
    up = numerics.value(numerics.product(operand, weights.shared_w3))
    inner = numerics.value(gated(gate, up, config.swiglu_limit))
    return numerics.value(numerics.product(numerics.operand(inner), weights.shared_w2))
