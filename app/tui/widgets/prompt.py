"""The box in which the user writes: a real editor, with history over sessions, commands, and a draft that is kept.

The box shows exactly what is sent: control characters of a paste become visible signs on their way in. Whoever holds
the box gets `Submitted` and `Commanded`; a message that could not be taken is given back with `restore`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static, TextArea

from app import editing
from app.actions import Action
from app.drafts import DraftFile
from app.input_history import InputHistory
from app.sanitize import visible
from app.slash import Command, Say, completions, parse
from app.tui.action_bindings import binding
from app.tui.pasting import MOST_CHARS, QUICK_LINE
from app.tui.widgets.kept import KeptVertical
from app.tui.widgets.slash_menu import SlashMenu

SAVE_AFTER_S = 0.3
"""The draft is on disk this long after the last key."""


def box_text(text: str) -> str:
    """`text` as the box takes it: lines end with a newline alone (terminals paste CR), controls are made visible."""
    return visible(text.replace("\r\n", "\n").replace("\r", "\n"))


_EDITING = {
    key: binding.action
    for binding in TextArea.BINDINGS
    if isinstance(binding, Binding)
    for key in binding.key.split(",")
}
"""The text area's own keys and what they do."""


class PromptEditor(TextArea):
    """The editor itself. What Enter, the arrows at the edges and a command do is told to the `Prompt` around it."""

    BINDINGS: ClassVar[list[BindingType]] = [binding("send", priority=True), binding("new_line", priority=True)]

    class Edge(Message):
        """An arrow was pressed at the first or last line."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step
            """-1 for up, 1 for down."""

    class Send(Message):
        """The key for sending was pressed."""

    class Refused(Message):
        """With what was pasted the box would hold too much."""

    class Slowed(Message):
        """What was pasted has a line that keys will wait for."""

    class MenuKey(Message):
        """A key for the open menu."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__(
            id="prompt-editor",
            compact=True,
            highlight_cursor_line=False,
            placeholder="Write a message, or / for commands",
        )
        self.cursor_blink = False  # each blink is a frame, also while the engine works and while nobody looks
        self.menu_open = False
        self.walks_history = False
        """Whether the box shows an entry of the history, so that arrows walk on."""

    def put(self, text: str) -> None:
        """Replace everything, as one step that can be taken back; the cursor stands at the end."""
        self.history.checkpoint()
        self.replace(box_text(text), (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        """Send, or take the marked command."""
        self.post_message(self.Send())

    def action_new_line(self) -> None:
        """Break the line at the cursor."""
        self._replace_via_keyboard("\n", *self.selection)

    async def _on_key(self, event: Key) -> None:
        if self.menu_open and event.key in ("up", "down", "tab", "escape"):
            event.stop()
            event.prevent_default()
            self.post_message(self.MenuKey(event.key))
            return
        action = _EDITING.get(event.key)
        if action is not None and not (action == "copy" and not self.selected_text):
            # Here and not by way of the app, which gets to it when letters typed behind it are already in: a quick
            # ctrl+u would take them away too. With nothing to copy ctrl+c is the app's.
            event.stop()
            event.prevent_default()
            await self.run_action(action)
            return
        await super()._on_key(event)

    async def _on_paste(self, event: Paste) -> None:
        """Insert the whole paste at once; nothing in it is sent or acted on."""
        event.stop()
        event.prevent_default()
        if len(self.text) - len(self.selected_text) + len(event.text) > MOST_CHARS:
            self.post_message(self.Refused())
            return
        text = box_text(event.text)
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)
            if max(map(len, text.split("\n"))) > QUICK_LINE:
                self.post_message(self.Slowed())  # behind the change, which takes away what is said below the box

    def action_cursor_up(self, select: bool = False) -> None:
        """Up; from the first line into the history."""
        if not select and (self.walks_history or self.cursor_at_first_line):
            self.post_message(self.Edge(-1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down; from the last line back out of the history."""
        if not select and (self.walks_history or self.cursor_at_last_line):
            self.post_message(self.Edge(1))
        else:
            super().action_cursor_down(select)


class Prompt(KeptVertical):
    """The editor, the menu of commands above it, and a line for what the user should know below."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        PromptEditor {
            height: auto;
            min-height: 1;
            max-height: 33vh;
            padding: 0 1;
        }
        #prompt-hint {
            height: auto;
            display: none;
            padding: 0 1;
            color: $text-warning;
            &.-shown { display: block; }
        }
    }
    """

    @dataclass
    class Submitted(Message):
        """The user sends `text`; the box is empty again."""

        text: str

    @dataclass
    class Commanded(Message):
        """The user entered a slash command."""

        action: Action
        argument: str

    @dataclass
    class Changed(Message):
        """The box now holds `text`."""

        text: str

    @dataclass
    class Problem(Message):
        """Draft or history cannot be saved, or the editor cannot be run; said once each."""

        text: str

    def __init__(
        self,
        *,
        history: InputHistory | None = None,
        draft: DraftFile | None = None,
        edit: Callable[[str], str] = editing.edit,
    ) -> None:
        """Without files, history and draft last as long as the box."""
        super().__init__(id="prompt")
        self._history = history or InputHistory(None)
        self._draft = draft or DraftFile(None)
        self._edit = edit
        self._timer: Timer | None = None
        self._saving = Lock()
        self._said: set[str] = set()
        self._dismissed = ""
        self._latest = ""
        self.editor = PromptEditor()
        """The text area."""
        self._menu = SlashMenu()
        self._hint = Static(id="prompt-hint", markup=False)

    def compose(self) -> ComposeResult:
        """Menu, editor, hint."""
        yield self._menu
        yield self.editor
        yield self._hint

    def on_mount(self) -> None:
        """Read what earlier sessions left."""
        self._history.load()
        left = self._draft.open()
        if left:
            self.editor.put(left)
        self._tell_problems()

    def on_unmount(self) -> None:
        """Save the draft a last time."""
        self.save_draft()
        self._draft.close()

    @property
    def text(self) -> str:
        """What is in the box."""
        return self.editor.text

    def focus_editor(self) -> None:
        """Give the box the focus."""
        self.editor.focus()

    def set_text(self, text: str) -> None:
        """Replace what is in the box; taken back with undo."""
        self.editor.put(text)

    def restore(self, text: str) -> None:
        """Give back what was sent and not taken, before anything written since."""
        since = self.text
        self.editor.put(f"{text}\n\n{since}" if since.strip() else text)

    def hint(self, text: str) -> None:
        """Say something below the box, until it changes; "" takes it away."""
        if not text and not self._hint.has_class("-shown"):
            return  # an update lays out the whole screen, which no key is to wait for
        self._hint.update(visible(text))
        self._hint.set_class(bool(text), "-shown")

    def open_in_editor(self) -> None:
        """Give the terminal to the user's editor, and take its text."""
        edited: str | editing.EditorError
        try:
            with self.app.suspend():
                # Nothing may leave this block by an exception: Textual would not take the terminal back.
                try:
                    edited = self._edit(self.text)
                except editing.EditorError as error:
                    edited = error
        except SuspendNotSupported:
            edited = editing.EditorError("this terminal cannot be given to an editor")
        if isinstance(edited, str):
            self.editor.put(edited)
        else:
            self.hint(f"{edited}. {edited.hint}".strip())

    def save_draft(self) -> None:
        """Write the draft now. May wait for the disk."""
        with self._saving:
            self._draft.save(self._latest)

    @on(PromptEditor.Send)
    def _send(self, event: PromptEditor.Send) -> None:
        event.stop()
        menu = self._menu
        if menu.is_open and menu.chosen is not None and self.text != f"/{menu.chosen.slash}":
            self._take(menu.chosen, complete_only=False)
            return
        text = self.text
        if not text.strip():
            return
        entry = parse(text)
        if isinstance(entry, Say):
            self._entered(text)
            self.post_message(self.Submitted(text))
        elif isinstance(entry, Command):
            self._entered(text)
            self.post_message(self.Commanded(entry.action, entry.argument))
        else:
            self.hint(entry.problem)

    @on(PromptEditor.Refused)
    def _refused(self, event: PromptEditor.Refused) -> None:
        event.stop()
        self.hint(
            f"The paste was not taken: the box holds {MOST_CHARS:,} characters. `artesian ask - < FILE` reads more."
        )

    @on(PromptEditor.Slowed)
    def _slowed(self, event: PromptEditor.Slowed) -> None:
        event.stop()
        self.hint(f"A line has more than {QUICK_LINE:,} characters: keys are slow while it is in the box.")

    @on(PromptEditor.MenuKey)
    def _menu_key(self, event: PromptEditor.MenuKey) -> None:
        event.stop()
        menu = self._menu
        match event.key:
            case "up":
                menu.move(-1)
            case "down":
                menu.move(1)
            case "escape":
                self._dismissed = self.text
                self._offer()
            case _ if menu.chosen is not None:
                self._take(menu.chosen, complete_only=True)

    @on(SlashMenu.Chosen)
    def _chosen(self, event: SlashMenu.Chosen) -> None:
        event.stop()
        self._take(event.action, complete_only=False)
        self.focus_editor()

    @on(PromptEditor.Edge)
    def _edge(self, event: PromptEditor.Edge) -> None:
        event.stop()
        found = self._history.older(self.text) if event.step < 0 else self._history.newer()
        if found is not None:
            with self.prevent(TextArea.Changed):
                self.editor.put(found)
            self._changed()
        self.editor.walks_history = self._history.browsing

    @on(TextArea.Changed)
    def _edited(self, event: TextArea.Changed) -> None:
        event.stop()
        self._history.leave()
        self.editor.walks_history = False
        self._changed()

    def _changed(self) -> None:
        self._latest = self.text
        self.hint("")
        if self.text != self._dismissed:
            self._dismissed = ""
        self._offer()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SAVE_AFTER_S, self._save_aside)
        self.post_message(self.Changed(self.text))

    def _offer(self) -> None:
        dismissed = self._dismissed == self.text or self._history.browsing
        menu = self._menu
        menu.offer(() if dismissed else completions(self.text))
        self.editor.menu_open = menu.is_open

    def _take(self, action: Action, *, complete_only: bool) -> None:
        """Complete the command; run it unless it takes more, or only completing was asked for."""
        if complete_only or action.argument:
            self.editor.put(f"/{action.slash} " if action.argument else f"/{action.slash}")
        else:
            self._entered(f"/{action.slash}")
            self.post_message(self.Commanded(action, ""))

    def _entered(self, text: str) -> None:
        self._history.add(text)
        self.editor.put("")
        self._tell_problems()

    def _save_aside(self) -> None:
        # In a thread: a drive that the engine keeps busy may take long. The lock keeps the order of two savings.
        self.run_worker(self._save_and_tell, thread=True, exit_on_error=False)

    def _save_and_tell(self) -> None:
        self.save_draft()
        self.call_later(self._tell_problems)

    def _tell_problems(self) -> None:
        for problem in (self._history.problem, self._draft.problem):
            if problem is not None and problem not in self._said:
                self._said.add(problem)
                self.post_message(self.Problem(problem))
