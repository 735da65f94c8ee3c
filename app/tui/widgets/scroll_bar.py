"""Scroll bars in whole cells, for every widget."""

from math import ceil
from typing import ClassVar

from textual.scrollbar import ScrollBar, ScrollBarRender


class PlainScrollBar(ScrollBarRender):
    """Without the signs for parts of a cell, whose width terminals do not agree on."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


def use_plain_scroll_bars() -> None:
    """Have all scroll bars drawn so, as Textual documents it."""
    ScrollBar.renderer = PlainScrollBar


def thumb_cells(height: int, n_rows: int, position: float) -> tuple[int, int]:
    """The first cell of the bar's thumb and the one past its last; (0, 0) where there is none.

    `height` rows of `n_rows` are shown from `position` on. Source: `ScrollBarRender.render_bar`, for whole cells.
    """
    if not 0 < height < n_rows:
        return 0, 0
    size = max(1.0, height * height / n_rows)
    first = int((height - size) * position / (n_rows - height))
    return first, first + ceil(size)
