"""What watches a model's requests for experts: the usage profile and the recorded trace. Neither can fail a turn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from storage.profile import UsageProfile
from storage.trace import TraceWriter
from storage.waves import Phase


class Observers:
    """The watchers of one model. For the thread that runs it."""

    def __init__(self, *, profile: UsageProfile | None, trace: TraceWriter | None) -> None:
        """`trace` is closed with this."""
        self.profile = profile
        self._trace = trace
        self._last_layer = -1

    @classmethod
    def open(
        cls,
        n_experts: Mapping[int, int],
        *,
        profile: tuple[Path, str] | None,
        trace: Path | None,
        say: Callable[[str], None],
    ) -> "Observers":
        """Begin to watch; `profile` is a file and the checkpoint's fingerprint. Raises: TraceError."""
        return cls(
            profile=None if profile is None else UsageProfile.load(*profile, n_experts, on_notice=say),
            trace=None if trace is None else TraceWriter(trace, n_experts, on_notice=say),
        )

    def record(self, layer: int, experts: Sequence[int], phase: Phase) -> None:
        """A layer asked for these distinct experts."""
        if self.profile is not None:
            self.profile.record(layer, experts, phase)
        if self._trace is not None:
            # A forward asks layer by layer upwards, each once, whether it is a prompt's chunk or a token.
            if layer <= self._last_layer:
                self._trace.next_step()
            self._last_layer = layer
            self._trace.record(layer, experts, phase)

    def end_turn(self) -> None:
        """Take the turn into the profile, and write what was recorded."""
        if self.profile is not None:
            self.profile.end_turn()
            self.profile.save()
        if self._trace is not None:
            self._trace.flush()

    def close(self) -> None:
        """Write what is left. A second call does nothing."""
        if self.profile is not None:
            self.profile.save(force=True)
        if self._trace is not None:
            self._trace.close()
