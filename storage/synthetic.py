"""A made-up trace, for when there is no recorded one: popular experts whose popularity drifts, topics, and reuse.

What it imitates, and only that: an uneven use of experts (a Zipf law; with the default exponent the top quarter of a
layer's experts gets about 0.57 of its traffic before topics are added, as in the bundled demo model), a slow exchange
of which experts are the popular ones, topics that change from turn to turn, and tokens that repeat some of the experts
of the token before. It ranks policies roughly; a recorded trace of the user's own prompts ranks them truly.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from storage.trace import Request

ZIPF_EXPONENT = 0.6
TOPIC_SPREAD = 1.0
"""Standard deviation, in logits, of what a topic adds to an expert."""
TOPIC_KEPT = 0.7
"""Correlation of one turn's topic with the next one's."""
REPEAT_BONUS = 0.9
"""Logits added to the experts of the token before."""
DRIFT = 0.02
"""Chance that two experts of a layer exchange their popularity at a token."""


def synthetic_requests(
    seed: int,
    *,
    n_layers: int = 4,
    n_experts: int = 384,
    n_chosen: int = 6,
    n_turns: int = 12,
    prompt_tokens: int = 200,
    reply_tokens: int = 150,
) -> Iterator[Request]:
    """A conversation's requests: per turn one prefill step of `prompt_tokens`, then a decode step per reply token."""
    random = np.random.default_rng(seed)
    popularity = [random.permutation(-ZIPF_EXPONENT * np.log(np.arange(1, n_experts + 1))) for _ in range(n_layers)]
    topic = random.normal(size=(n_layers, n_experts))
    step = 0
    for _ in range(n_turns):
        fresh = random.normal(size=topic.shape)
        topic = TOPIC_KEPT * topic + (1 - TOPIC_KEPT**2) ** 0.5 * fresh
        chosen: list[list[NDArray[np.int64]]] = [[] for _ in range(n_layers)]
        for layer in range(n_layers):
            last = np.empty(0, np.int64)
            for _ in range(prompt_tokens + reply_tokens):
                if random.random() < DRIFT:
                    a, b = random.integers(n_experts, size=2)
                    popularity[layer][[a, b]] = popularity[layer][[b, a]]
                logits = popularity[layer] + TOPIC_SPREAD * topic[layer] + random.gumbel(size=n_experts)
                logits[last] += REPEAT_BONUS
                last = np.argpartition(-logits, n_chosen)[:n_chosen]
                chosen[layer].append(last)
        for layer in range(n_layers):
            union = np.unique(np.concatenate(chosen[layer][:prompt_tokens]))
            yield Request(step=step, phase="prefill", layer=layer, experts=tuple(union.tolist()))
        step += 1
        for token in range(prompt_tokens, prompt_tokens + reply_tokens):
            for layer in range(n_layers):
                experts = tuple(chosen[layer][token].tolist())
                yield Request(step=step, phase="decode", layer=layer, experts=experts)
            step += 1
