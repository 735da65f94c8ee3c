"""One model's drafting from turn to turn: whether to ask the head, how many of its drafts to verify, what came of it.

Puts together source, guard, prices and calibration; the arithmetic is theirs. For the thread that runs the model. The
one thing a reader would get wrong: what is learned is kept over turns, the figures are of one turn.
"""

import time
from collections import deque
from collections.abc import Callable

from engine.draft.confidence import Calibration, expected_tokens
from engine.draft.costs import Costs
from engine.draft.guard import Guard
from engine.draft.settings import DraftSettings
from engine.draft.source import Choose, DraftSource, Proposal
from engine.draft.tally import Tally
from engine.draft.verify import Verified, most_drafts
from engine.errors import EngineError, Stopped
from engine.events import DraftStats
from engine.kernels import native
from engine.model import Model
from engine.numerics import NumericsName
from engine.state import State
from storage.errors import StorageError

_FIRST_DRAFTS = 2
"""Most drafts of a round until one of so many was right from end to end, at the start and after a pause."""

_PRICES_WANTED = 2
"""Measurements of a plain token that the first rounds with a wrong draft ask for, before drafting can be judged."""

_PRICE_TOKENS = 32
_LONGEST_PRICE_TOKENS = 256
"""The price of a plain token is measured once in so many tokens, so that the guard has something to compare with: often
at first, and where drafting seems to lose.
"""

_STALLED = 3.0
"""A round is held against drafting for at most this many times its usual price: the rest is the machine's doing."""


