"""The end of the log file, which is where tracebacks and warnings go."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.content import Content
from textual.widget import Widget

from app import paths
from app.log_tail import tail
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.page import Page

REFRESH_S = 1.0


class LogsScreen(PanelScreen):
    """Follows the log while it is open."""

    HEADING = "Log"
    KEYS: ClassVar = (("close", "back"), ("help", "keys"))

    def __init__(self, path: Path | None = None) -> None:
        """None is the log of this app."""
        super().__init__()
        self._path = path or paths.log_file()
        self._text = ""

    def body(self) -> Iterable[Widget]:
        """One text."""
        yield Page(lambda width: Content(self._text))

    def on_mount(self) -> None:
        """Read it, and again when it grew."""
        self.say_beside_heading(str(self._path))
        self._look()
        self.set_interval(REFRESH_S, self._look)

    def _look(self) -> None:
        text = tail(self._path)
        if text != self._text:
            page = self.query_one(Page)
            at_end = page.is_vertical_scroll_end or not self._text
            self._text = text
            page.redraw()
            if at_end:
                page.scroll_end(animate=False)
