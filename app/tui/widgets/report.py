"""Sections of a report as text for a page: names, figures, bars where something is shared."""

from collections.abc import Sequence
from textwrap import wrap

from textual.content import Content

from app.tui.figures import bar
from app.tui.widgets.page import MUTED, column_width, heading, in_columns
from app.turn_report import Line, Section

_LONGEST_BAR, _SHORTEST_BAR = 24, 8


def draw_sections(sections: Sequence[Section], width: int) -> Content:
    """All of them for a page of `width` columns."""
    own_width = column_width(width)
    # One column of names for all sections where there is room, so that figures stand below each other.
    names = max((len(line.name) for section in sections for line in section.lines), default=0) + 2
    blocks = []
    for section in sections:
        own = max((len(line.name) for line in section.lines), default=0) + 2
        column = names if names <= own_width // 3 else min(own, own_width // 2)
        blocks.append(_section(section, own_width, column))
    return in_columns(blocks, width)


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
