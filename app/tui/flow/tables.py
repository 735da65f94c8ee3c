"""A table in rows: columns as wide as their cells, narrowed until they fit; a list when even that is too wide."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from markdown_it.token import Token
from rich.cells import cell_len

from app.tui.flow.inline import inline_spans
from app.tui.flow.spans import Row, Span, wrap

_GAP = 2
_LEAST = 6
"""A column is not narrowed below this many cells."""

Side = Literal["left", "right", "center"]


@dataclass(frozen=True, slots=True)
class _Cell:
    spans: tuple[Span, ...]
    side: Side

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


def table_rows(tokens: Sequence[Token], width: int) -> list[Row]:
    """The rows of the table that `tokens` hold, its head set apart by a rule."""
    head, *body = _read(tokens)
    n_columns = len(head)
    if n_columns * (_LEAST + _GAP) - _GAP > width:
        return _as_list(head, body, width)
    natural = [max(cell_len(row[i].text) for row in (head, *body)) for i in range(n_columns)]
    widths = _narrowed(natural, width - _GAP * (n_columns - 1))
    rows = _line(head, widths)
    rows.append(Row((Span((" " * _GAP).join("-" * w for w in widths), "faint"),)))
    for cells in body:
        rows.extend(_line(cells, widths))
    return rows


def _read(tokens: Sequence[Token]) -> list[list[_Cell]]:
    lines: list[list[_Cell]] = []
    side: Side = "left"
    for index, token in enumerate(tokens):
        if token.type == "tr_open":
            lines.append([])
        elif token.type in ("th_open", "td_open"):
            style = str(token.attrs.get("style", ""))
            side = "right" if "right" in style else "center" if "center" in style else "left"
            spans = inline_spans(tokens[index + 1].children or (), "strong" if token.type == "th_open" else "")
            lines[-1].append(_Cell(tuple(spans), side))
    return lines


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """The widths, the widest made smaller until all fit in `room`; an empty column gets one cell."""
    result = [max(width, 1) for width in widths]
    while sum(result) > room:
        widest = max(result)
        second = max((width for width in result if width < widest), default=_LEAST)
        n_widest = result.count(widest)
        less = max(1, min(widest - max(second, _LEAST), (sum(result) - room) // n_widest))
        over = sum(result) - room
        for index, width in enumerate(result):
            if width == widest and over > 0:
                result[index] -= less
                over -= less
    return result


def _line(cells: Sequence[_Cell], widths: Sequence[int]) -> list[Row]:
    columns = [wrap(cell.spans, width) for cell, width in zip(cells, widths, strict=True)]
    rows: list[Row] = []
    for parts in zip_longest(*columns, fillvalue=()):
        spans: list[Span] = []
        for part, cell, width in zip(parts, cells, widths, strict=True):
            spans.extend(_aligned(part, cell.side, width))
            spans.append(Span(" " * _GAP))
        rows.append(Row(tuple(spans[:-1])))
    return rows


def _aligned(part: Iterable[Span], side: Side, width: int) -> list[Span]:
    spans = list(part)
    spare = max(width - sum(cell_len(span.text) for span in spans), 0)
    before = {"left": 0, "right": spare, "center": spare // 2}[side]
    padded = [Span(" " * before), *spans, Span(" " * (spare - before))]
    return [span for span in padded if span.text]


def _as_list(head: Sequence[_Cell], body: Sequence[Sequence[_Cell]], width: int) -> list[Row]:
    rows: list[Row] = []
    for cells in body:
        if rows:
            rows.append(Row())
        for name, cell in zip(head, cells, strict=True):
            rows.extend(Row(spans) for spans in wrap([*name.spans, Span(": "), *cell.spans], width))
    return rows or [Row(spans) for spans in wrap([Span(" ".join(cell.text for cell in head))], width)]
