"""Widgets whose lines are kept between two frames.

The one thing a reader would get wrong: Textual keeps what a widget paints, but asks every widget of the screen for it
in every frame, and looks up styles, colours and filters each time. That took most of what a streamed token cost. What
is kept here is dropped by whatever Textual itself takes for a change: a refresh, another size, another style.
"""

from typing import Any, Self

from textual.containers import Horizontal, Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static


class Kept(Widget):
    """To be named behind the class whose lines are kept: Textual looks for style sheets in the first alone."""

    _kept: tuple[Region, list[Strip]] | None = None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Those of the last frame, if nothing has changed."""
        if self._kept is None or self._kept[0] != crop:
            self._kept = crop, super().render_lines(crop)
        return self._kept[1]

    def refresh(self, *regions: Region, **how: Any) -> Self:
        """Paint again; what was kept is no more."""
        self._kept = None
        return super().refresh(*regions, **how)

    def notify_style_update(self) -> None:
        """There is another style: what was kept is no more."""
        self._kept = None
        super().notify_style_update()


class KeptStatic(Static, Kept):
    """A text."""


class KeptHorizontal(Horizontal, Kept):
    """Beside each other."""


class KeptVertical(Vertical, Kept):
    """Below each other."""
