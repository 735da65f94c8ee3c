"""What a command or a screen needs of whatever generates: one protocol, and the records that cross it.

The one thing a reader would get wrong: a request carries the whole conversation, every time. Which of it is new is the
backend's business: it compares token ids with the states it kept and reads only what none of them holds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.progress import CountProgress
from app.values import Effort
from engine.events import Event, LoadProgress, Notice, PrefillProgress
from engine.prompt import Message
from engine.sampler_settings import SamplerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One conversation, and how its next turn is to be answered."""

    messages: tuple[Message, ...] = ()
    """The conversation up to what is to be answered. The last is a user message, or an answer to be continued."""
    raw_text: str | None = None
    """Text to be continued as it stands, with no chat template around it; then `messages` is empty."""
    effort: Effort
    sampling: SamplerSettings
    """With a seed, always: the reply can be made again."""
    max_tokens: int
    """Most tokens of the reply, thinking included."""
    replay: bool = False
    """Read everything again from an empty state, as one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCost:
    """What a request would cost before its first token."""

    prompt_tokens: int
    """Tokens of the whole prompt."""
    reused_tokens: int
    """How many of them a kept state holds; the others are read."""
    context_tokens: int
    """The most positions a conversation of this model can have."""
    expected_s: float | None
    """Time to the first token at the rates seen so far; None before there were any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a reply depends on besides its request: enough to make it again, or to say why it cannot be."""

    model: str
    """The checkpoint's folder."""
    is_demo: bool
    fingerprint: str
    """Of the shards' headers and the config files: `storage.fingerprint`."""
    numerics: str
    index_owner: str
    kernels: str
    """The path the arithmetic takes: "torch", or the instruction set of the native one."""
    version: str
    """Of Artesian."""


OpenEvent = LoadProgress | CountProgress | Notice
"""What opening reports: how far it is, and what the user should know."""


class Backend(Protocol):
    """Something that answers. Used from one thread at a time, but for `measure`, `reading` and `close`."""

    def measure(self, request: TurnRequest) -> PromptCost:
        """What the prompt takes; loads no weights. From any thread, also while a turn is answered.

        Raises: ContextOverflow when it leaves no place for an answer; PromptError when it cannot be run.
        """
        ...

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        """Make ready to generate; may take minutes. Raises: Stopped once `should_stop()` says so."""
        ...

    def facts(self) -> RunFacts:
        """What replies depend on. After `open`."""
        ...

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """Answer; the last event is TurnDone, also when `should_stop()` ended it."""
        ...

    def reading(self) -> PrefillProgress | None:
        """How far the prompt is read now, between two events of `generate`; None when none is. From any thread."""
        ...

    def warm(self, should_stop: Callable[[], bool]) -> int:
        """Read what is likely to be needed while nobody waits, until `should_stop()`; how many experts it read."""
        ...

    def save_state(self, path: Path, request: TurnRequest) -> int:
        """Write the states kept of the request's conversation to a file; its bytes, 0 when none is kept.

        A request that is to be answered next, or the one that was, with its reply as an answer to be continued, keeps
        the most. Raises: SavedStateError when it cannot be written; what was there before stays then.
        """
        ...

    def restore_state(self, path: Path) -> int:
        """Take the states in a file among the kept ones; how many tokens of a conversation they hold. After `open`.

        Raises: SavedStateError when it is damaged, or of another model, mode or version. Reading again is always
        possible then.
        """
        ...

    def close(self) -> None:
        """Give back everything; safe to call twice, without `open`, and from another thread: a turn or an opening in
        the works is stopped and waited for.
        """
        ...
