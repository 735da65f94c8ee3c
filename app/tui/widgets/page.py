"""Text that is laid out for the width it has, and again when that changes; and the columns it is laid out in."""

from collections.abc import Callable, Iterable
from textwrap import wrap

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

MUTED = "$foreground-muted"
"""What can be skipped. `$text-muted` means the same, but has no fixed colour for a part of a text to take."""

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

    def redraw(self, draw: Draw | None = None) -> None:
        """Lay it out again, or something else in its place."""
        self._text.redraw(draw)


class _Text(Static):
    def __init__(self, draw: Draw) -> None:
        super().__init__(markup=False)
        self.shown = Content()
        self._draw = draw
        self._drawn_for = 0

    def on_resize(self) -> None:
        if self.content_size.width != self._drawn_for:
            self.redraw()

    def redraw(self, draw: Draw | None = None) -> None:
        self._draw = draw or self._draw
        self._drawn_for = self.content_size.width
        if self._drawn_for > 0:
            self.shown = self._draw(self._drawn_for)
            self.update(self.shown)


def heading(text: str) -> Content:
    """A section's name."""
    return Content.styled(text, "bold $primary")


def pairs(items: Iterable[tuple[str, str]], width: int) -> Content:
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
    return Content("\n").join(lines)


def sections(parts: Iterable[tuple[str, Content]]) -> Content:
    """Headings, each with its text, a blank line between them; what has no text is left out."""
    blocks = [Content("\n").join([heading(title), text]) for title, text in parts if len(text)]
    return Content("\n\n").join(blocks)
