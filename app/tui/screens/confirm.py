"""Two small questions above a screen: yes or no, and one line of text."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.actions import Scope
from app.sanitize import one_line, visible
from app.tui.action_bindings import binding


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something that cannot be taken back, or costs much. Dismissed with the answer; no by default."""

    CSS_PATH = "panel.tcss"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ()
    BINDINGS: ClassVar[list[BindingType]] = [
        binding("close"),
        ("n", "close", "No"),
        ("y", "answer(True)", "Yes"),
        ("enter", "answer(True)", "Yes"),
    ]

    def __init__(self, question: str, yes: str, *, details: str = "") -> None:
        """`yes` is what happens, as a verb: "Read again"."""
        super().__init__()
        self._question = question
        self._yes = yes
        self._details = details

    def compose(self) -> ComposeResult:
        """The question, what it means, and the two ways out."""
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), classes="dialog-question", markup=False)
            if self._details:
                yield Static(visible(self._details), classes="dialog-details", markup=False)
            yield Static(f"y {self._yes}   n leave it", classes="dialog-keys", markup=False)

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)

    def action_close(self) -> None:
        """Close with no."""
        self.dismiss(False)


class AskScreen(ModalScreen[str | None]):
    """Asks for a line of text. Dismissed with it, or with None; what `check` finds wrong is said, and it stays open."""

    CSS_PATH = "panel.tcss"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ()
    BINDINGS: ClassVar[list[BindingType]] = [binding("close")]

    def __init__(
        self, question: str, value: str = "", *, details: str = "", check: Callable[[str], str] = lambda text: ""
    ) -> None:
        """`check` says what is wrong with an answer, or ""."""
        super().__init__()
        self._question = question
        self._value = value
        self._details = details
        self._check = check

    def compose(self) -> ComposeResult:
        """The question, the line, and what is wrong with it."""
        with Vertical(classes="dialog"):
            yield Static(visible(self._question), classes="dialog-question", markup=False)
            if self._details:
                yield Static(visible(self._details), classes="dialog-details", markup=False)
            yield Input(one_line(self._value), classes="dialog-input", compact=True)
            yield Static(id="dialog-problem", markup=False)
            yield Static("Enter take it   Esc leave it", classes="dialog-keys", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the line, if nothing is wrong with it."""
        event.stop()
        problem = self._check(event.value)
        self.query_one("#dialog-problem", Static).update(visible(problem))
        if not problem:
            self.dismiss(event.value)

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss(None)
