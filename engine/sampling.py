"""Logits to a token; knows nothing of where the logits came from.

The one thing a reader would get wrong: there is no stream of random numbers. What chance says of a token follows from
the seed and the token's position alone, so a reply that was stopped goes on as if it had not been, and a position drawn
twice, once from the draft head's logits and once from the model's, gives the same token wherever the two distributions
allow it. That is speculative sampling by common random numbers: what is said is always the model's own draw.
"""

import secrets
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import LogitsError
from engine.sampler_settings import SamplerSettings, require_valid

__all__ = ["Sampler", "SamplerSettings"]


class Sampler:
    """Draws tokens under one set of settings. Holds nothing that changes."""

    def __init__(self, settings: SamplerSettings, *, never: Collection[int] = ()) -> None:
        """`never` lists token ids that are not drawn at all, greedily neither (reserved and image tokens).

        Raises: SamplerSettingsError if a setting is out of range.
        """
        require_valid(settings)
        self._settings = settings
        self._never = torch.tensor(sorted(set(never)), dtype=torch.int64)
        # 63 bits, so that any language's signed integer can repeat the run.
        self._seed = secrets.randbits(63) if settings.seed is None else settings.seed

    @property
    def seed(self) -> int:
        """The seed in use: the one given, or the fresh one, which repeats this run."""
        return self._seed

    @property
    def greedy(self) -> bool:
        """Whether every draw is the most likely token, without chance."""
        return self._settings.temperature == 0

    def distribution(self, logits: Tensor) -> Tensor:
        """The probabilities tokens are drawn with; at temperature 0 all of it is on one token.

        Order: temperature, top-k, top-p, min-p, then renormalised. Equal probabilities are ranked by token id, so
        top-k keeps exactly k. Computed in float64 on the CPU.

        Shapes: logits [V], any float type and device; result [V] float64 on the CPU.
        Raises: LogitsError if a logit is NaN or +infinity, or if none may be drawn.
        Source: the order of Hugging Face transformers, generation/utils.py: `_get_logits_processor`.
        """
        scores = self._checked(logits)
        if self.greedy:
            probs = torch.zeros_like(scores)
            probs[_best(scores)] = 1
            return probs
        # The best score is taken off first: a tiny temperature would else divide into infinities.
        probs = torch.softmax((scores - scores.max()) / self._settings.temperature, dim=0)
        probs = _keep_top_k(probs, self._settings.top_k)
        probs = _keep_top_p(probs, self._settings.top_p)
        if self._settings.min_p > 0:
            probs = torch.where(probs >= self._settings.min_p * probs.max(), probs, 0.0)
        return probs / probs.sum()

    def draw(self, logits: Tensor, position: int) -> int:
        """The token of a position of the conversation, counted from 0. Shapes: logits [V].

        Raises: LogitsError as `distribution` does.
        """
        return _best(self._checked(logits)) if self.greedy else self.pick(self.distribution(logits), position)

    def pick(self, probs: Tensor, position: int) -> int:
        """One index of a distribution; `probs` need not add up to 1. Shapes: probs [V] float64, on the CPU.

        Every index waits for a time that is exponential with rate 1 and divided by its weight; the first one wins,
        which happens with a chance in proportion to the weight. Times of one position are the same whatever the
        weights: two distributions with a total variation distance of d give the same index with a chance of at least
        (1 - d) / (1 + d), and an index of weight p is the one that wins with chance p.
        Raises: LogitsError if there is no weight at all.
        Source: the exponential form of the Gumbel-max trick; Daliri, Musco, Suresh: Coupling without communication and
        drafter-invariant speculative decoding (arXiv 2408.07978).
        """
        weights = probs.numpy()
        (kept,) = np.nonzero(weights)
        if not len(kept):
            raise LogitsError("the distribution to draw from has no weight")
        with np.errstate(over="ignore"):  # a weight near the smallest float64 waits for ever
            return int(kept[np.argmin(self.times(position, int(kept[-1]) + 1)[kept] / weights[kept])])

    def times(self, position: int, n: int) -> npt.NDArray[np.float64]:
        """Exponential waiting times of the first n indices at a position: [n], above 0, the same in any n."""
        # NumPy keeps the raw stream of Philox as it is; 53 bits and a half lie strictly between 0 and 1.
        raw = np.random.Philox(key=np.array([self._seed, position], dtype=np.uint64)).random_raw(n)
        return np.asarray(-np.log(((raw >> np.uint64(11)) + 0.5) * 2.0**-53))

    def _checked(self, logits: Tensor) -> Tensor:
        """Float64 scores on the CPU with the barred tokens at -infinity. Shapes: logits [V]."""
        assert logits.dim() == 1, logits.shape
        scores = logits.detach().cpu().double()
        broken = torch.isnan(scores) | torch.isposinf(scores)  # -infinity is a barred token, and welcome
        if bool(broken.any()):
            where = int(torch.nonzero(broken)[0])
            raise LogitsError(
                f"the logit of token {where} is {float(scores[where])}",
                hint="The arithmetic broke down. Check the files with `artesian audit` and `artesian verify`.",
            )
        if len(self._never):
            scores = scores.index_fill(0, self._never[self._never < len(scores)], -torch.inf)
        if bool(torch.isneginf(scores).all()):
            raise LogitsError("no token may be drawn: every logit is -infinity")
        return scores


def _best(scores: Tensor) -> int:
    # torch.argmax promises the first of equal maxima.
    return int(torch.argmax(scores))


def _ranked(probs: Tensor, floor: float) -> Tensor:
    """Ids of the entries at or above `floor`, best first, equals by id. Shapes: probs [V]; result [n]."""
    ids = torch.nonzero(probs >= floor).squeeze(1)
    return ids[torch.sort(probs[ids], descending=True, stable=True).indices]


def _only(probs: Tensor, ids: Tensor) -> Tensor:
    kept = torch.zeros_like(probs)
    kept[ids] = probs[ids]
    return kept


def _keep_top_k(probs: Tensor, k: int) -> Tensor:
    if k == 0 or k >= len(probs):
        return probs
    floor = float(torch.topk(probs, k).values[-1])
    return _only(probs, _ranked(probs, floor)[:k])


def _keep_top_p(probs: Tensor, top_p: float) -> Tensor:
    """Entries up to and including the one at which the weight, of what is left, reaches `top_p`. Shapes: probs [V]."""
    if top_p == 1:
        return probs
    probs = probs / probs.sum()
    # Entries below (1 - top_p) / V weigh less than 1 - top_p together, so the set is found among the others; half of
    # that leaves room for rounding. Sorting all of 129,280 takes 26 ms, sorting what is above, under 1 ms.
    ids = _ranked(probs, (1 - top_p) / (2 * len(probs)))
    before = torch.cumsum(probs[ids], dim=0) - probs[ids]
    return _only(probs, ids[before < top_p])