class Drafter:
    """Drafts for one open model.

    Attributes:
        off_reason: Why there are no drafts at all; empty while there may be.
    """

    def __init__(
        self,
        source: DraftSource | None,
        settings: DraftSettings,
        *,
        block_size: int,
        off_reason: str = "",
        notices: deque[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Without a `source`, `off_reason` says why. What the user should know is appended to `notices`."""
        self.off_reason = off_reason
        self._source = source
        self._always = settings.mode == "on"
        self._most = block_size if settings.max_drafts is None else min(settings.max_drafts, block_size)
        self._notices = notices
        self._clock = clock
        self._guard = Guard(settings.min_accept)
        self._costs = Costs()
        self._calibration = Calibration()
        self._cap = min(_FIRST_DRAFTS, self._most)
        self._priced_ago = 0
        self._wants_price = False
        self._proposal: Proposal | None = None
        self._began = self._proposed = 0.0
        self._tally = Tally(self._most)

    def begin_turn(self) -> None:
        """Figures start from nothing."""
        self._tally = Tally(self._most)

    def stats(self) -> DraftStats:
        """Figures of the turn so far."""
        return self._tally.stats(self.off_reason)

    def drafts(
        self, state: State, token: int, room: int, choose: Choose, should_stop: Callable[[], bool]
    ) -> tuple[int, ...]:
        """Drafts to verify behind `token`, at most `room`; none for a plain step. `done` follows when it was run.

        Raises: Stopped. A head that fails is given up, which is said once.
        """
        self._proposal = None
        self._began = self._proposed = self._clock()
        if self._source is None or room <= 0 or (not self._always and self._goes_plain()):
            return ()
        room = most_drafts(state, min(room, self._most))
        if room == 0:
            return ()
        self._catch_up(state)
        try:
            proposal = self._source.propose(state, token, room, choose, should_stop)
        except Stopped:
            raise
        except (EngineError, StorageError) as error:
            self._give_up(error)
            return ()
        self._proposed = self._clock()
        self._costs.add_proposal(self._proposed - self._began)
        n = min(room, len(proposal.ids)) if self._always else self._worth_verifying(proposal, room)
        self._proposal = Proposal(ids=proposal.ids[:n], confidence=proposal.confidence[:n])
        return self._proposal.ids

    def done(self, verified: Verified) -> None:
        """The forward that `drafts` was asked for was run."""
        now = self._clock()
        proposal, n_tokens, n_drafts = self._proposal, len(verified.tokens), verified.n_drafts
        self._tally.forward(n_tokens)
        if self._source is None:
            return
        self._priced_ago += n_tokens
        seconds = now - self._began
        if self._costs.n_plain:
            seconds = min(seconds, _STALLED * self._costs.round_s(n_drafts))
        if proposal is None or not proposal.ids:
            self._costs.add_plain(now - self._proposed, self._priced_ago - n_tokens)
            self._priced_ago, self._wants_price = 0, False
        else:
            self._costs.add_verified(len(proposal.ids), now - self._proposed)
            self._calibration.learn(proposal.confidence[:n_drafts], verified.n_right)
            doubtful = self._costs.n_plain < _PRICES_WANTED or seconds < self._costs.plain_s
            self._wants_price = verified.n_right < n_drafts and doubtful
            if verified.n_right == len(proposal.ids) == self._cap:
                self._cap = self._most
        if proposal is None:
            self._guard.plain_token()
            return
        self._tally.round(n_drafts, verified.n_right, self._proposed - self._began, now - self._proposed)
        if self._always:
            return
        pause = self._guard.round(n_drafts, verified.n_right, n_tokens, seconds, self._costs.plain_s)
        if pause is not None:
            self._tally.pause(pause)
            self._cap = min(_FIRST_DRAFTS, self._most)

    def _catch_up(self, state: State) -> None:
        """Make the keys that were put off while nothing was drafted: once, so it is no part of a round's price."""
        if state.draft is None or state.draft.n_waiting <= self._most + 1:
            return
        state.draft.catch_up()
        began, self._began = self._began, self._clock()
        self._proposed = self._began
        if self._costs.n_plain:
            self._guard.spent((self._began - began) / self._costs.plain_s)

    def _goes_plain(self) -> bool:
        """Whether the next token is decoded by itself: while paused, and now and then for its price."""
        if self._guard.paused or self._wants_price:
            return True
        interval = _PRICE_TOKENS
        if not self._guard.in_doubt:
            interval = min(_PRICE_TOKENS << min(self._costs.n_plain, 8), _LONGEST_PRICE_TOKENS)
        return self._priced_ago >= interval

    def _worth_verifying(self, proposal: Proposal, room: int) -> int:
        """How many drafts give the most tokens a second, by the chances of each and what verifying costs."""
        most = min(room, len(proposal.ids), self._cap)
        if not self._costs.n_plain:
            return most
        chances = [self._calibration.chance(confidence) for confidence in proposal.confidence[:most]]
        least = 1 if self._guard.on_trial else 0
        return max(
            range(least, most + 1), key=lambda n: expected_tokens(chances[:n]) / self._costs.round_s(n), default=0
        )

    def _give_up(self, error: Exception) -> None:
        self._source = None
        self.off_reason = f"the draft head failed: {error}"
        if self._notices is not None:
            self._notices.append(f"No more drafts: {self.off_reason}. Answers may take longer.")


def keeps_answers(numerics: NumericsName, *, on_card: bool = False) -> bool:
    """Whether a row's bits do not depend on the rows beside it, so that drafts cannot change what is said.

    So it is with the native kernels in `exact`, as long as no card computes. Torch adds up in an order that depends on
    the number of rows: then two nearly equal logits may change places, and in `reference` one rounding that falls
    otherwise soon changes the text.
    """
    return numerics == "exact" and native() is not None and not on_card


def wants_head(settings: DraftSettings, numerics: NumericsName, *, on_card: bool = False) -> bool:
    """Whether the head is to be loaded: not when nothing would be drafted by it."""
    return settings.mode == "on" or (settings.mode == "auto" and keeps_answers(numerics, on_card=on_card))


def make_drafter(model: Model, settings: DraftSettings) -> Drafter | None:
    """Drafting for an open model; None when it is off. Why a head that is wanted cannot be used is said at once."""
    if settings.mode == "off":
        return None
    block_size, reason = model.config.dspark_block_size, model.no_drafts
    if not keeps_answers(model.numerics.name, on_card=model.computes_on_card):
        why = "on torch's path, on a card, and in `reference` numerics, they could change the answer"
        if settings.mode == "auto":
            reason = why
        else:
            model.notices.append(f"Drafts are made as asked for; {why}.")
    if reason or model.head is None:
        model.notices.append(f"No drafts: {reason}. Answers may take longer.")
        return Drafter(None, settings, block_size=block_size, off_reason=reason)
    return Drafter(model.head, settings, block_size=block_size, notices=model.notices)
