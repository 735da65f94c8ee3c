"""The drives: each one's share of the last turn's reads, its rate, its queue and its errors."""

from collections.abc import Iterable
from typing import ClassVar

from textual.content import Content
from textual.widget import Widget

from app.tui.context import context
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.page import Page
from app.tui.widgets.report import draw_sections
from app.turn_report import drive_sections
from engine.events import TurnStats

REFRESH_S = 1.0
"""The screen looks for a newer turn this often."""


class TurnFiguresScreen(PanelScreen):
    """Base of the screens that show the last turn; they follow it while they are open."""

    def body(self) -> Iterable[Widget]:
        """One text."""
        yield Page(self.draw)

    def on_mount(self) -> None:
        """Follow what the app has."""
        self._seen: TurnStats | None = context(self.app).last_turn
        self.set_interval(REFRESH_S, self._look)

    def _look(self) -> None:
        stats = context(self.app).last_turn
        if stats is not self._seen:
            self._seen = stats
            self.query_one(Page).redraw()

    def draw(self, width: int) -> Content:
        """Lay it out for so many columns."""
        raise NotImplementedError


class DrivesScreen(TurnFiguresScreen):
    """What each drive did."""

    HEADING = "Drives"
    KEYS: ClassVar = (("close", "back"), ("plan", "where the time goes"), ("help", "keys"))

    def draw(self, width: int) -> Content:
        """The drives of the last turn."""
        stats = context(self.app).last_turn
        if stats is None:
            return Content("No turn has been run yet. After one, this shows what each drive gave.")
        return draw_sections(drive_sections(stats), width)
