"""How often an expert is in memory when it is asked for: a popularity law, and what a cache of a size makes of it.

Each layer's request of a step is k distinct experts of E. Which, is modelled as independent from step to step: expert i
is asked for with probability p_i (the independent reference model), and a cache keeps what was asked for within its
characteristic time: Che, Tung and Wang 2002. What that leaves out, that one token repeats the experts of the token
before, and that the policy counts uses, is in the exponents: they are fitted to traces replayed through the real slot
tables (`tests/planner/test_hits.py`), not to the popularity alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

ZIPF_EXPONENT = 1.0
"""Fitted: see the module."""
SHARPENING = 1.5
"""Power of a watched share, fitted likewise: a token asks for what the one before it did more than shares say."""
PROFILE_WEIGHT = 0.9
"""Of what was watched; the rest is spread over all, for a profile never saw what was not asked for yet."""

_TIMES = np.concatenate(([0.0], np.geomspace(0.05, 1e6, 240)))
"""Steps at which the law is evaluated; between them it is interpolated."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """One layer's law. Kept as curves over time, so that any size and any length of an answer is a look-up."""

    chances: Floats
    """[E] Chance of each expert to be asked for in a step."""
    n_used: int

    @classmethod
    def zipf(cls, n_experts: int, n_used: int, exponent: float = ZIPF_EXPONENT) -> "Popularity":
        """The law for a layer nobody has watched yet."""
        return _zipf(n_experts, min(n_used, n_experts), exponent)

    @classmethod
    def watched(cls, shares: Sequence[float], n_used: int) -> "Popularity":
        """The law of a layer whose experts had these shares of its traffic."""
        seen = np.asarray(shares, dtype=np.float64)
        n_used = min(n_used, seen.size)
        if not seen.sum():
            return cls.zipf(seen.size, n_used)
        weights = (PROFILE_WEIGHT * seen / seen.sum() + (1 - PROFILE_WEIGHT) / seen.size) ** SHARPENING
        return cls(chances=_inclusion(weights, n_used), n_used=n_used)

    @cached_property
    def kept(self) -> tuple[Floats, Floats]:
        """Two curves over `_TIMES`: distinct experts asked for within the time, and hits of a step that finds them."""
        missed = (1 - self.chances)[None, :] ** _TIMES[:, None]  # [times, E]
        return (1 - missed).sum(1), (self.chances * (1 - missed)).sum(1)

    def distinct(self, n_steps: float) -> float:
        """Distinct experts that so many steps ask for."""
        return float((1 - (1 - self.chances) ** n_steps).sum())

    def hits(self, n_slots: int) -> float:
        """Share of the experts asked for that are in memory, once warm."""
        sizes, found = self.kept
        full = float(np.interp(min(n_slots, sizes[-1]), sizes, _TIMES))
        return float(np.interp(full, _TIMES, found)) / self.n_used

    def hits_after(self, n_slots: int, rows: int, n_steps: int) -> float:
        """The same over the `n_steps` steps that follow a prompt of `rows` rows, before which all slots were empty.

        A prompt that asked for fewer experts than there are slots left them all. A longer one left some of what it
        read, no more likely to be asked for than others, and they make room one by one for what is.
        """
        sizes, found = self.kept
        full = float(np.interp(min(n_slots, sizes[-1]), sizes, _TIMES))
        fits = rows <= full
        steps = np.minimum(np.arange(n_steps, dtype=np.float64) + (rows if fits else 0), full)
        share = np.interp(steps, _TIMES, found) / self.n_used
        if not fits:
            left = np.maximum(0.0, n_slots - np.interp(steps, _TIMES, sizes)) / self.chances.size
            share = share + left * (1 - share)
        return float(share.mean())

    def by_slots(self) -> Floats:
        """Hits of one step, once warm, for 0, 1, 2 ... E slots: [E + 1], concave."""
        sizes, found = self.kept
        n_slots = np.arange(self.chances.size + 1, dtype=np.float64)
        curve: Floats = np.interp(n_slots, sizes, found)
        curve[-1] = self.n_used
        return curve


@lru_cache(maxsize=16)
def _zipf(n_experts: int, n_used: int, exponent: float) -> Popularity:
    weights = np.arange(1, n_experts + 1, dtype=np.float64) ** -exponent
    return Popularity(chances=_inclusion(weights, n_used), n_used=n_used)


def _inclusion(weights: Floats, n_used: int) -> Floats:
    """Chance of each item to be among `n_used` drawn without replacement in proportion to `weights`.

    By the exponential race: item i is in if its clock of rate w_i rings before a common time that makes the sum right.
    """
    if n_used >= weights.size:
        return np.ones(weights.size)
    scaled = weights / weights.sum()
    low, high = 0.0, 1.0
    while (1 - np.exp(-scaled * high)).sum() < n_used:
        high *= 2
        if high > 1e12:  # fewer items with any weight than are drawn
            scarce: Floats = np.minimum(1.0, scaled * n_used)
            return scarce
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - np.exp(-scaled * middle)).sum() < n_used else (low, middle)
    chances: Floats = 1 - np.exp(-scaled * high)
    return chances
