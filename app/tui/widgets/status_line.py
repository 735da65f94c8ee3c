"""One row that says what the machine does. Parts are dropped from the right as it gets narrow."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive

from app.sanitize import one_line
from app.tui.widgets.kept import Kept
from app.tui.widgets.page import MUTED

SEPARATOR = " | "

Part = tuple[str, str]
"""A text and how it is meant: "" for a figure, "lead" for what goes on, "warn" for what is wrong."""

_STYLES = {"": MUTED, "lead": "$primary", "warn": "bold $warning"}


class StatusLine(Kept):
    """The parts, the most important first."""

    DEFAULT_CSS: ClassVar[str] = """
    StatusLine { height: 1; padding: 0 1; color: $text-muted; }
    """
    parts: reactive[tuple[Part, ...]] = reactive(())

    def show(self, parts: Sequence[Part]) -> None:
        """Show these parts; those without text are left out."""
        self.parts = tuple((one_line(text), style) for text, style in parts if text)

    def render(self) -> Content:
        """As many as fit, separated by bars."""
        room = self.content_size.width
        shown: list[tuple[str, str]] = []
        for text, style in self.parts:
            needed = cell_len(text) + (len(SEPARATOR) if shown else 0)
            if needed > room and shown:
                break
            if shown:
                shown.append((SEPARATOR, MUTED))
            shown.append((text, _STYLES[style]))
            room -= needed
        return Content.assemble(*shown)
