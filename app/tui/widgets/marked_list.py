"""A list whose mark is a sign as well as a colour, so that it is seen without colours too."""

from rich.segment import Segment
from textual.strip import Strip
from textual.widgets import OptionList

MARK = ">"


class MarkedList(OptionList):
    """An `OptionList` for texts that are not markup, with a sign before the marked one. Options need a blank column."""

    def __init__(self, *, classes: str = "") -> None:
        super().__init__(classes=classes, markup=False, compact=True)

    def render_line(self, y: int) -> Strip:
        """The base class's, with the sign in its first column."""
        strip = super().render_line(y)
        number = self.scroll_offset.y + y
        if self.highlighted is None or number >= len(self._lines):
            return strip
        index, line = self._lines[number]
        if index != self.highlighted or line:
            return strip
        first = strip.crop(0, 1)
        style = next((segment.style for segment in first if segment.style is not None), None)
        return Strip.join([Strip([Segment(MARK, style)], 1), strip.crop(1)])
