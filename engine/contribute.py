"""What routed experts add to the rows that use them, on one device: the arithmetic, without who lies where.

Experts are told their uses as places: row * k + rank, of a router's [T, k] choice. Each contribution depends on its own
row, weight and expert alone, so it is the same in whatever company it is computed. The one thing a reader would get
wrong: that is to the last bit with the native kernels only; torch's products may add up in an order that depends on the
number of rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.experts import ExpertWeights
from engine.numerics import Numerics, sigmoid
from engine.transfer import bring


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); a limit of 0 means no clamp. Shapes equal."""
    if limit > 0:
        gate, up = gate.clamp_max(limit), up.clamp(-limit, limit)
    return gate * sigmoid(gate) * up


def contribute(
    operand: Tensor,
    experts: Sequence[ExpertWeights],
    uses: Sequence[Sequence[int]],
    weights: Tensor,
    limit: float,
    numerics: Numerics,
    parts: Tensor,
) -> None:
    """Write each expert's contributions at the places of its uses; everything lies on one device.

    Shapes: operand [T, D]; weights [T, k]; parts [T, k, D].
    """
    kernels = numerics.native()
    if kernels is not None:
        matrices = [(w.w1, w.w3, w.w2) for w in experts]
        kernels.routed_experts(operand, matrices, uses, weights.contiguous(), limit, parts)
        return
    # One copy of indices for all experts: on a card each would be a transfer of its own.
    places = bring(torch.tensor([place for some in uses for place in some]), operand.device)
    rows, gate_weights = places // weights.shape[1], weights.reshape(-1)[places]
    flat = parts.view(-1, parts.shape[2])
    at = 0
    for expert, some in zip(experts, uses, strict=True):
        mine = slice(at, at + len(some))
        at += len(some)
        x = operand[rows[mine]]
        inner = gated(
            numerics.value(numerics.product(x, expert.w1)), numerics.value(numerics.product(x, expert.w3)), limit
        )
        inner = numerics.value(inner * gate_weights[mine].unsqueeze(1))
        flat[places[mine]] = numerics.value(numerics.product(numerics.operand(inner), expert.w2))
