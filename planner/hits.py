"""How often an expert is in memory when it is asked for: a popularity law, and what a cache of a size makes of it.

Each layer's request of a step is k distinct experts of E. Which, is modelled as independent from step to step: expert i
is asked for with probability p_i (the independent reference model), and a cache keeps what was asked for within its
characteristic time: Che, Tung and Wang 2002. What that leaves out, that one token repeats the experts of the token
before, and that the policy counts uses, is in the exponents: they are fitted to traces replayed through the real slot
tables (`tests/planner/test_hits.py`), not to the popularity alone.

No numpy: a plan is made in half a second, of which importing numpy would be a fifth, and more from a cold disk.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, expm1, inf, log1p

ZIPF_EXPONENT = 1.0
"""Fitted: see the module."""
SHARPENING = 1.5
"""Power of a watched share, fitted likewise: a token asks for what the one before it did more than shares say."""
PROFILE_WEIGHT = 0.9
"""Of what was watched; the rest is spread over all, for a profile never saw what was not asked for yet."""

_N_TIMES = 120
_TIMES = (0.0, *(0.05 * (1e6 / 0.05) ** (i / (_N_TIMES - 1)) for i in range(_N_TIMES)))
"""Steps at which the law is evaluated; between them it is interpolated."""
_MOST_STEPS = 256
"""Of an answer, that are looked at: a longer one is looked at in so many even parts."""

Curve = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """One layer's law. Kept as curves over time, so that any size and any length of an answer is a look-up."""

    chances: tuple[float, ...]
    """Of each expert to be asked for in a step."""
    n_used: int

    @classmethod
    def zipf(cls, n_experts: int, n_used: int, exponent: float = ZIPF_EXPONENT) -> "Popularity":
        """The law for a layer nobody has watched yet."""
        return _zipf(n_experts, min(n_used, n_experts), exponent)

    @classmethod
    def watched(cls, shares: Sequence[float], n_used: int) -> "Popularity":
        """The law of a layer whose experts had these shares of its traffic."""
        n_experts, total = len(shares), sum(shares)
        n_used = min(n_used, n_experts)
        if not total:
            return cls.zipf(n_experts, n_used)
        spread = (1 - PROFILE_WEIGHT) / n_experts
        weights = [(PROFILE_WEIGHT * share / total + spread) ** SHARPENING for share in shares]
        return cls(chances=_inclusion(weights, n_used), n_used=n_used)

    @cached_property
    def kept(self) -> tuple[Curve, Curve]:
        """Two curves over `_TIMES`: distinct experts asked for within the time, and hits of a step that finds them."""
        sizes, found = [], []
        for time in _TIMES:
            asked = [(chance, n * _within(chance, time)) for chance, n in self._alike]
            sizes.append(sum(n for _, n in asked))
            found.append(sum(chance * n for chance, n in asked))
        return sizes, found

    def distinct(self, n_steps: float) -> float:
        """Distinct experts that so many steps ask for."""
        known = self._distinct.get(n_steps)
        if known is None:
            known = self._distinct[n_steps] = sum(n * _within(chance, n_steps) for chance, n in self._alike)
        return known

    def hits(self, n_slots: int) -> float:
        """Share of the experts asked for that are in memory, once warm."""
        if n_slots >= len(self.chances):
            return 1.0
        sizes, found = self.kept
        full = _at(min(n_slots, sizes[-1]), sizes, _TIMES)
        return _at(full, _TIMES, found) / self.n_used

    def hits_after(self, n_slots: int, rows: int, n_steps: int) -> float:
        """The same over the `n_steps` steps that follow a prompt of `rows` rows, before which all slots were empty.

        A prompt that asked for fewer experts than there are slots left them all. A longer one left some of what it
        read, no more likely to be asked for than others, and they make room one by one for what is.
        """
        sizes, found = self.kept
        full = _at(min(n_slots, sizes[-1]), sizes, _TIMES)
        fits = rows <= full
        n = min(n_steps, _MOST_STEPS)
        shares = []
        for i in range(n):
            step = min((i + 0.5) * n_steps / n - 0.5 + (rows if fits else 0), full)
            share = _at(step, _TIMES, found) / self.n_used
            if not fits:
                left = max(0.0, n_slots - _at(step, _TIMES, sizes)) / len(self.chances)
                share += left * (1 - share)
            shares.append(share)
        return sum(shares) / n

    def by_slots(self) -> list[float]:
        """Hits of one step, once warm, for 0, 1, 2 ... E slots: concave."""
        sizes, found = self.kept
        return [*(_at(n, sizes, found) for n in range(len(self.chances))), float(self.n_used)]

    @cached_property
    def _distinct(self) -> dict[float, float]:
        """By steps: layers with one law are asked the same, and so are the advice's other machines."""
        return {}

    @cached_property
    def _alike(self) -> list[tuple[float, int]]:
        """Each chance, and how many experts have it: most of a profile's were never asked for."""
        return list(Counter(self.chances).items())


def _within(chance: float, n_steps: float) -> float:
    """Chance to be asked for at least once in so many steps."""
    if chance >= 1.0:
        return 1.0 if n_steps > 0 else 0.0
    return -expm1(n_steps * log1p(-chance))


def _at(x: float, xs: Curve, ys: Curve) -> float:
    """The curve through the points, straight between them and level beyond; `xs` rise."""
    i = bisect_right(xs, x)
    if i == 0:
        return ys[0]
    if i == len(xs) or xs[i] == xs[i - 1]:
        return ys[i - 1]
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


@lru_cache(maxsize=16)
def _zipf(n_experts: int, n_used: int, exponent: float) -> Popularity:
    return Popularity(chances=_inclusion([i**-exponent for i in range(1, n_experts + 1)], n_used), n_used=n_used)


def _inclusion(weights: Iterable[float], n_used: int) -> tuple[float, ...]:
    """Chance of each item to be among `n_used` drawn without replacement in proportion to `weights`.

    By the exponential race: item i is in if its clock of rate w_i rings before a common time that makes the sum right.
    The sum grows with the time by ever less, so Newton's steps from below never go past it.
    """
    weights = list(weights)
    if n_used >= len(weights):
        return (1.0,) * len(weights)
    total = sum(weights)
    alike = Counter(weight / total for weight in weights)
    time, missing = 0.0, inf
    for _ in range(60):
        stays = [(rate, n, exp(-rate * time)) for rate, n in alike.items()]
        missing = n_used - sum(n * (1 - stay) for _, n, stay in stays)
        slope = sum(rate * n * stay for rate, n, stay in stays)
        if missing <= 1e-9 * n_used or time > 1e12 or slope <= 0:
            break
        time += missing / slope
    if missing > 1e-6 * n_used:  # fewer items with any weight than are drawn
        return tuple(min(1.0, weight / total * n_used) for weight in weights)
    chances = {rate: 1 - exp(-rate * time) for rate in alike}
    return tuple(chances[weight / total] for weight in weights)
