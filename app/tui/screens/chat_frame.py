"""What the chat is made of and how it is filled: heading, conversation, box, status; what the actions work on."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.backends.base import PromptCost
from app.drafts import DraftFile
from app.input_history import InputHistory
from app.paths import data_dir
from app.report import format_per_second
from app.sanitize import one_line, visible
from app.transcripts.records import Node
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from app.tui.conversation import Conversation
from app.tui.figures import hit_share, wait_share
from app.tui.flow.spans import Span
from app.tui.widgets.find_bar import FindBar
from app.tui.widgets.kept import Kept, KeptHorizontal, KeptStatic, KeptVertical
from app.tui.widgets.page import MUTED
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.side_panel import LEAST_WIDTH, SidePanel
from app.tui.widgets.status_line import Part, StatusLine
from app.tui.widgets.transcript_view import TranscriptView
from app.tui.widgets.turn import NoteRows, ReplyRows
from app.unsaved import unsaved_text
from engine.events import TurnStats

if TYPE_CHECKING:
    from app.tui.app import ArtesianApp

SMALLEST = (30, 8)
"""Columns and rows of a terminal in which there is something to see."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What was asked to be measured, and what is done with the answer."""

    ticket: int
    draft: str | None
    """The text in the box that it is the price of; None for another one."""
    take: Callable[[PromptCost], None]


class ChatFrame(Screen[None], Kept):
    """The widgets of the chat, and the conversation they show."""

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
        self._heading = KeptStatic(id="chat-heading", markup=False)
        self._note = KeptStatic(id="chat-note", markup=False)
        self._side = SidePanel()
        self.typed_s = 0.0
        """When the box changed last."""
        self._model_state = ""
        self._is_open = False
        self._n_turns = 0
        self._ticket = 0
        self._model_ticket = 0  # the newest of the model before
        self._shows_price = False
        self._shows_problem = False
        self._takes_added = False  # what another window has added is being read
        self._priced: Priced | None = None
        self._price_timer: Timer | None = None
        self._context_tokens: int | None = None
        self._editing: Node | None = None
        self._set_aside = ""  # what was in the box before an edit
        self._armed: tuple[str, str] | None = None  # a dear action that was asked about, and its message
        self._status_due = 0.0
        self._real_model = ""  # what the released model would take and give here
        self._given_back: str | None = None  # a text that could not be sent
        self._refused: tuple[str, str] | None = None  # a text that cannot be sent, and why
        self._left: list[Transcript] = []  # conversations whose last turn has not ended yet
        self._told_unsaved = ""  # of which conversation it was said that it cannot be saved when it was to be left

    @property
    def artesian(self) -> "ArtesianApp":
        """The app, as what it is."""
        return cast("ArtesianApp", self.app)

    def compose(self) -> ComposeResult:
        """Heading, conversation, find line, price, box, status."""
        yield self._heading
        with KeptHorizontal(id="chat-body"):
            with KeptVertical():
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

    def on_screen_resume(self) -> None:
        """Back from another screen, where its title may have been changed."""
        self._show_heading()

    def on_resize(self) -> None:
        """Say so when there is no room, and save rows where there are few."""
        width, height = self.size
        is_too_small = width < SMALLEST[0] or height < SMALLEST[1]
        if self.has_class("-too-small") and not is_too_small:
            self.call_after_refresh(self._take_focus_back)
        self.set_class(is_too_small, "-too-small")
        self.set_class(height < 16, "-low")
        self.set_class(width >= LEAST_WIDTH, "-wide")
        self._show_heading()

    def _take_focus_back(self) -> None:
        """What was hidden has lost the focus, and keys would go nowhere."""
        if self.focused is None:
            self.set_focus(self.prompt.editor)

    def reload(self, *, stays: bool = False) -> None:
        """Show the path to the head again, from its end or from where it is read."""
        conversation = self.conversation
        rows = conversation.rows(self.view.text_cells)
        # The blank row parts the heading from what scrolls under it.
        cells = self.view.text_cells
        if rows:
            messages = [NoteRows([()], cells), *rows]
            if stays:
                self.view.replace(messages)
            else:
                self.view.show(messages)
        else:
            self.view.show([NoteRows(self._welcome(), cells)], from_top=True)  # what it is stands before its keys
        if self._find.is_open:
            self._show_count()
        self._show_heading()
        self.show_status()

    def look_again(self) -> None:
        """What is looked for, in rows that are others now."""
        self.view.look_again()
        if self._find.is_open:
            self._show_count()

    def _show_count(self) -> None:
        n_places = len(self.view.matches)
        nothing = "nothing found" if self._find.text.strip() else ""
        self._find.show_count(f"{self.view.match_index + 1} of {n_places}" if n_places else nothing)

    def tell_of_real_model(self, text: str) -> None:
        """What the released model would take and give here, for an empty conversation to show."""
        self._real_model = text
        if self.conversation.transcript.head is None and self.conversation.running is None:
            self.reload()

    def _welcome(self) -> list[list[Span]]:
        choice = self.artesian.choice
        lines = [[Span("")], [Span("Artesian", "strong")], [Span("")]]
        if choice.is_demo:
            lines += [
                [Span("This is the bundled demo, a tiny model that knows only Artesian's help. It is not DeepSeek.")],
                [Span("Name the model's folder with --model, or choose one: /model.", "faint")],
            ]
            lines += [[Span("")], [Span(self._real_model)]] if self._real_model else []
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
        room = max(self.size.width - cell_len(model) - 4 - len(note), 8)
        shown = title if cell_len(title) <= room else set_cell_size(title, room - 3) + "..."
        line = Content.assemble((shown, "bold"), (note, "$warning"), " " * max(room - cell_len(shown), 0), "  ",
                                (model, MUTED))  # fmt: skip
        self._heading.update(line)

    def note(self, text: str, style: str = "") -> None:
        """Say something above the box; "" takes it away."""
        self._shows_price = self._shows_problem = False
        if not text and not self._note.has_class("-shown"):
            return
        self._note.update(Content.styled(one_line(text), style))
        self._note.set_class(bool(text), "-shown")

    def close_transcripts(self) -> None:
        """Close what is shown and what was left in the middle of a turn, at the end."""
        for transcript in (*self._left, self.conversation.transcript):
            transcript.close()

    def close_transcript(self, transcript: Transcript) -> None:
        """Close a conversation that was left, and say what of it is on no drive, unless that was said."""
        transcript.close()
        text = unsaved_text(transcript)
        if text and self._told_unsaved != transcript.id:
            what = one_line(transcript.title)
            self.notify(visible(f"{what}: {text}."), severity="warning", markup=False, timeout=12)

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

    @on(TranscriptView.Aligned)
    def _aligned(self, event: TranscriptView.Aligned) -> None:
        """Let what is below begin in the column of the text above."""
        event.stop()
        left = event.left_cells - 1  # the editor has one cell of its own
        self.prompt.styles.padding = (0, 1, 0, left)
        self._note.styles.padding = (0, 2, 0, left + 1)
        self._find.styles.padding = (0, 1, 0, left + 1)

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


def _draft(stats: TurnStats) -> list[str]:
    """Drafts kept in a round, of those drafted; why there are none."""
    draft = stats.draft
    if draft is None or not draft.rounds:
        return []
    return [f"draft {draft.mean_accepted:.1f}/{draft.drafted / draft.rounds:.2g}"]
