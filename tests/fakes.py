"""Stand-ins with behaviour of their own, for tests that need no model, drive or clock."""

from collections.abc import Callable, Iterator, Sequence

from app.backends.base import TurnRequest
from engine.events import Event, LoadProgress, TurnDone, TurnStats


class ScriptedBackend:
    """Answers with given events. Looks at `should_stop` before each one and then ends the turn as an engine would."""

    def __init__(
        self,
        events: Sequence[Event] = (),
        *,
        prompt_tokens: int = 5,
        loading: Sequence[LoadProgress] = (),
        failure: Exception | None = None,
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        """`failure` is raised after the events; `before_each` runs before every event."""
        self.requests: list[TurnRequest] = []
        self.opened = False
        self.closed = False
        self._events = events
        self._prompt_tokens = prompt_tokens
        self._loading = loading
        self._failure = failure
        self._before_each = before_each

    def measure(self, request: TurnRequest) -> int:
        """The number the script was given."""
        self.requests.append(request)
        return self._prompt_tokens

    def open(self, on_progress: Callable[[LoadProgress], None], should_stop: Callable[[], bool]) -> None:
        """Report the scripted loading."""
        for event in self._loading:
            on_progress(event)
        self.opened = True

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """The script, cut off with a "stopped" when asked."""
        for event in self._events:
            self._before_each()
            if should_stop():
                yield turn_done("stopped")
                return
            yield event
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


def turn_done(
    reason: str = "stop", *, answer_tokens: int = 3, thinking_tokens: int = 0, read_bytes: int = 0
) -> TurnDone:
    """The last event of a turn with round figures: 5 prompt tokens in 0.5 s, the reply in 2 s."""
    stats = TurnStats(
        prompt_tokens=5,
        reused_tokens=0,
        answer_tokens=answer_tokens,
        thinking_tokens=thinking_tokens,
        prefill_s=0.5,
        decode_s=2.0,
        read_bytes=read_bytes,
    )
    return TurnDone(reason=reason, stats=stats)
