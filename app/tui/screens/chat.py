"""The chat: a conversation, the box to write in, and one line that says what the machine does.

The one thing a reader would get wrong: a turn goes on while other screens lie above this one; the app hands it the
engine's events all the same.
"""

from typing import ClassVar

from textual import on
from textual.binding import BindingType

from app.actions import Scope
from app.errors import AppError
from app.report import said
from app.sanitize import visible
from app.transcripts.transcript import Transcript
from app.tui.action_bindings import bindings_of
from app.tui.conversation import Conversation
from app.tui.screens.chat_copying import CopyActions
from app.tui.screens.chat_looking import LookActions
from app.tui.screens.chat_turns import TurnActions
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.transcript_view import TranscriptView
from app.values import EFFORTS, is_effort, parse_effort


class ChatScreen(TurnActions, CopyActions, LookActions):
    """One conversation."""

    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "chat", "turn", "find")
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("chat", leave_out=("send", "new_line"))
    AUTO_FOCUS = "#prompt-editor"

    @on(Prompt.Commanded)
    def _commanded(self, event: Prompt.Commanded) -> None:
        event.stop()
        self.artesian.run_action_id(event.action.id, event.argument)

    @on(TranscriptView.Typed)
    def _typed(self, event: TranscriptView.Typed) -> None:
        event.stop()
        self.set_focus(self.prompt.editor)
        self.prompt.editor.insert(event.text)

    @on(Prompt.Problem)
    def _prompt_problem(self, event: Prompt.Problem) -> None:
        event.stop()
        self.notify(event.text, severity="warning", markup=False)

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
            self._leave_edit()
            self.note("")
        elif self.view.cursor is not None or self.focused is self.view:
            self.view.leave_cursor()
            self.set_focus(self.prompt.editor)
        else:
            self._armed = None
            self.note("")

    def _leave_edit(self) -> None:
        """The message stays as it was, and what was in the box before comes back."""
        self._editing = None
        self.prompt.set_text(self._set_aside)
        self._set_aside = ""

    def action_new_chat(self) -> None:
        """Begin an empty conversation."""
        if self.may_leave():
            self._show_transcript(self.artesian.store.create())

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation; a reply that grows is stopped and kept first."""
        shown = self.conversation.transcript
        if (transcript_id == shown.id and not shown.held_elsewhere) or not self.may_leave():
            return
        if any(left.id == transcript_id for left in self._left):
            # Opened now it would be one that another holds, which is ourselves.
            self.notify("Its reply is still being stopped: open it in a moment.")
            return
        try:
            transcript = self.artesian.store.open(transcript_id)
        except AppError as error:
            self.note(said(error), "$error")
            return
        self._show_transcript(transcript)

    def may_leave(self) -> bool:
        """Whether what is shown is on a drive, or its user was told that it is not and leaves it all the same."""
        transcript = self.conversation.transcript
        if self.conversation.running is not None:
            return True  # it is told of when its turn has ended
        if transcript.problem is None or transcript.flush() or self._told_unsaved == transcript.id:
            return True
        self._told_unsaved = transcript.id
        text = f"Not saved: {transcript.problem_reason}. /export FILE keeps it elsewhere; the same again leaves it."
        self.notify(visible(text), severity="warning", markup=False, timeout=12)
        return False

    def _show_transcript(self, transcript: Transcript) -> None:
        old = self.conversation
        if old.running is not None:
            self.artesian.host.stop()
            self._left.append(old.transcript)
        else:
            self.close_transcript(old.transcript)
        if self._editing is not None:
            self._leave_edit()
        self._armed = self._refused = None
        self._drop_price()
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
            self.note(said(error), "$error")
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
            system = first.text if first is not None and first.role == "system" else conversation.session.system
            self.note(f"System message: {system}" if system else "There is no system message. /system TEXT sets one.")
            return
        if self._is_busy():
            return
        conversation.session.system = argument
        if conversation.transcript.head is not None:
            try:
                conversation.transcript.add("system", argument, None)
            except AppError as error:
                self.note(said(error), "$error")
                return
            self.reload()
        self.note("The system message stands before what you write next.")

    def action_editor(self) -> None:
        """Edit the draft in $EDITOR."""
        self.prompt.open_in_editor()
