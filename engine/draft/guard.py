"""When to draft and when not: the guard compares what a token costs with drafts and without, and stops what loses.

Losses are counted in plain tokens and forgotten as far as they are made up for, so a bad sentence is borne and a bad
text is not. A pause is followed by a trial that is given less, and is passed only by a clear gain, which is the
hysteresis: what is merely even stays as it is. Beyond a small credit, which gains fill up again, a pause lasts until
what was lost is a few tokens in a thousand. So a head that never agrees costs no more than that share, where a trial is
cheap one comes soon, and a text that begins to be predictable has its drafts back within hundreds of tokens.

The one thing a reader would get wrong: acceptance alone says little. Two in five may pay where the experts are in
memory, and four in five may not where every draft is another read. It decides only while the prices are not known, and
where the gain is small.
"""

from collections import deque
from dataclasses import dataclass, field

WINDOW_DRAFTS = 10
"""Drafts over which the accepted share is taken."""

PAUSE_TOKENS = 64
"""The first pause."""

LONGEST_PAUSE_TOKENS = 1024

FIRST_CREDIT = 3.0
MOST_CREDIT = 6.0
"""Plain tokens that may be lost for a pause of `PAUSE_TOKENS`: at first, and once drafting has gained enough."""

LOSS_SHARE = 0.004
"""Of all tokens so many may be lost beyond the credit."""

_MOST_LOST = 2.5
_MOST_LOST_ROUNDS = 1.5
"""Drafting may be behind by so many plain tokens, or by what so many useless rounds of the present size lose: one alone
is bad luck.
"""
_PROVEN = 8.0
"""Plain tokens ahead from which on a stretch is borne twice as long: two bad rounds in a row come to every good head,
and a pause costs it more than they did.
"""
_MOST_LOST_IN_TRIAL = 1.0
_GAIN_TO_PASS = 1.0
"""Plain tokens that a trial must be ahead to end well, after `_TRIAL_ROUNDS` at the latest."""
_TRIAL_ROUNDS = 4
_CLEAR_GAIN = 1.03
"""Plain cost over drafting cost above which a low accepted share is no reason to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Why and for how long drafting stops."""

    tokens: int
    reason: str


@dataclass(slots=True)
class _Stretch:
    """What is known of drafting since it began, or went on after a pause. Times in seconds, leads in plain tokens."""

    trial: bool
    outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW_DRAFTS))
    rounds: int = 0
    seconds: float = 0.0
    worth_s: float = 0.0
    """What the same tokens would have taken one by one."""
    ahead: float = 0.0
    lost: float = 0.0
    """How far it is behind since it was last even."""
    losing_s: float = 0.0
    losing_worth_s: float = 0.0
    """`seconds` and `worth_s` since it was last even."""
    useless_round: float = 0.0
    """What the last round would have lost, had no draft been right."""
    unpriced: list[tuple[int, float]] = field(default_factory=list)
    """Tokens and seconds of rounds from before a plain token's price was known."""

    def add(self, n_tokens: int, seconds: float, plain_s: float) -> None:
        """A round gave `n_tokens` in `seconds`, a plain token takes `plain_s`.

        No round is cheaper than a plain token: where one seems so, the price is of a slower time, or of a stall.
        """
        seconds = max(seconds, plain_s)
        self.seconds += seconds
        self.worth_s += n_tokens * plain_s
        ahead = n_tokens - seconds / plain_s
        self.useless_round = seconds / plain_s - 1
        self.ahead += ahead
        self.lost = max(0.0, self.lost - ahead)
        self.losing_s, self.losing_worth_s = (
            (self.losing_s + seconds, self.losing_worth_s + n_tokens * plain_s) if self.lost else (0.0, 0.0)
        )

    @property
    def gain(self) -> float:
        """How many times as fast a token is with drafts as without; 0 when not known."""
        return self.worth_s / self.seconds if self.seconds else 0.0


class Guard:
    """Decides after every round whether the next may be drafted.

    Args:
        min_accept: Share of the last ten drafts that must be right while nothing better is known.
    """

    def __init__(self, min_accept: float) -> None:
        self._min_accept = min_accept
        self._left = 0
        self._credit = FIRST_CREDIT
        self._stretch = _Stretch(trial=False)

    @property
    def paused(self) -> bool:
        """Whether the next token is to be decoded by itself."""
        return self._left > 0

    @property
    def on_trial(self) -> bool:
        """Whether something has yet to be tried for there to be a verdict: in the first round, and after a pause."""
        return self._stretch.trial or self._stretch.rounds == 0

    @property
    def in_doubt(self) -> bool:
        """Whether losses have come near to a pause, so that the price of a plain token had better be fresh."""
        return self._stretch.lost > self._limit / 2

    def plain_token(self) -> None:
        """A token was decoded without a draft round."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._stretch = _Stretch(trial=True)

    def spent(self, n_tokens: float) -> None:
        """What drafting cost beside its rounds, in plain tokens. No reason to stop, but the next pause is as long."""
        self._credit -= n_tokens

    def round(self, n_drafts: int, n_right: int, n_tokens: int, seconds: float, plain_s: float) -> Pause | None:
        """Take in a round that gave `n_tokens`; `plain_s` is 0 while a plain token's cost is not known.

        Returns the pause that begins now, or None.
        """
        now = self._stretch
        now.outcomes.extend([True] * n_right + [False] * (n_drafts - n_right))
        now.rounds += 1
        now.unpriced.append((n_tokens, seconds))
        ahead = now.ahead
        while plain_s and now.unpriced:
            now.add(*now.unpriced.pop(0), plain_s)
        self._credit = min(MOST_CREDIT, self._credit + now.ahead - ahead)
        reason = self._objection()
        if reason:
            self._left = round(min(max(PAUSE_TOKENS, -self._credit / LOSS_SHARE), LONGEST_PAUSE_TOKENS))
            self._credit = min(FIRST_CREDIT, self._credit + self._left * LOSS_SHARE)
            return Pause(tokens=self._left, reason=reason)
        now.trial = now.trial and now.rounds < _TRIAL_ROUNDS
        return None

    def _objection(self) -> str:
        now, n_right = self._stretch, sum(self._stretch.outcomes)
        if now.lost > self._limit:
            return f"a token took {now.losing_s / now.losing_worth_s:.2f} times as long with drafts as without"
        if now.trial and now.rounds >= _TRIAL_ROUNDS and now.seconds and now.ahead < _GAIN_TO_PASS:
            return f"a token was {now.gain:.2f} times as fast with drafts as without, which is no clear gain"
        if len(now.outcomes) == WINDOW_DRAFTS and n_right < self._min_accept * WINDOW_DRAFTS and now.gain < _CLEAR_GAIN:
            return f"{n_right} of the last {WINDOW_DRAFTS} drafts were right"
        return ""

    @property
    def _limit(self) -> float:
        now = self._stretch
        if now.trial:
            return _MOST_LOST_IN_TRIAL
        limit = max(_MOST_LOST, _MOST_LOST_ROUNDS * now.useless_round)
        return 2 * limit if now.ahead + now.lost >= _PROVEN else limit
