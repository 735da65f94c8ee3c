"""`python -m assets.demo_recipe.baseline`: how far the data go, in two minutes instead of two hours.

A linear classifier over words, pairs of words and groups of letters learns which answer a question gets, and is asked
the held-out ones. It knows no order beyond that, so it is a floor to hold the model against, and says at once
whether more phrasings help. The one thing a reader would get wrong: it picks an answer, the model has to write it.
"""

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from assets.demo_recipe.blocks import bare
from assets.demo_recipe.questions import Question, held_out, load

WIDTH = 128
RATE = 4e-3
BATCH = 128
KEPT = 0.7
"""Share of a question's features that a step of training sees."""
_LETTERS = (3, 4)


def features(text: str) -> list[str]:
    """What is counted of a question: words, pairs of neighbours, groups of letters."""
    words = bare(text).split()
    line = f" {' '.join(words)} "
    pairs = [f"{a} {b}" for a, b in pairwise(words)]
    groups = [f"/{line[i : i + n]}" for n in _LETTERS for i in range(len(line) - n + 1)]
    return [*dict.fromkeys((*words, *pairs, *groups))]


class Baseline(nn.Module):
    """Means of feature vectors, then one matrix."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__()
        counts = Counter(feature for question in questions for feature in features(question.text))
        known = [feature for feature, n in counts.items() if n > 1]
        self._ids = {feature: i for i, feature in enumerate(known)}
        self.answers = [*dict.fromkeys(question.answer for question in questions)]
        self.vectors = nn.EmbeddingBag(len(known) + 1, WIDTH, mode="mean", sparse=True)
        self.out = nn.Linear(WIDTH, len(self.answers))

    def ids(self, text: str) -> list[int]:
        """The known features of a question; one that stands for none of them where there are none."""
        return [self._ids[feature] for feature in features(text) if feature in self._ids] or [len(self._ids)]

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """[B, A] logits of the answers."""
        flat = torch.tensor([i for row in rows for i in row])
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        logits: Tensor = self.out(self.vectors(flat, starts))
        return logits


def train(questions: Sequence[Question], epochs: int, *, seed: int = 0) -> Iterator[tuple[Baseline, float]]:
    """The classifier after each epoch, and the epoch's mean loss."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Baseline(questions)
    rows = [model.ids(question.text) for question in questions]
    number = {answer: i for i, answer in enumerate(model.answers)}
    wanted = torch.tensor([number[question.answer] for question in questions])
    optimisers = [
        torch.optim.SparseAdam(model.vectors.parameters(), lr=RATE),
        torch.optim.Adam(model.out.parameters(), lr=RATE),
    ]
    order = [*range(len(rows))]
    for _ in range(epochs):
        rng.shuffle(order)
        losses = []
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            seen = [rng.sample(rows[i], max(1, int(len(rows[i]) * KEPT))) for i in some]
            loss = nn.functional.cross_entropy(model(seen), wanted[some])
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimiser in optimisers:
                optimiser.step()
            losses.append(float(loss.detach()))
        yield model, sum(losses) / len(losses)


@torch.no_grad()
def judge(model: Baseline, held: Sequence[Question], declines: set[str]) -> dict[str, tuple[int, int]]:
    """Right and asked, by kind; to decline is right with any of its wordings."""
    right, asked = defaultdict[str, int](int), defaultdict[str, int](int)
    for question, logits in zip(held, model([model.ids(question.text) for question in held]), strict=True):
        answer = model.answers[int(logits.argmax())]
        asked[question.kind] += 1
        right[question.kind] += answer in declines if question.kind == "unknown" else answer == question.answer
    return {kind: (right[kind], n) for kind, n in asked.items()}


def main() -> int:
    """Train and judge, an epoch a line."""
    parser = argparse.ArgumentParser(prog="python -m assets.demo_recipe.baseline", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the phrasings [1]")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    questions = load()
    rng = random.Random(1)
    seen = [question for question in questions.all if not question.before and rng.random() < args.share]
    declines = {block.answer for block in questions.blocks if block.share}
    for epoch, (model, loss) in enumerate(train(seen, args.epochs), 1):
        results = ", ".join(f"{kind} {n} of {of}" for kind, (n, of) in judge(model, held_out(), declines).items())
        print(f"{len(seen):,} phrasings, epoch {epoch}, loss {loss:.3f}: {results}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
