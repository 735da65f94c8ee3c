"""The line in which text is looked for in the conversation."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from app.tui.action_bindings import binding


class FindBar(Horizontal):
    """Hidden until it is opened; says what is looked for as it is typed."""

    DEFAULT_CSS: ClassVar[str] = """
    FindBar {
        height: 1; padding: 0 1; display: none;
        &.-open { display: block; }
        #find-label { width: 6; color: $text-muted; }
        #find-text { width: 1fr; border: none; height: 1; padding: 0; background: transparent; }
        #find-count { width: auto; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        binding("next_place", priority=True),  # before the line itself hears Enter
        binding("previous_place", priority=True),
        binding("leave_find"),
    ]

    @dataclass
    class Changed(Message):
        """Something else is looked for; "" for nothing."""

        text: str

    @dataclass
    class Stepped(Message):
        """The next place, or with -1 the one before, is wanted."""

        step: int

    class Closed(Message):
        """The line was left."""

    def compose(self) -> ComposeResult:
        """Label, text, count."""
        yield Static("find", id="find-label")
        yield Input(id="find-text", compact=True)
        yield Static("", id="find-count", markup=False)

    @property
    def is_open(self) -> bool:
        """Whether it is shown."""
        return self.has_class("-open")

    @property
    def text(self) -> str:
        """What is looked for."""
        return self.query_one(Input).value

    def open(self, text: str = "") -> None:
        """Show it, and take what is typed."""
        self.add_class("-open")
        box = self.query_one(Input)
        if text:
            box.value = text
            box.cursor_position = len(text)
        else:
            box.select_all()  # what is typed now takes the place of what was looked for
        self.screen.set_focus(box)  # at once: the keys that follow are for it

    def close(self) -> None:
        """Hide it."""
        self.remove_class("-open")

    def show_count(self, text: str) -> None:
        """How many places there are."""
        self.query_one("#find-count", Static).update(text)

    def action_leave_find(self) -> None:
        """Stop looking."""
        self.post_message(self.Closed())

    def action_next_place(self) -> None:
        """Go to the next place."""
        self.post_message(self.Stepped(1))

    def action_previous_place(self) -> None:
        """Go to the place before."""
        self.post_message(self.Stepped(-1))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Changed(event.value))
