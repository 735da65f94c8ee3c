"""Figures of a turn's drafting."""

from engine.draft.guard import Pause
from engine.events import DraftPause, DraftStats


class Tally:
    """Counts rounds, drafts and pauses of one turn. `block_size` is the most drafts of a round."""

    def __init__(self, block_size: int) -> None:
        self._drafted = [0] * block_size
        self._right = [0] * block_size
        self._rounds = self._forwards = self._tokens = 0
        self._propose_s = self._verify_s = 0.0
        self._pauses: list[DraftPause] = []

    def forward(self, n_tokens: int) -> None:
        """A forward, drafted or not, gave `n_tokens`."""
        self._forwards += 1
        self._tokens += n_tokens

    def round(self, n_drafts: int, n_right: int, propose_s: float, verify_s: float) -> None:
        """The head was asked, `n_drafts` of its drafts were verified, and `n_right` from the first on were right."""
        self._rounds += 1
        self._propose_s += propose_s
        self._verify_s += verify_s
        for index in range(n_drafts):
            self._drafted[index] += 1
            self._right[index] += index < n_right

    def pause(self, pause: Pause) -> None:
        """Drafting stops for a while. The first token of the reply came with the prompt."""
        self._pauses.append(DraftPause(after_tokens=self._tokens + 1, tokens=pause.tokens, reason=pause.reason))

    def stats(self, off_reason: str) -> DraftStats:
        """The figures as a record."""
        drafted, right = sum(self._drafted), sum(self._right)
        return DraftStats(
            rounds=self._rounds,
            drafted=drafted,
            accepted=right,
            drafted_by_position=tuple(self._drafted),
            accepted_by_position=tuple(self._right),
            mean_accepted=right / self._rounds if self._rounds else 0.0,
            forwards=self._forwards,
            tokens_per_forward=self._tokens / self._forwards if self._forwards else 0.0,
            propose_s=self._propose_s,
            verify_s=self._verify_s,
            pauses=tuple(self._pauses),
            off_reason=off_reason,
        )
