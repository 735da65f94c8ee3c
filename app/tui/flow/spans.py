"""Styled text and how it is broken into rows of a width. Widths are terminal cells.

The one thing a reader would get wrong: a style is a name, or several with blanks between them, and not a colour. What a
name looks like is the theme's business and is looked up when a row is painted, so a new theme lays nothing out again.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from app.sanitize import visible

_WIDE = "\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
_EVEN = "\u3000-\u3029\u3041-\u3096\u309b-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60"
"""Of these the ones that running text has: two cells each, without exception."""
_PIECES = re.compile(rf"[ \t]+|([{_EVEN}]+)|[{_WIDE}]|[^ \t{_WIDE}]+")
"""Between any two of these a row may end: blanks, ideographs (between any two of which it may, too), a word."""

_MARKS = re.compile("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
                    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+)")  # fmt: skip
"""Marks over one letter, beyond the four that a language may need."""

_TAB_CELLS = 4

_NARROW = re.compile("[ -~\u00a1-\u02ff\u0370-\u0482\u048a-\u0556\u2010-\u2027\u2400-\u2426\u2500-\u259f]*").fullmatch
"""Latin, Greek, Cyrillic, Armenian, quotes, pictures of controls, boxes: a cell each, which saves looking them up."""
_ALL_EVEN = re.compile(f"[{_EVEN}]+").fullmatch


def _cells(text: str) -> int:
    return len(text) if _NARROW(text) else 2 * len(text) if _ALL_EVEN(text) else cell_len(text)


def _chopped(text: str, width: int) -> list[str]:
    """A word in parts of at most `width` cells."""
    if _NARROW(text):
        return [text[begin : begin + width] for begin in range(0, len(text), width)]
    return chop_cells(text, width)


class Span(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the screen."""

    spans: tuple[Span, ...] = ()
    fill: str = ""
    """Style of the line from `fill_from` to the right edge, under the spans' own."""
    fill_from: int = 0
    """Cells before the fill."""

    @property
    def text(self) -> str:
        """The characters alone."""
        return "".join(span.text for span in self.spans)

    def behind(self, *prefix: Span) -> "Row":
        """The row with `prefix` before it, which the fill leaves out."""
        cells = sum(cell_len(span.text) for span in prefix)
        return Row((*prefix, *self.spans), self.fill, self.fill_from + cells if self.fill else 0)


def tame(text: str) -> str:
    """`text` as a terminal may have it: nothing steers it, no letter towers over its neighbours, tabs are blanks."""
    shown = _MARKS.sub(lambda match: f"{match[1]}<{len(match[2])} more marks>", visible(text))
    return shown.expandtabs(_TAB_CELLS) if "\t" in shown else shown


def wrap(spans: Iterable[Span], width: int) -> list[tuple[Span, ...]]:
    """`spans` in rows of at most `width` cells, broken at blanks where there are any; a newline ends a row."""
    rows: list[tuple[Span, ...]] = []
    for line in _lines(spans):
        text = "".join(span.text for span in line)
        if _cells(text) <= width:
            rows.append(line)
        else:
            rows.extend(_cut(line, list(_breaks(text, width))))
    return rows


def _lines(spans: Iterable[Span]) -> Iterator[tuple[Span, ...]]:
    line: list[Span] = []
    for text, style in spans:
        if "\n" not in text:
            line.append(Span(text, style))
            continue
        first, *others = text.split("\n")
        line.append(Span(first, style))
        for other in others:
            yield tuple(line)
            line = [Span(other, style)]
    yield tuple(line)


def _breaks(text: str, width: int) -> Iterator[tuple[int, int]]:
    """The rows of one line, as half-open ranges of `text`; blanks at a break belong to no row."""
    start = end = used = 0  # of the row in hand: its first character, past its last word, its cells with all blanks
    for match in _PIECES.finditer(text):
        piece = match.group()
        cells = _cells(piece)
        if piece[0] in " \t":
            used += cells
            continue
        if match.lastindex:  # ideographs, as many at a time as fit
            at = match.start()
            while at < match.end():
                fitting = max(width - used, 0) // 2
                if used and not fitting:
                    if end > start:
                        yield start, end
                    start = end = at
                    used = 0
                    continue
                end = min(at + fitting, match.end())
                used += 2 * (end - at)
                at = end
            continue
        if used and used + cells > width:
            if end > start:
                yield start, end
            start = end = match.start()
            used = 0
        if cells <= width:
            used += cells
            end = match.end()
            continue
        *parts, last = _chopped(piece, width)
        for part in parts:
            yield start, start + len(part)
            start += len(part)
        end, used = start + len(last), _cells(last)
    if end > start:
        yield start, end


def _cut(line: Sequence[Span], ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[Span, ...]]:
    """The parts of `line` in `ranges`, which ascend."""
    index = offset = 0  # of the span in hand, and where it begins
    for start, end in ranges:
        row: list[Span] = []
        while index < len(line):
            text, style = line[index]
            part = text[max(start - offset, 0) : end - offset]
            if part:
                row.append(Span(part, style))
            if offset + len(text) > end:
                break
            offset += len(text)
            index += 1
        yield tuple(row)
