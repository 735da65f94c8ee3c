"""A linear classifier over the mean of feature vectors: which answer a question gets, by what occurs in it.

The one thing a reader would get wrong: a step of training sees only some of a question's features, so that an answer
does not hang on one of them.
"""

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

RATE = 4e-3
BATCH = 128


class Bag(nn.Module):
    """Vectors of features [F, D], and a matrix from their mean to the answers [A, D]."""

    def __init__(self, n_features: int, n_answers: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(n_features, width, mode="mean", sparse=True)
        self.out = nn.Linear(width, n_answers)

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """[B, A] logits of the answers of B questions, each a row of features, one at least."""
        flat = torch.tensor([i for row in rows for i in row])
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        logits: Tensor = self.out(self.vectors(flat, starts))
        return logits


def learn(
    bag: Bag, rows: Sequence[Sequence[int]], answers: Sequence[int], epochs: int, *, kept: float, seed: int
) -> Iterator[float]:
    """Train on questions and the numbers of their answers; the mean loss of every epoch, as it ends.

    `kept` is the share of a question's features that a step sees.
    """
    rng, wanted, order = random.Random(seed), torch.tensor(answers), [*range(len(rows))]
    optimisers = [
        torch.optim.SparseAdam(bag.vectors.parameters(), lr=RATE), torch.optim.Adam(bag.out.parameters(), lr=RATE)
    ]  # fmt: skip
    for _ in range(epochs):
        rng.shuffle(order)
        losses = []
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            seen = [rng.sample(rows[i], max(1, round(len(rows[i]) * kept))) for i in some]
            loss = nn.functional.cross_entropy(bag(seen), wanted[some])
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimiser in optimisers:
                optimiser.step()
            losses.append(float(loss.detach()))
        yield sum(losses) / len(losses)
