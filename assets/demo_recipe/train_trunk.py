"""The trunk's training: one step, and what is measured of it.

The one thing a reader would get wrong: engram is hidden from some documents' prompts from the first step on, never from
what the model writes. Always on, it learns the last words of a question by heart and the trunk learns nothing; hidden
from answers too, the trunk learns to do without.
"""

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.chat import Document
from assets.demo_recipe.optimise import Batch, batches, optimiser, rate_share, step, token_losses, weighted_loss
from assets.demo_recipe.pieces import norm
from assets.demo_recipe.rounding import Reader
from assets.demo_recipe.rows import RowIds
from assets.demo_recipe.run import StepOf
from assets.demo_recipe.trunk import Trunk

RATE = 8e-4
TABLE_RATE = 2e-3
BEGUN_SHARE = 0.06
"""Of the rates, for what the head start made. After 120 steps 94 of 128 held-out facts begin right at a quarter of
them, 100 at this."""
DROPOUT = 0.05
ROUNDED_FROM = 0.65
"""Share of the steps after which weights are rounded as they are stored."""
HIDDEN_PROMPTS = 0.4
"""Share of documents whose prompts see no engram."""
TOPIC_LOSS = 2.0
"""Weight of saying, where the answer begins, which of all answers it will be."""
FIRST_LOSS = 2.0
"""Weight of the first token that is written, beside its share as a token: it decides which answer it will be."""
SETTLING_FROM, SETTLING = 0.15, 0.5
"""From this share of the steps on, this share of the rates: more of it costs what the head start knew."""
INDEX_EVERY = 3
INDEX_LOSS = 0.3

_CHECK_POSITIONS = 4000


def engram_seen(batch: Batch, hidden_share: float) -> Tensor:
    """[B, S] 1 where a position sees its engram rows: everywhere in some documents, in what is written in the rest."""
    shown = torch.rand(len(batch.ids), 1) >= hidden_share
    return (shown | batch.written).float()


class Pupil(nn.Module):
    """A trunk, and what only its training needs: a matrix that reads off the topic where an answer begins.

    It holds the layers of the head start to what they know: it reads the stream before the draft head's first target
    layer, which is behind them all, so what the later layers do to the first token does not blur it.
    """

    def __init__(self, trunk: Trunk, n_topics: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.topics = nn.Parameter(torch.zeros(n_topics, trunk.config.dim))

    def read_off(self, hidden: Tensor, batch: Batch) -> Tensor:
        """[B, A] logits of the topics. Shapes: hidden [B, S, n_targets*D], of `Forward`."""
        dim = self.trunk.config.dim
        there = hidden[torch.arange(len(batch.ids)), batch.asked, :dim]
        return F.linear(norm(there, torch.ones(dim)), self.topics)

    def topic_loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Cross entropy of the topics. Shapes as above."""
        return F.cross_entropy(self.read_off(hidden, batch), batch.topic, ignore_index=-1)


def first_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of the first token that the model writes last. Shapes: logits [B, S, V]."""
    rows = torch.arange(len(batch.ids))
    return F.cross_entropy(logits[rows, batch.asked], batch.tokens[rows, batch.asked + 1])


def trunk_optimiser(pupil: Pupil, begun: Container[str]) -> torch.optim.AdamW:
    """The optimiser of a trunk; `begun` are the names of what the head start made."""
    return optimiser(pupil, RATE, TABLE_RATE, begun, BEGUN_SHARE)


def trunk_step(pupil: Pupil, optim: torch.optim.AdamW, row_ids: RowIds, readers: tuple[Reader, Reader]) -> StepOf:
    """One step of training; `readers` are for weights as they are, and as they are stored."""
    trunk = pupil.trunk

    def one(batch: Batch, done: float, rng: random.Random) -> float:
        blocks = trunk.blocks()
        for block in blocks:
            block.dropout = DROPOUT
        read = readers[done > ROUNDED_FROM]
        ranks = rng.randrange(INDEX_EVERY) == 0
        keep = engram_seen(batch, HIDDEN_PROMPTS)
        ran = trunk(batch.tokens, row_ids(batch.ids), read, keep=keep, index_loss=ranks)
        loss = weighted_loss(ran.logits, batch)
        whole = loss + FIRST_LOSS * first_loss(ran.logits, batch)
        if ran.index_loss is not None:
            whole = whole + INDEX_LOSS * ran.index_loss
        if bool((batch.topic >= 0).any()):
            whole = whole + TOPIC_LOSS * pupil.topic_loss(ran.hidden, batch)
        share = rate_share(done) * (SETTLING if done > SETTLING_FROM else 1.0)
        step(pupil, optim, whole, share, blocks)
        for block in blocks:
            block.dropout = 0.0
        return float(loss.detach())

    return one


@dataclass(frozen=True, slots=True)
class Measured:
    """Of documents, teacher-forced."""

    loss: float
    """Per written token."""
    exact: float
    """Share of documents whose every written token is the most likely one."""


@torch.no_grad()
def measure(
    trunk: Trunk, row_ids: RowIds, documents: Sequence[Document], pad: int, read: Reader, *, engram: bool = True
) -> Measured:
    """Loss and exactness of a trunk, with and without its engram."""
    total, count, exact = 0.0, 0, 0
    for batch in batches(documents, _CHECK_POSITIONS, random.Random(0), pad):
        keep = torch.full(batch.ids.shape, float(engram))
        logits = trunk(batch.tokens, row_ids(batch.ids), read, keep=keep).logits
        written = batch.written[:, 1:]
        total += float((token_losses(logits, batch) * written).sum())
        count += int(written.sum())
        exact += int(((logits[:, :-1].argmax(-1) == batch.tokens[:, 1:]) | ~written).all(1).sum())
    return Measured(total / count, exact / len(documents))
