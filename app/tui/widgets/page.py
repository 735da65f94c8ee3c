"""Text that is laid out for the width it has, and again when that changes; and the columns it is laid out in."""

from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

MUTED = "$foreground-muted"
"""What can be skipped. `$text-muted` means the same, but has no fixed colour for a part of a text to take."""

_TWO_COLUMNS = 140
"""From this width on a page has two columns."""
_GAP = 6

Draw = Callable[[int], Content]
"""Lays something out for a number of columns."""


class Page(VerticalScroll):
    """One text that scrolls with the arrow keys."""

    DEFAULT_CSS = """
    Page {
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    Page > _Text {
        height: auto;
        padding: 1 2 1 2;
    }
    """

    def __init__(self, draw: Draw) -> None:
        self._text = _Text(draw)
        super().__init__(self._text)

    @property
    def shown(self) -> str:
        """What stands there now."""
        return self._text.shown.plain

    def redraw(self) -> None:
        """Lay it out again."""
        self._text.redraw()


class _Text(Static):
    def __init__(self, draw: Draw) -> None:
        super().__init__(markup=False)
        self.shown = Content()
        self._draw = draw
        self._drawn_for = 0

    def on_resize(self) -> None:
        if self.content_size.width != self._drawn_for:
            self.redraw()

    def redraw(self) -> None:
        self._drawn_for = self.content_size.width
        if self._drawn_for > 0:
            self.shown = self._draw(self._drawn_for)
            self.update(self.shown)


def heading(text: str) -> Content:
    """A section's name."""
    return Content.styled(text, "bold $primary")


def pairs(items: Iterable[tuple[str, str]], width: int) -> list[Content]:
    """Names, and what is said of each beside it, wrapped at `width` columns.

    Names that would take half the width stand on a line of their own, and so do all on a very narrow screen.
    """
    rows = list(items)
    column = max((len(name) for name, _ in rows), default=0) + 2
    stacked = column > width // 2
    room = max(width - (2 if stacked else column), 10)
    lines: list[Content] = []
    for name, text in rows:
        body = [part for line in text.split("\n") for part in wrap(line, room) or [""]]
        if stacked:
            lines.append(Content.styled(name, MUTED))
            lines += [Content(f"  {line}") for line in body if line]
        else:
            lines.append(Content.assemble((name.ljust(column), MUTED), body[0]))
            lines += [Content(" " * column + line) for line in body[1:]]
    return lines


def column_width(width: int) -> int:
    """The columns a block is laid out in, so that `in_columns` can set two side by side on a wide screen."""
    return (width - _GAP) // 2 if width >= _TWO_COLUMNS else width


def in_columns(blocks: Sequence[Sequence[Content]], width: int) -> Content:
    """Blocks of lines with a blank line between two; on a wide screen in two columns, about as long as each other."""
    half = column_width(width)
    if half == width:
        return Content("\n").join(_stacked(blocks))
    heights = [len(block) for block in blocks]
    n_left = min(range(len(blocks) + 1), key=lambda n: max(sum(heights[:n]), sum(heights[n:])))
    left, right = _stacked(blocks[:n_left]), _stacked(blocks[n_left:])
    rows = []
    for at in range(max(len(left), len(right))):
        line = left[at] if at < len(left) else Content()
        rows.append(Content.assemble(line.pad_right(half + _GAP - line.cell_length), *right[at : at + 1]))
    return Content("\n").join(rows)


def _stacked(blocks: Sequence[Sequence[Content]]) -> list[Content]:
    lines: list[Content] = []
    for block in blocks:
        lines += [Content(), *block] if lines else block
    return lines
