"""What a turn yields: plain frozen records, no tensor in them.

The screen, `ask --json` and the tests eat the same records. `as_json` gives the wire form: the class name in snake case
under `event`, then the fields; units are in the field names.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

DoneReason = Literal["stop", "length", "context", "stopped"]
"""An end token, the token limit, the context limit, or the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """The resident weights are being read."""

    done_bytes: int
    total_bytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgress:
    """The prompt is being read."""

    done_tokens: int
    total_tokens: int
    """Tokens that are read now: those of the prompt that no kept state holds."""
    read_bytes: int
    """Expert and engram bytes read from drives since the turn began."""
    elapsed_s: float
    reused_tokens: int = 0
    """Tokens of the prompt that a kept state holds."""
    expert_hits: int = 0
    """Experts asked for since the turn began that were in memory."""
    expert_misses: int = 0
    """Experts asked for that had to be read."""
    drives: "tuple[DriveFigures, ...]" = ()
    """The drives that were read since, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDrawn:
    """One token was drawn; its text follows, possibly some tokens later, as a delta."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDelta:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the user should know that does not end the turn: a drive that failed and was replaced by another, a
    file that can no longer be read directly, slots too few for a step.
    """

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveFigures:
    """What one drive did in a turn."""

    drive: str
    n_reads: int
    payload_bytes: int
    """Bytes the turn asked it for."""
    read_bytes: int
    """Bytes it delivered: those up to block boundaries included."""
    busy_s: float
    """Time with at least one read in flight."""
    queue_s: float
    """Time that reads waited to begin, summed over them."""
    rate_bytes_s: float
    """Delivered bytes over busy time; 0 when it was not busy."""
    n_errors: int


Work = Literal["prefill", "decode"]
"""Reading the prompt, or drawing the reply."""

Phase = Literal["expert_reads", "experts", "attention", "indexer", "dense", "engram", "head", "draft", "other"]
"""Waiting for the drives to give experts; multiplying by them; the attention halves; choosing groups in them, which
alone grows with the conversation; shared experts, routers, norms and hyper-connections; engram rows and their gates,
the wait for them included; the final norm and the head; the draft head, its reads included; everything else: embedding,
planning, sampling, and Python between the others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """What one phase of the forwards of a turn took."""

    work: Work
    phase: Phase
    seconds: float
    bytes: int
    """Stored weights that the arithmetic went through, as they lie in memory, once a forward; of "expert_reads", what
    the drives gave.
    """
    rate_bytes_s: float
    """Bytes over seconds; 0 when the phase took no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPause:
    """Drafting stopped for a while."""

    after_tokens: int
    """Tokens of the reply by then."""
    tokens: int
    """Tokens to be decoded one by one before drafts are tried again; a pause may reach into the next turn."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """What drafting did in a turn."""

    rounds: int
    """Times the draft head was asked."""
    drafted: int
    """Drafts that were verified."""
    accepted: int
    """Drafts that were right, each behind right ones only."""
    drafted_by_position: tuple[int, ...]
    """Of the first, second, ... draft of a round."""
    accepted_by_position: tuple[int, ...]
    mean_accepted: float
    """Accepted drafts of a round."""
    forwards: int
    """Forwards of the model that decoded, drafted or not."""
    tokens_per_forward: float
    """Tokens drawn of each, an end token included; 1 without drafts."""
    propose_s: float
    """Time in the draft head."""
    verify_s: float
    """Time in the forwards that verified."""
    pauses: tuple[DraftPause, ...]
    """Those that began in this turn."""
    off_reason: str
    """Why there are no drafts at all; empty while there may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """What was planned in memory and what is used, at the end of a turn."""

    ceiling_bytes: int
    """What the process must stay under."""
    planned_bytes: int
    """What the plan's parts come to when all are full."""
    anonymous_bytes: int
    """What the process alone holds now."""
    peak_bytes: int
    """The most it held so far, its program files included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStats:
    """Figures of one turn."""

    prompt_tokens: int
    """Of the whole prompt."""
    reused_tokens: int
    """How many of them a kept state held, so that they were not read again."""
    answer_tokens: int
    thinking_tokens: int
    prefill_s: float
    decode_s: float
    read_bytes: int
    """Expert, engram and embedding bytes read from drives in this turn."""
    expert_hits: int = 0
    """Experts asked for that were in memory."""
    expert_misses: int = 0
    """Experts asked for that had to be read."""
    card_hits: int = 0
    """Of those in memory, the ones that graphics cards multiplied."""
    wait_s: float = 0.0
    """Time the forward waited for experts and engram rows."""
    drives: tuple[DriveFigures, ...] = ()
    """The drives that were read, by name."""
    phases: tuple[PhaseFigures, ...] = ()
    """Where `prefill_s` and `decode_s` went: the phases of each add up to it."""
    draft: DraftStats | None = None
    """None when drafting is off."""
    memory: MemoryFigures | None = None
    """None where nobody planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDone:
    """The turn ended; nothing follows."""

    reason: DoneReason
    stats: TurnStats


Event = LoadProgress | PrefillProgress | TokenDrawn | TextDelta | ThinkingDelta | Notice | TurnDone


def as_json(event: Event) -> dict[str, Any]:
    """The wire form of an event: `{"event": "text_delta", "text": ...}`."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **asdict(event)}
