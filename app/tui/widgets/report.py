"""Sections of a report as text for a page: names, figures, bars where something is shared; two columns where wide."""

from collections.abc import Sequence
from textwrap import wrap

from textual.content import Content

from app.tui.figures import bar
from app.tui.widgets.page import MUTED, heading
from app.turn_report import Line, Section

_LONGEST_BAR, _SHORTEST_BAR = 24, 8
_TWO_COLUMNS = 140
_GAP = 6


def draw_sections(sections: Sequence[Section], width: int) -> Content:
    """All of them for `width` columns, a blank line between two."""
    if width < _TWO_COLUMNS:
        return Content("\n").join(_column(sections, width))
    half = (width - _GAP) // 2
    blocks = [_column([section], half) for section in sections]
    n_lines = sum(map(len, blocks))
    n_left = next((i for i in range(len(blocks)) if 2 * sum(map(len, blocks[:i])) >= n_lines), len(blocks))
    left, right = _column(sections[:n_left], half), _column(sections[n_left:], half)
    rows = []
    for at in range(max(len(left), len(right))):
        line = left[at] if at < len(left) else Content()
        rows.append(Content.assemble(line.pad_right(half + _GAP - line.cell_length), *right[at : at + 1]))
    return Content("\n").join(rows)


def _column(sections: Sequence[Section], width: int) -> list[Content]:
    # One column of names for all sections where there is room, so that figures stand below each other.
    names = max((len(line.name) for section in sections for line in section.lines), default=0) + 2
    lines: list[Content] = []
    for section in sections:
        own = max((len(line.name) for line in section.lines), default=0) + 2
        if lines:
            lines.append(Content())
        lines += _section(section, width, names if names <= width // 3 else min(own, width // 2))
    return lines


def _section(section: Section, width: int, column: int) -> list[Content]:
    rows = [heading(part) for part in wrap(section.title, width)]
    text_width = max((len(line.text) for line in section.lines if line.share is not None), default=0)
    bar_width = min(width - column - text_width - 2, _LONGEST_BAR)
    for line in section.lines:
        rows += _line(line, width, column, text_width, bar_width)
    rows += [Content.styled(row, MUTED) for note in section.note.splitlines() for row in wrap(note, width)]
    return rows


def _line(line: Line, width: int, column: int, text_width: int, bar_width: int) -> list[Content]:
    name = (line.name.ljust(column), MUTED)
    if line.share is not None and bar_width >= _SHORTEST_BAR:
        # The figure stands before its bar, so that the figures of all lines stand in one column.
        room = width - column - text_width - 2 - bar_width - 2
        note = f"  {line.note}" if line.note and len(line.note) <= room else ""
        drawn = (bar(line.share, 1, bar_width), "$primary")
        return [Content.assemble(name, line.text.ljust(text_width + 2), drawn, (note, MUTED))]
    rows = wrap(line.text, max(width - column, 12)) or [""]
    return [Content.assemble(name, rows[0]), *(Content(" " * column + row) for row in rows[1:])]
