"""A head start for the embedding: what a token says about the answer, learned by a classifier in a minute.

A model that knows nothing needs a hundred thousand questions before it sees that the words of a question decide the
answer. A linear classifier over the mean of token vectors sees it at once, and attention that knows nothing yet is such
a mean. The one thing a reader would get wrong: the vectors are only where training starts, and all of them move on.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from assets.demo_recipe.bag import Bag, learn
from assets.demo_recipe.questions import Question

EPOCHS = 5
KEPT = 0.8
"""Share of a question's tokens that a step sees."""
OWN_STD = 0.6
TOPIC_STD = 0.8
"""Of a vector's random part, by which tokens are told apart, and of what was learned."""


def topic_vectors(
    questions: Sequence[Question], encode: Callable[[str], list[int]], vocab_size: int, width: int, *,
    epochs: int = EPOCHS, seed: int = 0,
) -> Tensor:  # fmt: skip
    """[V, D] vectors whose mean over a question's tokens says which answer it gets."""
    generator = torch.Generator().manual_seed(seed)
    number = {answer: i for i, answer in enumerate(dict.fromkeys(question.answer for question in questions))}
    bag = Bag(vocab_size, len(number), width)
    with torch.no_grad():
        bag.vectors.weight.normal_(std=0.3, generator=generator)
        bag.out.weight.normal_(std=width**-0.5, generator=generator)
        bag.out.bias.zero_()
    rows = [encode(question.text) or [0] for question in questions]
    for _ in learn(bag, rows, [number[question.answer] for question in questions], epochs, kept=KEPT, seed=seed):
        pass
    return bag.vectors.weight.detach()


def start_embedding(embed: nn.Parameter, vectors: Tensor) -> None:
    """Put topic vectors into an embedding that holds random ones of standard deviation 1. Shapes: [V, D]."""
    with torch.no_grad():
        embed.mul_(OWN_STD).add_(vectors, alpha=TOPIC_STD / float(vectors.square().mean().sqrt()))
