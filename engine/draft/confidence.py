"""How likely each draft is to be right: the head's own confidence, corrected by how often it was.

The one thing a reader would get wrong: what is learned from is a draft whose predecessors were all right. One that was
verified behind a wrong one says nothing, whatever the model would have said there.
"""

import math
from bisect import bisect
from collections.abc import Sequence

_EDGES = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
"""Borders between classes of confidence, as log-odds."""

_PRIOR_WEIGHT = 2.0
"""Outcomes that the head's own opinion is worth, until there are some."""

_KEEP = 0.97
"""What an older outcome of a class counts after each new one."""


class Calibration:
    """Outcomes by class of confidence."""

    def __init__(self) -> None:
        self._right = [0.0] * (len(_EDGES) + 1)
        self._seen = [0.0] * (len(_EDGES) + 1)

    def chance(self, confidence: float) -> float:
        """Probability that a draft of this confidence is right, given that those before it are."""
        if not math.isfinite(confidence):
            return 0.0
        slot = bisect(_EDGES, confidence)
        believed = 1 / (1 + math.exp(-max(-30.0, min(30.0, confidence))))
        return (self._right[slot] + _PRIOR_WEIGHT * believed) / (self._seen[slot] + _PRIOR_WEIGHT)

    def learn(self, confidence: Sequence[float], n_right: int) -> None:
        """Take in a round: the confidence of each verified draft, and how many were right from the first on."""
        for index in range(min(n_right + 1, len(confidence))):
            if math.isfinite(confidence[index]):
                slot = bisect(_EDGES, confidence[index])
                self._right[slot] = self._right[slot] * _KEEP + (index < n_right)
                self._seen[slot] = self._seen[slot] * _KEEP + 1


def expected_tokens(chances: Sequence[float]) -> float:
    """Tokens that a forward is expected to give when these drafts are verified: the right ones, and one of its own."""
    total, reached = 1.0, 1.0
    for chance in chances:
        reached *= chance
        total += reached
    return total
