"""Where the time of forwards goes: every moment between `begin` and the last `lap` belongs to exactly one phase.

The one thing a reader would get wrong: a lap names the phase that *ends* now. Code is never bracketed, so no moment is
counted twice and none is lost; what a forward does between its named parts is "other".
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from engine.events import Phase, PhaseFigures, Work

PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTotals:
    """What the clock of a model has counted so far."""

    seconds: Mapping[Phase, float]
    bytes: Mapping[Phase, int]
    """Stored weights the arithmetic went through, as they lie in memory; of "expert_reads", what the drives gave."""

    def since(self, before: "PhaseTotals") -> "PhaseTotals":
        """What was counted between `before` and this."""
        return PhaseTotals(
            seconds={phase: self.seconds[phase] - before.seconds[phase] for phase in PHASES},
            bytes={phase: self.bytes[phase] - before.bytes[phase] for phase in PHASES},
        )

    def plus(self, other: "PhaseTotals") -> "PhaseTotals":
        """Both together."""
        return PhaseTotals(
            seconds={phase: self.seconds[phase] + other.seconds[phase] for phase in PHASES},
            bytes={phase: self.bytes[phase] + other.bytes[phase] for phase in PHASES},
        )

    def figures(self, work: Work, total_s: float | None = None) -> tuple[PhaseFigures, ...]:
        """As records, in the order of `PHASES`; what `total_s` holds beyond the phases' sum is "other"."""
        rest_s = 0.0 if total_s is None else max(0.0, total_s - sum(self.seconds.values()))
        return tuple(
            PhaseFigures(
                work=work,
                phase=phase,
                seconds=self.seconds[phase] + (rest_s if phase == "other" else 0.0),
                bytes=self.bytes[phase],
                rate_bytes_s=self.bytes[phase] / self.seconds[phase] if self.seconds[phase] > 0 else 0.0,
            )
            for phase in PHASES
        )


class PhaseClock:
    """Counts seconds and bytes by phase. For the thread that runs the model.

    A lap takes 0.3 microseconds; a released forward of 40 layers has about 500 of them.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._last = now()
        self._seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._bytes: dict[Phase, int] = dict.fromkeys(PHASES, 0)

    def begin(self) -> None:
        """A forward begins; the time since the last lap belongs to nobody."""
        self._last = self._now()

    def lap(self, phase: Phase, n_bytes: int = 0) -> None:
        """The time since the last lap was `phase`, which went through `n_bytes`."""
        now = self._now()
        self._seconds[phase] += now - self._last
        self._bytes[phase] += n_bytes
        self._last = now

    def waited(self, seconds: float, read_bytes: int) -> None:
        """Of the time since the last lap, `seconds` were waits for experts, `read_bytes` of them; the rest is other."""
        self.lap("other")
        self._seconds["other"] -= seconds
        self._seconds["expert_reads"] += seconds
        self._bytes["expert_reads"] += read_bytes

    def totals(self) -> PhaseTotals:
        """Everything counted so far."""
        return PhaseTotals(seconds=dict(self._seconds), bytes=dict(self._bytes))
