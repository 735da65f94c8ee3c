"""The draft head's training on a frozen trunk.

The one thing a reader would get wrong: targets are what the trunk itself would write, not the data. A place counts only
as far as the trunk's own choices and the text agree, for only there is the text the trunk's own.
"""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assets.demo_recipe.draft import Draft
from assets.demo_recipe.optimise import Batch, optimiser, rate_share, step
from assets.demo_recipe.rounding import Reader
from assets.demo_recipe.rows import RowIds
from assets.demo_recipe.run import StepOf
from assets.demo_recipe.trunk import Trunk

RATE = 2e-3
ROUNDED_FROM = 0.5
ANCHORS = 12
"""Places drafted from, in each document of a batch."""
CONFIDENCE_LOSS = 0.1


def draft_optimiser(draft: Draft) -> torch.optim.AdamW:
    """The optimiser of a draft head."""
    return optimiser(draft, RATE, RATE)


def anchors_of(batch: Batch, block: int, rng: random.Random, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places behind which the model writes: positions [B, A], tokens [B, A, n+1] from the next on, which exist."""
    rows, length = batch.ids.shape
    places = np.zeros((rows, ANCHORS), dtype=np.int64)
    tokens = np.full((rows, ANCHORS, block + 1), pad, dtype=np.int64)
    live = np.zeros((rows, ANCHORS, block + 1), dtype=bool)
    written = batch.written.numpy()
    for i in range(rows):
        before = [int(p) - 1 for p in np.flatnonzero(written[i])]  # position p - 1 writes the token at p
        for j, place in enumerate(rng.choices(before, k=ANCHORS)):
            places[i, j] = place
            end = min(place + block + 2, length)
            n = end - place - 1
            tokens[i, j, :n] = batch.ids[i, place + 1 : end]
            live[i, j, :n] = written[i, place + 1 : end]
    return torch.from_numpy(places), torch.from_numpy(tokens), torch.from_numpy(live)


def drafted(
    trunk: Trunk, draft: Draft, batch: Batch, row_ids: RowIds, rng: random.Random, read: Reader, pad: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits [B, A, n, V] and confidence [B, A, n] of drafts, the trunk's own choices [B, A, n], and which count."""
    block = trunk.config.dspark_block_size
    with torch.no_grad():
        ran = trunk(batch.tokens, row_ids(batch.ids), Reader(rounded=False))
        best = ran.logits.argmax(-1)
    places, tokens, live = anchors_of(batch, block, rng, pad)
    at = (places.unsqueeze(-1) + torch.arange(block + 1)).clamp(max=batch.ids.shape[1] - 1)
    own = best.gather(1, at.flatten(1)).view(at.shape)  # what the trunk writes at p+1 .. p+1+n
    same = ((own == tokens) & live).long().cumprod(-1).bool()
    logits, confidence = draft(ran.hidden, places, tokens, trunk.embed.detach(), trunk.head.detach(), read)
    return logits, confidence, own[..., 1:], same[..., :-1] & live[..., 1:]


def draft_step(
    trunk: Trunk, draft: Draft, optim: torch.optim.AdamW, row_ids: RowIds, readers: tuple[Reader, Reader], pad: int
) -> StepOf:
    """One step of training; the trunk must hold its stored values already."""

    def one(batch: Batch, done: float, rng: random.Random) -> float:
        read = readers[done > ROUNDED_FROM]
        logits, confidence, own, counts = drafted(trunk, draft, batch, row_ids, rng, read, pad)
        if not counts.any():
            return 0.0
        loss = F.cross_entropy(logits[counts], own[counts])
        right = (logits.detach().argmax(-1) == own).float()
        sure = F.binary_cross_entropy_with_logits(confidence[counts], right[counts])
        step(draft, optim, loss + CONFIDENCE_LOSS * sure, rate_share(done), draft.blocks())
        return float(loss.detach())

    return one
