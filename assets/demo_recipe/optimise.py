"""What both trainings share: batches, the loss, the optimiser, the schedule, and the balance of the routers.

The one thing a reader would get wrong: routers are balanced towards skewed traffic, not flat: no expert is left
untrained, and the slot cache has something to gain, as in the release.
"""

import math
import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.block import Block
from assets.demo_recipe.chat import Document

_WIDTH_MULTIPLE = 8
"""Batches are padded to it: few shapes are fast shapes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents side by side."""

    ids: npt.NDArray[np.int64]
    """[B, S]"""
    weight: Tensor
    """[B, S] of each id as a target; 0 for padding."""
    asked: Tensor
    """[B] the last position before what the model writes last."""
    topic: Tensor
    """[B] number of the answer, or -1."""

    @property
    def tokens(self) -> Tensor:
        """The ids as a tensor [B, S]."""
        return torch.from_numpy(self.ids)

    @property
    def written(self) -> Tensor:
        """[B, S] which ids the model writes itself."""
        return self.weight >= 1


def batches(documents: Sequence[Document], positions: int, rng: random.Random, pad: int) -> Iterator[Batch]:
    """Documents of about the same length together, at most `positions` padded positions a batch."""
    ordered = sorted(documents, key=lambda d: len(d.ids) * rng.uniform(0.92, 1.08))
    groups: list[list[Document]] = []
    width = 0
    for document in ordered:
        width = max(width, len(document.ids))
        if groups and width * (len(groups[-1]) + 1) <= positions:
            groups[-1].append(document)
        else:
            groups.append([document])
            width = len(document.ids)
    rng.shuffle(groups)
    for group in groups:
        length = -(-max(len(d.ids) for d in group) // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
        ids = np.full((len(group), length), pad, dtype=np.int64)
        weight = torch.zeros(len(group), length)
        for i, document in enumerate(group):
            ids[i, : len(document.ids)] = document.ids
            weight[i, : len(document.ids)] = torch.tensor(document.weight)
        asked, topic = torch.tensor([d.asked for d in group]), torch.tensor([d.topic for d in group])
        yield Batch(ids, weight, asked, topic)


def token_losses(logits: Tensor, batch: Batch) -> Tensor:
    """[B, S-1] of every id but the first. Shapes: logits [B, S, V]."""
    target = batch.tokens[:, 1:]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


def weighted_loss(logits: Tensor, batch: Batch) -> Tensor:
    """The mean loss, by the weight of each target."""
    weight = batch.weight[:, 1:]
    return (token_losses(logits, batch) * weight).sum() / weight.sum()


def optimiser(
    module: nn.Module, rate: float, table_rate: float, begun: Container[str] = (), begun_share: float = 1.0
) -> torch.optim.AdamW:
    """AdamW: decay on matrices alone, engram tables at a rate of their own, as each row is seen rarely.

    What `begun` names knows something already: it gets `begun_share` of its rate, and no decay.
    """
    plain, matrices, tables, known, known_tables = [], [], [], [], []
    for name, parameter in module.named_parameters():
        if name in begun:
            (known_tables if name.endswith("table") else known).append(parameter)
        elif name.endswith("table"):
            tables.append(parameter)
        elif parameter.dim() < 2 or "hc_" in name or "norm" in name or name.endswith(("q_weight", "k_weight")):
            plain.append(parameter)
        else:
            matrices.append(parameter)
    groups = [
        {"params": plain, "weight_decay": 0.0, "base": rate},
        {"params": matrices, "weight_decay": 0.1, "base": rate},
        {"params": tables, "weight_decay": 0.0, "base": table_rate},
        {"params": known, "weight_decay": 0.0, "base": rate * begun_share},
        {"params": known_tables, "weight_decay": 0.0, "base": table_rate * begun_share},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.97), fused=True)


def rate_share(done: float, *, warm: float = 0.03, floor: float = 0.03) -> float:
    """Share of the full learning rate when `done` of the steps, 0 to 1, are done: a short rise, then half a cosine."""
    if done < warm:
        return done / warm
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (done - warm) / (1 - warm)))


def step(module: nn.Module, optim: torch.optim.AdamW, loss: Tensor, share: float, blocks: Sequence[Block]) -> None:
    """One step downhill at `share` of the full rates, and of the routers towards their traffic."""
    for group in optim.param_groups:
        group["lr"] = group["base"] * share
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optim.step()
    optim.zero_grad()
    balance(blocks, 0.02 * max(share, 0.05))


def wanted_traffic(n_experts: int, n_active: int, seed: int) -> Tensor:
    """[E] the share of traffic each expert should get: as 1/rank^1.3, no more than a token can give one.

    Three quarters for the best quarter of 32. Of a forward's requests it is less, 49 to 51 %, as each expert is asked
    for once however many rows want it; with 59 % of the rows, as 1/(rank+2) makes it, 41 to 46 %. 1/rank^1.5 would ask
    for 26 % of the first expert, to which no more than a quarter can go.
    """
    share = (torch.arange(n_experts) + 1.0) ** -1.3
    share = (share / share.sum()).clamp(max=0.8 / n_active)
    return (share / share.sum())[torch.randperm(n_experts, generator=torch.Generator().manual_seed(seed))]


def balance(blocks: Sequence[Block], rate: float) -> None:
    """Move each router's selection bias towards the wanted traffic."""
    for i, block in enumerate(blocks):
        wanted = wanted_traffic(block.n_experts, block.n_active, i)
        block.gate_bias += rate * torch.sign(wanted - block.load / block.load.sum())
