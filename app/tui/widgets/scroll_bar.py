"""Scroll bars in whole cells, for every widget."""

from typing import ClassVar

from textual.scrollbar import ScrollBar, ScrollBarRender


class PlainScrollBar(ScrollBarRender):
    """Without the signs for parts of a cell, whose width terminals do not agree on."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


def use_plain_scroll_bars() -> None:
    """Have all scroll bars drawn so, as Textual documents it."""
    ScrollBar.renderer = PlainScrollBar
