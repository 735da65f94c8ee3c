"""What a command or a screen needs of whatever generates: one protocol, and the record of one turn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from app.progress import CountProgress
from app.values import Effort
from engine.events import Event, LoadProgress, Notice
from engine.sampler_settings import SamplerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One question and how it is to be answered."""

    question: str
    system: str
    """The system message, or "" for none."""
    raw: bool
    """Feed the question as it stands, with no chat template around it."""
    effort: Effort
    sampling: SamplerSettings
    """With a seed, always: the reply can be made again."""
    max_tokens: int
    """Most tokens of the reply, thinking included."""


OpenEvent = LoadProgress | CountProgress | Notice
"""What opening reports: how far it is, and what the user should know."""


class Backend(Protocol):
    """Something that answers. Used from one thread at a time."""

    def measure(self, request: TurnRequest) -> int:
        """Tokens of the prompt, without loading any weights. Raises: PromptError when they cannot be run."""
        ...

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        """Make ready to generate; may take minutes. Raises: Stopped once `should_stop()` says so."""
        ...

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """Answer; the last event is TurnDone, also when `should_stop()` ended it."""
        ...

    def close(self) -> None:
        """Give back everything; safe to call twice and without `open`."""
        ...
