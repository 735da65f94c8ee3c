"""The chat: a conversation, the box to write in, and one line that says what the machine does.

The one thing a reader would get wrong: a turn goes on while other screens lie above this one; the app hands it the
engine's events all the same.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.actions import Scope
from app.backends.base import PromptCost, TurnRequest
from app.drafts import DraftFile
from app.errors import AppError
from app.host import HostEvent, Measured, Opened, OpenFailed, Opening, TurnFailed, Warmed, Warming
from app.input_history import InputHistory
from app.paths import data_dir
from app.report import format_per_second
from app.sanitize import one_line, visible
from app.transcripts.export import Form, export
from app.transcripts.records import Node
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from app.tui import clipboard
from app.tui.action_bindings import bindings_of
from app.tui.conversation import Conversation
from app.tui.figures import hit_share, loading_text, price, wait_share
from app.tui.flow.spans import Span
from app.tui.widgets.find_bar import FindBar
from app.tui.widgets.page import MUTED
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.side_panel import LEAST_WIDTH, SidePanel
from app.tui.widgets.status_line import Part, StatusLine
from app.tui.widgets.transcript_view import TranscriptView
from app.tui.widgets.turn import NoteRows, ReplyRows, Stop
from app.values import EFFORTS, is_effort, parse_effort
from engine.errors import PromptError, Stopped
from engine.events import LoadProgress, Notice, TurnDone, TurnStats

if TYPE_CHECKING:
    from app.tui.app import ArtesianApp

PRICE_AFTER_S = 0.3
"""The draft is measured this long after the last key."""

DEAR_S = 10.0
"""Reading again that takes longer is asked about first."""

STATUS_EVERY_S = 0.25
"""The status line changes this often while a turn runs: faster is not read."""

SMALLEST = (30, 8)
"""Columns and rows of a terminal in which there is something to see."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """What was asked to be measured, and what is done with the answer."""

    ticket: int
    text: str
    """What was in the box."""
    take: Callable[[PromptCost], None]


class ChatScreen(Screen[None]):
    """One conversation."""

    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "chat", "turn")
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("chat", leave_out=("send", "new_line"))
    AUTO_FOCUS = "#prompt-editor"

    def __init__(
        self, session_of: Callable[[Transcript], ChatSession], transcript: Transcript, *, keeps_drafts: bool = True
    ) -> None:
        """`session_of` gives a conversation its defaults; `keeps_drafts` whether draft and history are on disk."""
        super().__init__()
        folder = data_dir() if keeps_drafts else None
        self._session_of = session_of
        self.conversation = Conversation(session_of(transcript))
        self.view = TranscriptView()
        self.prompt = Prompt(
            history=InputHistory(folder / "input-history.jsonl" if folder else None),
            draft=DraftFile(folder / "drafts" if folder else None),
        )
        self._find = FindBar()
        self._status = StatusLine()
        self._heading = Static(id="chat-heading", markup=False)
        self._note = Static(id="chat-note", markup=False)
        self._side = SidePanel()
        self.typed_s = 0.0
        """When the box changed last."""
        self._model_state = ""
        self._is_open = False
        self._n_turns = 0
        self._ticket = 0
        self._priced: _Priced | None = None
        self._price_timer: Timer | None = None
        self._context_tokens: int | None = None
        self._editing: Node | None = None
        self._armed: tuple[str, str] | None = None  # a dear action that was asked about, and its message
        self._status_due = 0.0
        self._given_back: str | None = None  # a text that could not be sent
        self._refused: tuple[str, str] | None = None  # a text that cannot be sent, and why
        self._left: list[Transcript] = []  # conversations whose last turn has not ended yet

    @property
    def artesian(self) -> "ArtesianApp":
        """The app, as what it is."""
        return cast("ArtesianApp", self.app)

    def compose(self) -> ComposeResult:
        """Heading, conversation, find line, price, box, status."""
        yield self._heading
        with Horizontal(id="chat-body"):
            with Vertical():
                yield self.view
                yield self._find
                yield self._note
                yield self.prompt
            yield self._side
        yield self._status
        yield Static("This window is too small.", id="too-small")

    def on_mount(self) -> None:
        """Show what there is of the conversation."""
        self.call_after_refresh(self._open_conversation)

    async def _open_conversation(self) -> None:
        """Show a conversation that was not shown before; laid out in a thread, as it may be long."""
        conversation, cells = self.conversation, self.view.text_cells
        await asyncio.to_thread(conversation.rows, cells)
        gc.freeze()  # as after loading the model: a long conversation is tens of thousands of rows
        if conversation is self.conversation:
            self.reload()
            transcript = conversation.transcript
            if transcript.damage:
                n_lines = len(transcript.damage)
                self.note(f"{n_lines} line{'' if n_lines == 1 else 's'} of its file could not be read.", "$warning")
            if transcript.read_only:
                self.note(transcript.read_only, "$warning")

    def on_resize(self) -> None:
        """Say so when there is no room, and save rows where there are few."""
        width, height = self.size
        self.set_class(width < SMALLEST[0] or height < SMALLEST[1], "-too-small")
        self.set_class(height < 16, "-low")
        self.set_class(width >= LEAST_WIDTH, "-wide")
        self._show_heading()

    # what is shown

    def reload(self) -> None:
        """Show the path to the head again."""
        conversation = self.conversation
        rows = conversation.rows(self.view.text_cells)
        # The blank row parts the heading from what scrolls under it.
        cells = self.view.text_cells
        self.view.show([NoteRows([()], cells), *rows] if rows else [NoteRows(self._welcome(), cells)])
        self._show_heading()
        self.show_status()

    def _welcome(self) -> list[list[Span]]:
        choice = self.artesian.choice
        lines = [[Span("")], [Span("Artesian", "strong")], [Span("")]]
        if choice.is_demo:
            lines += [
                [Span("This is the bundled demo, a tiny model that knows only Artesian's help. It is not DeepSeek.")],
                [Span("Name the folder of a checkpoint with --model, or choose one: /model.", "faint")],
            ]
        else:
            lines.append([Span(one_line(str(choice.folder)), "faint")])
        for keys, what in (
            ("Enter", "send; ctrl+j breaks the line"),
            ("ctrl+p", "all actions"),
            ("ctrl+t", "conversations"),
            ("ctrl+g", "where the time goes"),
            ("f1", "keys"),
        ):
            lines += [[Span("")]] if keys == "Enter" else []
            lines.append([Span(keys.ljust(8), "prompt-mark"), Span(what, "faint")])
        return lines

    def _show_heading(self) -> None:
        transcript = self.conversation.transcript
        title = one_line(transcript.title) or "New conversation"
        model = "demo" if self.artesian.choice.is_demo else one_line(self.artesian.choice.folder.name)
        note = "  can only be read" if transcript.read_only else ""
        room = max(self.size.width - len(model) - 4 - len(note), 8)
        shown = title if len(title) <= room else title[: room - 3] + "..."
        line = Content.assemble((shown, "bold"), (note, "$warning"), " " * max(room - len(shown), 0), "  ",
                                (model, MUTED))  # fmt: skip
        self._heading.update(line)

    def note(self, text: str, style: str = "") -> None:
        """Say something above the box; "" takes it away."""
        self._note.update(Content.styled(one_line(text), style))
        self._note.set_class(bool(text), "-shown")

    def show_status(self) -> None:
        """The line at the bottom."""
        conversation, running = self.conversation, self.conversation.running
        parts: list[Part] = []
        rate = conversation.rate()
        if running is not None and running.is_stopping:
            parts.append(("stopping", "lead"))
        elif rate is not None:
            parts.append((f"{format_per_second(rate, 1).removesuffix('/s')} tok/s", "lead"))
        elif running is not None and self._is_open:
            parts.append(("thinking" if running.n_drawn else "reading", "lead"))
        else:
            parts.append((self._model_state, "lead"))
        problem = conversation.transcript.problem
        if problem is not None:
            parts.append(("not saved", "warn"))
        stats = conversation.last_stats
        if stats is not None:
            parts.append((f"drive wait {wait_share(stats):.0%}", "") if stats.read_bytes else ("", ""))
            hits = hit_share(stats)
            parts.append((f"hit {hits:.0%}", "") if hits is not None else ("", ""))
            parts.extend((text, "") for text in _draft(stats))
            used = stats.prompt_tokens + stats.answer_tokens + stats.thinking_tokens
            of = f" of {self._context_tokens:,}" if self._context_tokens else ""
            parts.append((f"{used:,}{of} tokens", ""))
        effort = conversation.session.effort
        parts.append((f"think {effort}" if effort is not None else "", ""))
        if problem is None and conversation.transcript.head is not None:
            parts.append(("read only" if conversation.transcript.read_only else "saved", ""))
        self._status.show(parts)
        self._side.show(self.artesian.facts, stats)

    # events of the engine

    def take(self, events: Sequence[HostEvent]) -> None:
        """Show what the engine did since the last call."""
        conversation = self.conversation
        touched = False
        still = conversation.running.rows.n_still_rows if conversation.running is not None else 0
        for event in events:
            self._take_state(event)
            running = conversation.running
            if running is None:
                continue
            touched = True
            if conversation.take(event):
                still = 0
                self._turn_ended(running.rows, event)
            elif running.repeats:
                running.repeats = False
                self.note("The reply repeats itself. Esc stops it.", "$warning")
        if touched:
            self.view.changed(max(len(self.view.messages) - 1, 0), still)
        now = time.monotonic()
        if events and (conversation.running is None or now >= self._status_due):
            self._status_due = now + STATUS_EVERY_S
            self.show_status()

    def _take_state(self, event: HostEvent) -> None:
        match event:
            case Opening():
                self._model_state = "opening the model"
            case LoadProgress():
                self._model_state = loading_text(event)
            case Opened():
                self._is_open, self._model_state = True, "ready"
            case OpenFailed(error=error):
                self._is_open, self._model_state = False, "not loaded"
                if self.conversation.running is None and not isinstance(error, Stopped):
                    self.note(f"{error} {getattr(error, 'hint', '')}".strip(), "$error")
            case Warming():
                self._model_state = "warming"
            case Warmed():
                self._model_state = "ready"
            case Measured():
                self._measured(event)
            case Notice() if self.conversation.running is None:
                self.notify(visible(event.text), severity="warning", markup=False, timeout=12)
            case TurnDone() | TurnFailed():
                for transcript in self._left:
                    transcript.close()
                self._left.clear()
            case _:
                pass

    def _turn_ended(self, rows: ReplyRows, event: HostEvent) -> None:
        self.artesian.last_turn = self.conversation.last_stats
        self.note("")
        self._show_heading()
        if rows.is_long:
            self.run_worker(self._settle(rows), exit_on_error=False)
        if isinstance(event, TurnFailed) and isinstance(event.error, PromptError) and not self.prompt.text.strip():
            node = self._message_of_user()
            if node is not None:  # it cannot be run as it is: back into the box, to be changed
                self._edit(node)
        elif self.prompt.text.strip():
            self._price_soon()

    async def _settle(self, rows: ReplyRows) -> None:
        """Put the parts of a long reply together, aside."""
        flows = await asyncio.to_thread(rows.settled)
        if rows.take_settled(flows) and rows in self.view.messages:
            self.view.changed(self.view.messages.index(rows))

    def check_saved(self) -> None:
        """Say when the conversation is not saved, and try again; show what another window has added to it."""
        transcript = self.conversation.transcript
        if transcript.problem is not None:
            self.note(transcript.problem, "$warning")
            self.run_worker(asyncio.to_thread(transcript.retry), group="retry", exclusive=True, exit_on_error=False)
        elif transcript.read_only and transcript.refresh():
            self.reload()
        self.show_status()

    # sending

    @on(Prompt.Submitted)
    async def _submitted(self, event: Prompt.Submitted) -> None:
        event.stop()
        conversation = self.conversation
        if conversation.running is not None:
            self._give_back(event.text, "A reply is being written. Esc stops it.")
            return
        if self._refused is not None and self._refused[0] == event.text:
            self._give_back(event.text, self._refused[1])
            return
        editing, self._editing = self._editing, None
        session = conversation.session
        try:
            if editing is not None:
                node = await asyncio.to_thread(session.edit, editing, event.text)
            else:
                node = await asyncio.to_thread(session.add_user, event.text)
        except AppError as error:
            self._give_back(event.text, f"{error} {error.hint}".strip())
            return
        self._answer(node, session.request(node))

    def _give_back(self, text: str, why: str) -> None:
        """Put what could not be sent back into the box."""
        self.prompt.restore(text)
        self._given_back = self.prompt.text
        self._ticket += 1  # no price that is under way takes the place of this
        if self._price_timer is not None:
            self._price_timer.stop()
        self.note(why, "$warning")

    def _answer(self, node: Node, request: TurnRequest) -> None:
        """Run a turn: a reply under `node`, or more of it."""
        self._n_turns += 1
        self._armed = None
        self.note("")
        try:
            self.conversation.begin(self.artesian.host, self._n_turns, node, request, self.view.text_cells)
        except AppError as error:
            self.note(f"{error} {error.hint}".strip(), "$error")
            return
        self.reload()
        if self._context_tokens is None:
            self._measure(request, lambda cost: None)

    @on(TranscriptView.Aligned)
    def _aligned(self, event: TranscriptView.Aligned) -> None:
        """Let what is below begin in the column of the text above."""
        event.stop()
        left = event.left_cells - 1  # the editor has one cell of its own
        self.prompt.styles.padding = (0, 1, 0, left)
        self._note.styles.padding = (0, 2, 0, left + 1)

    @on(Prompt.Commanded)
    def _commanded(self, event: Prompt.Commanded) -> None:
        event.stop()
        self.artesian.run_action_id(event.action.id, event.argument)

    @on(Prompt.Problem)
    def _prompt_problem(self, event: Prompt.Problem) -> None:
        event.stop()
        self.notify(event.text, severity="warning", markup=False)

    # prices

    @on(Prompt.Changed)
    def _draft_changed(self, event: Prompt.Changed) -> None:
        event.stop()
        self._armed = None
        self.typed_s = time.monotonic()
        if self._given_back is not None and event.text in (self._given_back, ""):
            return  # what is said of it stays; the box was emptied before it was given back
        self._given_back = None
        if not event.text.strip() or event.text.startswith("/"):
            self._ticket += 1
            if self.conversation.running is None and self._editing is None:
                self.note("")
            return
        self._price_soon()

    def _price_soon(self) -> None:
        if self._price_timer is not None:
            self._price_timer.stop()
        self._price_timer = self.set_timer(PRICE_AFTER_S, self._price_draft)

    def _price_draft(self) -> None:
        text, editing = self.prompt.text, self._editing
        if not text.strip():
            return
        transcript = self.conversation.transcript
        parent = transcript.head
        if editing is not None:
            parent = transcript.node(editing.parent) if editing.parent is not None else None
        what = "edited: " if editing is not None else ""
        self._measure(self.conversation.draft_request(text, parent), lambda cost: self._show_price(cost, what))

    def _show_price(self, cost: PromptCost, what: str) -> None:
        state = "warm" if cost.reused_tokens else "cold" if self._is_open else "the model is not loaded yet"
        self.note(f"{price(cost, what=what)} | {state}", MUTED)

    def _measure(self, request: TurnRequest, take: Callable[[PromptCost], None]) -> None:
        self._ticket += 1
        self._priced = _Priced(self._ticket, self.prompt.text, take)
        self.artesian.host.measure(self._ticket, request)

    def _measured(self, event: Measured) -> None:
        if event.cost is not None:
            self._context_tokens = event.cost.context_tokens
        priced = self._priced
        if priced is None or event.ticket != priced.ticket or event.ticket != self._ticket:
            return
        self._priced = None
        if event.cost is None:
            why = f"{event.error} {getattr(event.error, 'hint', '')}".strip()
            self._refused = (priced.text, why)
            self.note(why, "$warning")
            return
        self._refused = None
        priced.take(event.cost)

    def _dear(self, action: str, node: Node, request: TurnRequest, what: str) -> None:
        """Run a turn that reads again, at once if that is quick, else when it is asked for a second time."""
        if self._armed == (action, node.id):
            self._answer(node, request)
            return

        def priced(cost: PromptCost) -> None:
            if self.conversation.running is not None:
                return
            if cost.expected_s is None or cost.expected_s < DEAR_S:
                self._answer(node, request)
                return
            self._armed = (action, node.id)
            self.note(f"{what}: {price(cost)}. The same key again does it.", "$warning")

        self._measure(request, priced)

    # the reply

    def action_stop(self) -> None:
        """Stop the turn and keep it; else leave what is open, one thing at a time."""
        running = self.conversation.running
        if running is not None:
            if not running.is_stopping:
                running.is_stopping = True
                self.artesian.host.stop()
                self.show_status()
        elif self._find.is_open:
            self._close_find()
        elif self._editing is not None:
            self._editing = None
            self.prompt.set_text("")
            self.note("")
        elif self.view.cursor is not None or self.focused is self.view:
            self.view.leave_cursor()
            self.set_focus(self.prompt.editor)
        else:
            self._armed = None
            self.note("")

    def action_continue_reply(self) -> None:
        """Go on with the last reply."""
        node = self.conversation.transcript.head
        if self._is_busy():
            return
        if node is None:
            self.note("There is no reply to go on with.")
            return
        if node.role != "assistant" or not (node.ids or node.text):
            self.action_regenerate()
            return
        if node.status == "complete":
            self.note("The reply is complete.")
            return
        self._dear("continue", node, self.conversation.session.continue_request(node), "Go on")

    def action_regenerate(self) -> None:
        """Answer a message once more."""
        if self._is_busy():
            return
        node = self._message_of_user()
        if node is None:
            self.note("There is nothing to answer yet.")
            return
        self._dear("regenerate", node, self.conversation.session.request(node), "Answer again")

    def action_edit(self) -> None:
        """Put a message into the box, to be sent as a sibling."""
        node = self._message_of_user()
        if self._is_busy():
            return
        if node is None:
            self.note("There is no message to edit.")
            return
        self._edit(node)
        self.note("Editing: Enter sends it as a branch, Esc leaves it.")

    def _edit(self, node: Node) -> None:
        self._editing = node
        self.view.leave_cursor()
        self.prompt.set_text(node.text)
        self.set_focus(self.prompt.editor)

    def action_previous_sibling(self) -> None:
        """Show the branch before."""
        self._walk(-1)

    def action_next_sibling(self) -> None:
        """Show the branch after."""
        self._walk(1)

    def _walk(self, step: int) -> None:
        if self._is_busy():
            return
        transcript = self.conversation.transcript
        nodes = transcript.path()
        here = self._node_at_cursor()
        candidates = [here] if here is not None else list(reversed(nodes))
        node = next((one for one in candidates if len(transcript.siblings(one)) > 1), None)
        if node is None:
            self.note("There is no other branch here.")
            return
        siblings = transcript.siblings(node)
        index = [one.id for one in siblings].index(node.id) + step
        if not 0 <= index < len(siblings):
            self.note(f"This is the {'first' if step < 0 else 'last'} of {len(siblings)}.")
            return
        transcript.select(siblings[index])
        self.reload()
        self.note(f"Branch {index + 1} of {len(siblings)}.")

    # the cursor

    def action_previous_block(self) -> None:
        """Up."""
        self.set_focus(self.view)
        self.view.move_cursor(-1)

    def action_next_block(self) -> None:
        """Down; at last into the box."""
        if not self.view.move_cursor(1):
            self.set_focus(self.prompt.editor)

    def action_bottom(self) -> None:
        """To the end."""
        self.view.to_end()
        self.set_focus(self.prompt.editor)

    def _node_at_cursor(self) -> Node | None:
        at = self.view.at_cursor
        return self.conversation.transcript.node(at[0].node_id) if at is not None and at[0].node_id else None

    def _message_of_user(self) -> Node | None:
        """The message of the user at the cursor, or that its reply answers; the last one without a cursor."""
        transcript = self.conversation.transcript
        path = transcript.path(self._node_at_cursor() or None) if transcript.head is not None else []
        return next((node for node in reversed(path) if node.role == "user"), None)

    def _reply(self) -> Node | None:
        """The reply at the cursor, or the last one."""
        node = self._node_at_cursor()
        if node is not None and node.role == "assistant":
            return node
        transcript = self.conversation.transcript
        path = transcript.path() if transcript.head is not None else []
        return next((one for one in reversed(path) if one.role == "assistant"), None)

    def _rows_of_reply(self) -> ReplyRows | None:
        node = self._reply()
        if node is None:
            return None
        return next((m for m in self.view.messages if isinstance(m, ReplyRows) and m.node_id == node.id), None)

    def _is_busy(self) -> bool:
        if self.conversation.running is not None:
            self.note("A reply is being written. Esc stops it.")
            return True
        return False

    # copying

    def action_copy_reply(self) -> None:
        """Copy the message under the cursor, or the last reply."""
        node = self._node_at_cursor() or self._reply()
        if node is None or not node.text:
            self.note("There is no reply to copy yet.")
        else:
            self._copy(node.text, "Reply" if node.role == "assistant" else "Message")

    def action_copy_code(self, argument: str = "") -> None:
        """Copy the fence under the cursor; else the last one, or the one with that number."""
        at = self.view.at_cursor
        if at is not None and at[1].kind == "code" and not argument:
            self._copy(at[1].source, "Code")
            return
        rows = self._rows_of_reply()
        blocks: list[Stop] = [stop for stop in rows.stops() if stop.kind == "code"] if rows is not None else []
        if not blocks:
            self.note("There is no code block in this reply.")
            return
        number = int(argument) if argument.isascii() and argument.isdigit() else len(blocks) if not argument else 0
        if not 1 <= number <= len(blocks):
            self.note(f"There are {len(blocks)} code blocks; give a number from 1.")
            return
        self._copy(blocks[number - 1].source, "Code")

    def action_copy_details(self) -> None:
        """Copy the reply with its question and its figures."""
        node, rows = self._reply(), self._rows_of_reply()
        if node is None or rows is None:
            self.note("There is no reply to copy yet.")
            return
        question = next((one for one in reversed(self.conversation.transcript.path(node)) if one.role == "user"), None)
        seed = f"seed {node.runs[-1].sampling.seed}" if node.runs else ""
        model = node.facts.model if node.facts is not None else ""
        details = " | ".join(part for part in (rows.footer, seed, model) if part)
        self._copy(f"> {question.text if question else ''}\n\n{node.text}\n\n{details}\n", "Reply and details")

    def action_copy_chat(self) -> None:
        """Copy the conversation."""
        nodes = self.conversation.transcript.path()
        text = "\n\n".join(f"> {node.text}" if node.role == "user" else node.text for node in nodes)
        self._copy(text, "Conversation")

    def _copy(self, text: str, what: str) -> None:
        try:
            copied = clipboard.copy(text, what, self.app.copy_to_clipboard, data_dir())
        except OSError as error:
            self.note(f"{what} could not be copied: {error.strerror or error}", "$error")
            return
        self.note(copied.said)

    # looking

    def action_fold_thinking(self) -> None:
        """Fold or open the thinking of the reply."""
        rows = self._rows_of_reply()
        if rows is None or not rows.thinking.source:
            self.note("There is no thinking in this reply.")
            return
        rows.fold(not rows.is_folded)
        self.conversation.folds = rows.is_folded
        self.view.changed(self.view.messages.index(rows))

    def action_raw(self) -> None:
        """Show the reply as it was written, or rendered."""
        rows = self._rows_of_reply()
        if rows is None:
            self.note("There is no reply yet.")
            return
        rows.set_raw(not rows.is_raw)
        self.view.changed(self.view.messages.index(rows))

    def action_find(self, argument: str = "") -> None:
        """Look for text in the conversation."""
        self._find.open(argument)
        if argument:
            self._look(argument)

    def action_find_next(self) -> None:
        """The next place."""
        self.view.find_step(1)
        self._show_count()

    def action_find_previous(self) -> None:
        """The place before."""
        self.view.find_step(-1)
        self._show_count()

    @on(FindBar.Changed)
    def _find_changed(self, event: FindBar.Changed) -> None:
        self._look(event.text)

    @on(FindBar.Stepped)
    def _find_stepped(self, event: FindBar.Stepped) -> None:
        self.view.find_step(event.step)
        self._show_count()

    @on(FindBar.Closed)
    def _find_closed(self, event: FindBar.Closed) -> None:
        if event.keep and self.view.matches:
            self.set_focus(self.view)
        else:
            self._close_find()

    def _look(self, text: str) -> None:
        self.view.find(text)
        self._show_count()

    def _show_count(self) -> None:
        n_places = len(self.view.matches)
        self._find.show_count(f"{self.view.match_index + 1} of {n_places}" if n_places else "nothing found")

    def _close_find(self) -> None:
        self._find.close()
        self.view.find("")
        self.set_focus(self.prompt.editor)

    # the conversation

    def action_new_chat(self) -> None:
        """Begin an empty conversation."""
        self._show_transcript(self.artesian.store.create())

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation; a reply that grows is stopped and kept first."""
        if transcript_id == self.conversation.transcript.id:
            return
        try:
            transcript = self.artesian.store.open(transcript_id)
        except AppError as error:
            self.note(f"{error} {error.hint}".strip(), "$error")
            return
        self._show_transcript(transcript)

    def _show_transcript(self, transcript: Transcript) -> None:
        old = self.conversation
        if old.running is not None:
            self.artesian.host.stop()
            self._left.append(old.transcript)
        else:
            old.transcript.close()
        self._editing = self._armed = self._refused = None
        self.conversation = Conversation(self._session_of(transcript))
        self.note("")
        self.view.show([])
        self.run_worker(self._open_conversation(), group="open", exclusive=True)
        self.set_focus(self.prompt.editor)

    def action_title(self, argument: str = "") -> None:
        """Give the conversation a title, or say which it has."""
        transcript = self.conversation.transcript
        if not argument:
            self.note(f"Title: {transcript.title or 'none yet'}. /title TEXT gives another.")
            return
        try:
            transcript.rename(argument)
        except AppError as error:
            self.note(f"{error} {error.hint}".strip(), "$error")
            return
        self._show_heading()

    def action_think(self, argument: str = "") -> None:
        """Set how much the next replies think."""
        session = self.conversation.session
        if not argument:
            self.note(f"Thinking is {'off' if session.effort is None else session.effort}; it can be {EFFORTS}.")
            return
        if not is_effort(argument):
            self.note(f"Thinking can be {EFFORTS}.", "$warning")
            return
        session.effort = parse_effort(argument)
        self.note(f"The next replies think: {argument}.")
        self.show_status()
        if self.prompt.text.strip():
            self._price_soon()

    def action_system(self, argument: str = "") -> None:
        """Set what stands before the conversation, in a new branch."""
        conversation = self.conversation
        if not argument:
            first = next(iter(conversation.transcript.path()), None) if conversation.transcript.head else None
            said = first.text if first is not None and first.role == "system" else conversation.session.system
            self.note(f"System message: {said}" if said else "There is no system message. /system TEXT sets one.")
            return
        if self._is_busy():
            return
        conversation.session.system = argument
        if conversation.transcript.head is not None:
            try:
                conversation.transcript.add("system", argument, None)
            except AppError as error:
                self.note(f"{error} {error.hint}".strip(), "$error")
                return
            self.reload()
        self.note("The system message stands before what you write next.")

    async def action_export(self, argument: str = "") -> None:
        """Write the conversation to a file that is not there yet, in the form its name ends in."""
        transcript = self.conversation.transcript
        if transcript.head is None:
            self.note("There is nothing to export yet.")
            return
        path = Path(argument or f"artesian-{transcript.id}.md").expanduser().absolute()
        form = path.suffix.removeprefix(".")
        if form not in ("md", "json", "html"):
            self.note("Give a name that ends in .md, .json or .html.", "$warning")
            return

        def write() -> None:
            with path.open("x", encoding="utf-8") as file:
                file.write(export(transcript, cast(Form, form)))

        try:
            await asyncio.to_thread(write)
        except OSError as error:
            self.note(f"{path}: {error.strerror or error}", "$error")
            return
        self.note(f"Written to {path}")

    def action_editor(self) -> None:
        """Edit the draft in $EDITOR."""
        self.prompt.open_in_editor()


def _draft(stats: TurnStats) -> list[str]:
    """Drafts kept in a round, of those drafted; why there are none."""
    draft = stats.draft
    if draft is None or not draft.rounds:
        return []
    return [f"draft {draft.mean_accepted:.1f}/{draft.drafted / draft.rounds:.0f}"]
