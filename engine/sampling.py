"""Logits to a token; knows nothing of where the logits came from.

The one thing a reader would get wrong: `distribution` is the final distribution, after every setting, so that
speculative sampling can compare two of them; a draw spends exactly one uniform number, whatever the settings cut away.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from engine.errors import LogitsError
from engine.sampler_settings import SamplerSettings, require_valid

__all__ = ["Sampler", "SamplerSettings"]


class Sampler:
    """Draws tokens under one set of settings. It holds the random stream of one run: not to be shared by threads."""

    def __init__(self, settings: SamplerSettings, *, never: Collection[int] = ()) -> None:
        """`never` lists token ids that are not drawn at all, greedily neither (reserved and image tokens).

        Raises: SamplerSettingsError if a setting is out of range.
        """
        require_valid(settings)
        self._settings = settings
        self._never = torch.tensor(sorted(set(never)), dtype=torch.int64)
        self._random = torch.Generator("cpu")
        # A seed() draw has 64 bits; the settings take 63, so that any language's signed integer can repeat the run.
        self._seed = self._random.seed() % 2**63 if settings.seed is None else settings.seed
        self._random.manual_seed(self._seed)

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

    def draw(self, logits: Tensor) -> int:
        """One token. Shapes: logits [V]. Raises: LogitsError as `distribution` does."""
        return _best(self._checked(logits)) if self.greedy else self.pick(self.distribution(logits))

    def pick(self, probs: Tensor) -> int:
        """One index of a distribution by inversion of one uniform number; `probs` need not add up to 1.

        Shapes: probs [V] float64, on the CPU. Raises: LogitsError if it has no weight at all.
        """
        cumulative = torch.cumsum(probs, dim=0)
        total = float(cumulative[-1])
        if not total > 0:
            raise LogitsError("the distribution to draw from has no weight")
        index = int(torch.searchsorted(cumulative, self.uniform() * total, right=True))
        # With a subnormal total the product can round up to the total itself, which lies behind every entry.
        return index if index < len(probs) else int(torch.nonzero(probs)[-1])

    def uniform(self) -> float:
        """The next number of the random stream, in [0, 1)."""
        return float(torch.rand((), generator=self._random, dtype=torch.float64))

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
