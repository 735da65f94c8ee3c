"""What a wide window shows beside the conversation: the model, and where the last turn spent its time."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from app.backends.base import RunFacts
from app.sanitize import one_line
from app.tui.widgets.report import draw_sections
from app.turn_report import Line, Section, drive_sections, turn_sections
from engine.events import TurnStats

LEAST_WIDTH = 150
"""Columns of a window that has room for it."""


class SidePanel(VerticalScroll, can_focus=False):
    """Figures that stay in sight."""

    DEFAULT_CSS: ClassVar[str] = """
    SidePanel {
        width: 54; height: 1fr; padding: 1 2; background: $surface; scrollbar-size-vertical: 1; display: none;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = Static(markup=False)
        self._facts: RunFacts | None = None
        self._stats: TurnStats | None = None

    def compose(self) -> ComposeResult:
        """One text."""
        yield self._text

    def show(self, facts: RunFacts | None, stats: TurnStats | None) -> None:
        """Show these figures."""
        if (facts, stats) != (self._facts, self._stats):
            self._facts, self._stats = facts, stats
            self._draw()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self._draw()

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width > 0:
            self._text.update(draw_sections(self._sections(), width))

    def _sections(self) -> list[Section]:
        sections: list[Section] = []
        if self._facts is not None:
            facts = self._facts
            sections.append(
                Section(
                    title="The model",
                    lines=(
                        Line(name="folder", text="the bundled demo" if facts.is_demo else one_line(facts.model)),
                        Line(name="kernels", text=one_line(facts.kernels)),
                        Line(name="numerics", text=one_line(facts.numerics)),
                    ),
                )
            )
        if self._stats is None:
            note = "Where the time of a turn goes is shown here once there was one."
            return [*sections, Section(title="The last turn", lines=(), note=note)]
        return [*sections, *turn_sections(self._stats), *drive_sections(self._stats)]
