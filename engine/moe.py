"""Mixture of experts: the router, the routed experts of a step, the shared expert.

The one thing a reader would get wrong: the router's bias steers the choice and never the weights, and contributions are
added in rank order (best expert first; in `reference` by number), so a row's result depends neither on which experts
were cached nor on the order in which the others arrived.
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
from engine.kernels.card_path import MOST_ROWS, pieces
from engine.numerics import EXACT, Numerics
from engine.tiers.card import Card, Pending, put_rows
from engine.transfer import MEMORY, bring, fetch_rows
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
    """The routed experts of every row and the shared expert. Shapes: x [T, D]; result [T, D].

    On a card this waits once, in `exact`: for what the router chose, and with it the rows, which the processor
    multiplies by the experts that lie in memory. The shared expert is begun before that.
    """
    kernels = numerics.native()
    if kernels is not None:
        operand = x.contiguous()
        parts = routed(operand, routing, waves, config.swiglu_limit, numerics, work)
        return kernels.total(parts, shared_expert(operand, weights, config, numerics, work), work)
    operand = numerics.operand(x)
    arriving = fetch_rows(*routing, operand)
    shared = shared_expert(operand, weights, config, numerics, work)
    parts = routed(operand, routing, waves, config.swiglu_limit, numerics, work, arriving)
    if numerics.name == "reference":  # which adds them up by their numbers: section 15
        order = bring(routing.experts, parts.device).argsort(1)
        parts = parts.gather(1, order.unsqueeze(-1).expand_as(parts))
    total = parts[:, 0]
    for rank in range(1, parts.shape[1]):
        total = total + parts[:, rank]
    return numerics.value(bring(total, x.device) + shared)


def routed(
    operand: Tensor, routing: Routing, waves: ExpertWaves, limit: float, numerics: Numerics, work: Workspace = FRESH,
    arriving: Callable[[], Sequence[Tensor]] | None = None,
) -> Tensor:  # fmt: skip
    """Every expert's contributions, wherever it lies: operand [T, D] -> [T, k, D].

    The result lies with the operand; that of many rows on a card in memory, where there is room for it. Of an operand
    on a card, `arriving` gives the routing's two parts and the operand in memory. What cards compute is begun as it
    comes and collected later, so that cards and the processor work at once. What a card has no memory for is asked for
    again, and then comes from elsewhere.
    """
    chosen, gate, here = (*routing, operand) if arriving is None else arriving()
    given = _Rows(operand, routing.weights, here, gate)
    places: dict[int, list[int]] = {}
    for place, expert in enumerate(chain.from_iterable(chosen.tolist())):
        places.setdefault(expert, []).append(place)
    home = operand.device if operand.shape[0] <= MOST_ROWS else MEMORY
    mine = work.take(*chosen.shape, operand.shape[1])  # [T, k, D] what the processor computes
    parts = mine if home == MEMORY else torch.empty(mine.shape, device=home)
    computed: list[int] = []
    begun: deque[Pending] = deque()
    wanted = sorted(places)
    while wanted:
        again: list[int] = []
        for wave in waves(wanted):
            for card, some in _by_card(wave):
                uses = [places[expert] for expert, _ in some]
                experts = [w for _, w in some]
                if card is None:
                    contribute(here, experts, uses, gate, limit, numerics.at(MEMORY), mine)
                    computed += chain.from_iterable(uses)
                    continue
                try:
                    begun.append(card.begin(*given.on(card.device), experts, uses, limit, numerics, home))
                except CardFull:
                    again += [expert for expert, _ in some]
                # What stays on cards nobody waits for, and what it takes is soon free again.
                while len(begun) > (_MOST_BEGUN if home == MEMORY else 0):
                    begun.popleft().finish(parts)
        wanted = again
    for pending in begun:
        pending.finish(parts)
    if parts is not mine and computed:
        at = torch.tensor(computed)
        put_rows(parts, at, mine.view(-1, mine.shape[2])[at])
    return parts


class _Rows(NamedTuple):
    """What experts are given, where it was made and in memory."""

    operand: Tensor
    weights: Tensor
    here: Tensor
    here_weights: Tensor

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Operand and weights for the experts of a card."""
        return (self.operand, self.weights) if self.operand.device == device else (self.here, self.here_weights)


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


def shared_expert(
    operand: Tensor, weights: FfnWeights, config: ModelConfig, numerics: Numerics, work: Workspace = FRESH
) -> Tensor:
    """The expert every row uses, unweighted. Shapes: operand [T, D]; result [T, D]."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.gated_expert(
            operand, weights.shared_w1, weights.shared_w3, weights.shared_w2, config.swiglu_limit, work
        )
    some = pieces(operand)
    if len(some) > 1:
        return torch.cat([shared_expert(operand[rows], weights, config, numerics) for rows in some])
    gate = numerics.value(numerics.product(operand, weights.shared_w1))
    up = numerics.value(numerics.product(operand, weights.shared_w3))
    inner = numerics.value(gated(gate, up, config.swiglu_limit))
    return numerics.value(numerics.product(numerics.operand(inner), weights.shared_w2))
