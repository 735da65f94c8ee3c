"""What forwards take, as measured: one token by itself, a draft round, and each draft that is verified.

Waits for drives are part of it, so the numbers follow the cache as it warms and the context as it grows: recent ones
count more. Seconds in, seconds out; knows nothing of acceptance.
"""

_HALF_LIFE = 8
"""Measurements after which one counts half."""

_HALF_LIFE_TOKENS = 64
"""Tokens after which a plain token's price counts half: a cache that warms makes early ones far too dear."""

_OUTLIER = 4.0
"""A measurement counts at most this many times the mean: one page fault of the machine is not a price."""

_FIRST_GUESS = 0.25
"""Price of one more draft, in plain tokens, before any was measured."""


class _Mean:
    """A mean that forgets."""

    def __init__(self) -> None:
        self._total = self._weight = 0.0
        self.n = 0

    def add(self, value: float, age_tokens: int = 0) -> None:
        """One more measurement, so many tokens after the last."""
        keep = 0.5 ** (1 / _HALF_LIFE + age_tokens / _HALF_LIFE_TOKENS)
        capped = value if self.n < 2 else min(value, _OUTLIER * self.value)
        self._total, self._weight = self._total * keep + capped, self._weight * keep + 1
        self.n += 1

    @property
    def value(self) -> float:
        """The mean so far; 0 before the first."""
        return self._total / self._weight if self.n else 0.0


class Costs:
    """Measured prices of decoding, in seconds."""

    def __init__(self) -> None:
        self._plain = _Mean()
        self._propose = _Mean()
        self._drafts = _Mean()
        self._verify = _Mean()

    def add_plain(self, seconds: float, age_tokens: int = 0) -> None:
        """A forward of one token took so long, `age_tokens` after the last that was measured."""
        self._plain.add(seconds, age_tokens)

    def add_proposal(self, seconds: float) -> None:
        """The draft head took so long."""
        self._propose.add(seconds)

    def add_verified(self, n_drafts: int, seconds: float) -> None:
        """A forward of a token and `n_drafts` drafts took so long."""
        self._verify.add(seconds)
        self._drafts.add(n_drafts)

    @property
    def n_plain(self) -> int:
        """How often a token by itself was measured."""
        return self._plain.n

    @property
    def plain_s(self) -> float:
        """A token by itself; 0 when not known."""
        return self._plain.value

    def round_s(self, n_drafts: int) -> float:
        """A proposal and the forward that verifies `n_drafts` of it, as far as can be said."""
        return self._propose.value + self.plain_s + n_drafts * self._draft_s()

    def _draft_s(self) -> float:
        if not self._verify.n or not self._plain.n:
            return _FIRST_GUESS * self.plain_s
        # Never quite free: a cache that warms between the two means would else make it look so.
        each = (self._verify.value - self.plain_s) / self._drafts.value
        return max(0.02 * self.plain_s, each)
