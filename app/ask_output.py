"""Where the events of one `ask` go: text, token ids or JSON lines to stdout; thinking and figures to stderr."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TextIO

from app.backends.base import TurnRequest
from app.report import envelope, format_bytes, with_rate
from app.sanitize import Stream, one_line
from app.streams import ClosedStream
from engine.events import DraftStats, DriveFigures, Event, TextDelta, ThinkingDelta, TokenDrawn, TurnDone, as_json

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@contextmanager
def answering() -> Iterator[None]:
    """Around what writes to stdout: raises an OSError that says so, and BrokenPipeError as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None or sys.stdout is None or isinstance(sys.stdout, ClosedStream):
            raise  # it says so itself
        text = f"{error.strerror or error}, so the answer cannot be written"
        raise OSError(error.errno, text, "stdout") from error


class Sink(Protocol):
    """Takes a turn's events as they come."""

    def begin(self, facts: Mapping[str, object]) -> None:
        """Before the first event: what is about to be run."""
        ...

    def take(self, event: Event) -> None:
        """One event."""
        ...

    def finish(self) -> None:
        """After the last event, also when the turn failed: whole lines on both streams."""
        ...


def make_sink(output: Literal["text", "ids", "json"], *, shows_thinking: bool) -> Sink:
    """The sink for one form of output."""
    match output:
        case "json":
            return JsonSink()
        case "ids":
            return IdsSink()
        case "text":
            return TextSink(shows_thinking=shows_thinking)


class JsonSink:
    """One envelope a line: first the facts of the turn, then every event."""

    def begin(self, facts: Mapping[str, object]) -> None:
        """Write the facts."""
        print(envelope("ask", dict(facts)), flush=True)

    def take(self, event: Event) -> None:
        """Write the event."""
        print(envelope("event", as_json(event)), flush=True)

    def finish(self) -> None:
        """Nothing: every line is whole."""


class IdsSink:
    """Token ids with blanks between them, thinking included, the end token not."""

    def __init__(self) -> None:
        self._before = ""

    def begin(self, facts: Mapping[str, object]) -> None:
        """Nothing is said."""

    def take(self, event: Event) -> None:
        """Write a drawn token's id."""
        if isinstance(event, TokenDrawn):
            print(f"{self._before}{event.token}", end="", flush=True)
            self._before = " "

    def finish(self) -> None:
        """End the line."""
        if self._before:
            print(flush=True)


class TextSink:
    """The answer to stdout, the thinking before it to stderr under a heading."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._answer = _Pieces(sys.stdout)
        self._thinking = _Pieces(sys.stderr, dim=_takes_colour(sys.stderr))
        self._shows_thinking = shows_thinking

    def begin(self, facts: Mapping[str, object]) -> None:
        """Nothing is said."""

    def take(self, event: Event) -> None:
        """Write a piece of text."""
        if isinstance(event, ThinkingDelta) and self._shows_thinking:
            if not self._thinking.begun:
                sys.stderr.write("thinking:\n")
            self._thinking.write(event.text)
        elif isinstance(event, TextDelta):
            if self._thinking.finish():
                sys.stderr.write("\n")
            self._answer.write(event.text)

    def finish(self) -> None:
        """End what was begun with a line end."""
        self._thinking.finish()
        self._answer.finish()


class _Pieces:
    """Safe text on one stream, ended by exactly one line end of ours if it has none."""

    def __init__(self, stream: TextIO, *, dim: bool = False) -> None:
        self.begun = False
        self._stream = stream
        self._dim = dim
        self._safe = Stream()
        self._open_line = False
        self._finished = False

    def write(self, text: str) -> None:
        """Show a piece at once."""
        self.begun = True
        self._put(self._safe.push(text))

    def finish(self) -> bool:
        """Show what was held back and end the line; whether there was anything to end."""
        if not self.begun or self._finished:
            return False
        self._finished = True
        self._put(self._safe.finish())
        if self._open_line:
            self._put("\n")
        return True

    def _put(self, text: str) -> None:
        if text:
            self._open_line = not text.endswith("\n")
            self._stream.write(f"{_DIM}{text}{_PLAIN}" if self._dim else text)
            self._stream.flush()


def figures(done: TurnDone, request: TurnRequest) -> str:
    """One line of what the turn took, and a second when it ended for another reason than its own."""
    stats = done.stats
    drawn = stats.answer_tokens + stats.thinking_tokens
    parts = [with_rate(f"{drawn:,} token{'' if drawn == 1 else 's'}", drawn, stats.decode_s)]
    read_tokens = stats.prompt_tokens - stats.reused_tokens
    reused = f", {stats.reused_tokens:,} reused" if stats.reused_tokens else ""
    parts.append(with_rate(f"read {read_tokens:,}", read_tokens, stats.prefill_s) + reused)
    waited = stats.wait_s / max(stats.prefill_s + stats.decode_s, 1e-9)
    parts.append(f"drives {format_bytes(stats.read_bytes)}{_by_drive(stats.drives)}, wait {waited:.0%}")
    n_experts = stats.expert_hits + stats.expert_misses
    if n_experts:
        parts.append(f"experts {stats.expert_hits / n_experts:.0%} from memory")
    if stats.draft is not None and stats.draft.rounds:
        parts.append(_drafts(stats.draft))
    if request.sampling.temperature > 0:
        parts.append(f"seed {request.sampling.seed}")
    line = "artesian: " + " | ".join(parts)
    why = _why(done, request)
    return f"{line}\n  {why}" if why else line


def _drafts(draft: DraftStats) -> str:
    """How many drafts were right, and what a forward gave with them."""
    paused = "" if not draft.pauses else ", then paused" if len(draft.pauses) == 1 else f", {len(draft.pauses)} pauses"
    right = f"{draft.accepted:,} of {draft.drafted:,} drafts right"
    return f"{right}, {draft.tokens_per_forward:.1f} tokens a forward{paused}"


def _by_drive(drives: Sequence[DriveFigures]) -> str:
    """What each gave and how fast, when there are several."""
    if len(drives) < 2:
        return ""
    each = (
        f"{one_line(drive.drive)} {format_bytes(drive.payload_bytes)} at {format_bytes(drive.rate_bytes_s)}/s"
        for drive in drives
    )
    return f" ({', '.join(each)})"


def _why(done: TurnDone, request: TurnRequest) -> str:
    match done.reason:
        case "length" if request.effort is not None and done.stats.answer_tokens == 0:
            return (
                f"--max-tokens {request.max_tokens} was reached while thinking, so there is no answer. "
                "Raise it, or lower --think."
            )
        case "length":
            return f"Cut at --max-tokens {request.max_tokens}."
        case "context":
            return "The model's context is full: question and answer cannot be longer together."
        case "stopped":
            return "Stopped by you."
        case "stop":
            return ""


def _takes_colour(stream: TextIO) -> bool:
    """Whether dim text may be sent: a terminal that is not a dumb one, and no NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
