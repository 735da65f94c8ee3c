"""The conversation that the chat shows: its messages as rows, and the turn that runs.

The one thing a reader would get wrong: the text is in the transcript, written there by the engine thread. What is here
only shows it, and can be made again from the transcript at any time.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from app.backends.base import TurnRequest
from app.host import Drawn, Host, HostEvent, Opening, Turn, TurnBegan, TurnFailed
from app.progress import CountProgress, progress_text
from app.transcripts.records import Node
from app.transcripts.session import ChatSession, as_message
from app.transcripts.transcript import Transcript
from app.tui.figures import footer_parts, loading_text, reading_lines
from app.tui.repetition import RepetitionWatch
from app.tui.widgets.turn import ReplyRows, UserRows
from app.values import default_max_tokens
from engine.errors import Stopped
from engine.events import LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TurnDone, TurnStats
from engine.prompt import SystemMessage, UserMessage

MessageRows = UserRows | ReplyRows

_RATE_S = 4.0
"""The rate shown is that of the last seconds."""


@dataclass(slots=True)
class Running:
    """The turn that runs."""

    number: int
    rows: ReplyRows
    request: TurnRequest
    drawn: deque[tuple[float, int]] = field(default_factory=deque)
    n_drawn: int = 0
    has_begun: bool = False
    is_stopping: bool = False
    repetition: RepetitionWatch = field(default_factory=RepetitionWatch)
    repeats: bool = False


class Conversation:
    """One transcript on the screen."""

    def __init__(self, session: ChatSession, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.session = session
        self.running: Running | None = None
        self.last_stats: TurnStats | None = None
        self.folds: bool = True
        """Whether thinking is shown by its length alone."""
        self._clock = clock
        self._known: dict[str, MessageRows] = {}

    @property
    def transcript(self) -> Transcript:
        """Where it is kept."""
        return self.session.transcript

    def refresh(self) -> bool:
        """Take what another window has added to its file; whether there was anything. May wait for the drive."""
        transcript = self.transcript
        before = {node.id: node for node in transcript.nodes()}
        try:
            if not transcript.refresh():
                return False
        except OSError:
            return False  # a drive that is gone for now; what is shown stays
        now = {node.id: node for node in transcript.nodes()}
        for name in [name for name in list(self._known) if now.get(name) != before.get(name)]:
            self._known.pop(name, None)
        return True

    # rows

    def rows(self, width: int) -> list[MessageRows]:
        """The messages from the first to the head, laid out. May take a while for a long one; touches no widget."""
        path = self.transcript.path()
        return [self.rows_of(node, width) for node in path]

    def rows_of(self, node: Node, width: int) -> MessageRows:
        """One message, laid out; the one there is, if it was before."""
        siblings = [sibling.id for sibling in self.transcript.siblings(node)]
        known = self._known.get(node.id)
        rows = known or self._made(node, width)
        self._known[node.id] = rows
        rows.set_width(width)
        rows.set_place(siblings.index(node.id) + 1, len(siblings))
        return rows

    def _made(self, node: Node, width: int) -> MessageRows:
        if node.role != "assistant":
            return UserRows(node.id, node.text, width, is_system=node.role == "system")
        rows = ReplyRows(node.id, width)
        rows.fold(self.folds)
        for notice in node.notices:
            rows.add_notice(notice)
        if node.thinking:
            rows.push_thinking(node.thinking)
        if node.text:
            rows.push_text(node.text)
        rows.settle()
        self._end(rows, node)
        return rows

    def _end(self, rows: ReplyRows, node: Node) -> None:
        stats = node.stats
        if stats is not None and stats.thinking_tokens:
            rows.set_thinking_tokens(stats.thinking_tokens)
        if node.status == "failed":
            rows.set_error(node.error or "the turn failed", "ctrl+r answers again.")
        elif stats is not None:
            rows.set_footer(footer_parts(stats, node.reason))
        elif node.status in ("stopped", "cut", "growing"):
            if node.status == "growing" and self.transcript.read_only:
                rows.set_footer(["being written in another window"])
            else:
                rows.set_footer(["stopped by you" if node.status == "stopped" else "cut off", "ctrl+l goes on"])

    # requests

    def draft_request(self, text: str, parent: Node | None) -> TurnRequest:
        """What sending `text` behind `parent` would ask for; to be measured, not run."""
        session = self.session
        before = self.transcript.path(parent) if parent is not None else []
        messages = [message for node in before if (message := as_message(node)) is not None]
        if self.transcript.head is None and session.system:
            messages.insert(0, SystemMessage(text=session.system))
        return TurnRequest(
            messages=(*messages, UserMessage(parts=(text,))),
            effort=session.effort,
            sampling=session.sampling,
            max_tokens=session.max_tokens or default_max_tokens(session.effort),
        )

    # the turn

    def begin(self, host: Host, number: int, node: Node, request: TurnRequest, width: int) -> ReplyRows:
        """Run `request`: a new reply under a message of the user, or more of a reply. Its rows.

        Raises: TranscriptError when the transcript can only be read.
        """
        writer = self.session.begin_reply(node, request)
        reply = writer.node
        rows = self.rows_of(reply, width)
        assert isinstance(rows, ReplyRows)
        rows.reopen()
        rows.set_progress(["waiting for the model"])
        self.running = Running(number=number, rows=rows, request=request)
        host.submit(Turn(number=number, request=request, sink=writer, states=self.session.states))
        return rows

    def take(self, event: HostEvent) -> bool:
        """Show one event of the turn that runs; whether it ended with it."""
        running = self.running
        if running is None or not self._is_of(running, event):
            return False
        rows = running.rows
        match event:
            case Opening() | TurnBegan():
                rows.set_progress(["opening the model" if isinstance(event, Opening) else "reading prompt"])
            case LoadProgress():
                rows.set_progress([loading_text(event)])
            case CountProgress():
                rows.set_progress([progress_text(event)])
            case PrefillProgress() if not running.n_drawn:
                rows.set_progress(reading_lines(event, rows.width))
            case Drawn():
                self._count(running, event.n_tokens)
            case ThinkingDelta():
                rows.push_thinking(event.text)
                running.repeats |= running.repetition.push(event.text)
            case TextDelta():
                rows.push_text(event.text)
                running.repeats |= running.repetition.push(event.text)
            case Notice():
                rows.add_notice(event.text)
            case TurnDone():
                self.last_stats = event.stats
                self._finish(running)
                return True
            case TurnFailed():
                self._fail(running, event.error)
                return True
            case _:
                pass
        return False

    def _is_of(self, running: Running, event: HostEvent) -> bool:
        """Whether an event is of this turn: one before it, of another conversation, may still be ending."""
        if isinstance(event, TurnBegan):
            running.has_begun = event.turn == running.number
        return running.has_begun or isinstance(event, Opening | LoadProgress | CountProgress)

    def rate(self) -> float | None:
        """Tokens a second of the turn that runs; None while there are too few."""
        if self.running is None or len(self.running.drawn) < 2:
            return None
        drawn = self.running.drawn
        seconds = drawn[-1][0] - drawn[0][0]
        return sum(count for _, count in list(drawn)[1:]) / seconds if seconds > 0 else None

    def _count(self, running: Running, n_tokens: int) -> None:
        now = self._clock()
        running.n_drawn += n_tokens
        running.drawn.append((now, n_tokens))
        while len(running.drawn) > 2 and now - running.drawn[0][0] > _RATE_S:
            running.drawn.popleft()

    def _finish(self, running: Running) -> None:
        self.running = None
        rows = running.rows
        if not rows.is_long:
            rows.settle()
        self._end(rows, self.transcript.node(rows.node_id))

    def _fail(self, running: Running, error: Exception) -> None:
        self.running = None
        if not running.rows.is_long:
            running.rows.settle()
        if isinstance(error, Stopped):
            running.rows.set_footer(["stopped by you before it began", "ctrl+r answers again"])
            return
        hint = getattr(error, "hint", "") or "ctrl+r answers again; /logs has the details."
        running.rows.set_error(str(error) or type(error).__name__, hint)
