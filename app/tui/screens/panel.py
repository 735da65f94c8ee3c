"""What every screen above the chat looks like: a title, a body, and the keys that matter here."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from app.actions import Scope
from app.sanitize import one_line
from app.tui.action_bindings import bindings_of
from app.tui.widgets.key_line import KeyLine
from app.tui.widgets.page import MUTED


class PanelScreen(Screen[None]):
    """Base of those screens. The chat below goes on."""

    CSS_PATH = "panel.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal")]  # noqa: RUF012 - Textual's own declaration
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("panel")
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "panel")
    HEADING: ClassVar[str] = ""
    KEYS: ClassVar[Sequence[tuple[str, str]]] = (("close", "back"), ("help", "keys"))

    def compose(self) -> ComposeResult:
        """Heading, body, keys."""
        yield Static(Content.styled(self.HEADING, "bold"), classes="panel-heading", markup=False)
        yield from self.body()
        yield KeyLine(self.KEYS)

    def body(self) -> Iterable[Widget]:
        """What the screen is for."""
        return ()

    def say_beside_heading(self, text: str) -> None:
        """A few dim words after the heading: how many there are, where it lies."""
        heading = self.query_one(".panel-heading", Static)
        heading.update(Content.assemble((self.HEADING, "bold"), (f"  {one_line(text)}", MUTED)))

    def action_close(self) -> None:
        """Go back to the chat."""
        self.dismiss()
