"""What a transcript is made of, once it has been read: plain frozen records.

The one thing a reader would get wrong: `thinking`, `text` and `ids` are three views of one reply. The ids are what the
model drew, both parts in order, and count when a conversation is resumed; text is what people read.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from app.backends.base import RunFacts
from app.values import Effort
from engine.events import DoneReason, TurnStats
from engine.sampler_settings import SamplerSettings

Role = Literal["system", "user", "assistant"]
Status = Literal["complete", "stopped", "failed", "growing", "cut"]
"""How a message ended: by itself; by the user; by an error; not yet; at a limit or with the process that wrote it."""

UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)
"""Stands where a file does not say when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of the model for a reply. A reply has one, and one more each time it was continued."""

    first: int
    """How many ids the reply had before it."""
    first_text: int = 0
    """How many characters its text had."""
    first_thinking: int = 0
    """How many characters its thinking had."""
    effort: Effort
    sampling: SamplerSettings
    """With the seed."""
    max_tokens: int
    facts: RunFacts | None = None
    stats: TurnStats | None = None
    reason: DoneReason | None = None
    """None while it runs, and when it failed or was cut off with its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One message of the tree."""

    id: str
    """Unique in its transcript."""
    parent: str | None
    """The id of the message before it; None for a first one."""
    role: Role
    text: str = ""
    thinking: str = ""
    """The reasoning before the answer; kept, whether or not prompts use it."""
    ids: tuple[int, ...] = ()
    """The ids as they were drawn, reasoning included, end token not; empty when they are not known."""
    status: Status = "complete"
    reason: DoneReason | None = None
    """Why a reply ended. A cut one without a reason was being written when its process died."""
    error: str = ""
    """What a failed reply failed of."""
    notices: tuple[str, ...] = ()
    """What was reported while it was made."""
    runs: tuple[Run, ...] = ()
    """For a reply: the calls that made it, in order."""
    created: datetime = UNKNOWN_TIME

    @property
    def facts(self) -> RunFacts | None:
        """What the newest run depended on."""
        return self.runs[-1].facts if self.runs else None

    @property
    def stats(self) -> TurnStats | None:
        """The figures of the newest run."""
        return self.runs[-1].stats if self.runs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptInfo:
    """What a list of transcripts shows of one."""

    id: str
    """The file's name without its ending."""
    path: Path
    title: str
    """As given, else the first line the user wrote; "" for an empty one. Not yet safe for a terminal."""
    created: datetime
    updated: datetime
    """When the file last changed."""
    n_messages: int
    """Messages in the file, all branches."""
    size_bytes: int
