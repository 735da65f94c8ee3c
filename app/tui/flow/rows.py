"""A block laid out in rows of a width."""

from collections.abc import Iterable, Sequence

from markdown_it.token import Token

from app.tui.flow.blocks import Block, parser
from app.tui.flow.code import highlight
from app.tui.flow.inline import inline_spans
from app.tui.flow.spans import Row, Span, tame, wrap
from app.tui.flow.tables import table_rows

MIN_WIDTH = 8
"""Cells; what is narrower is laid out for this and cropped."""

_PARSER = parser()
_RULE_CELLS = 24


def rows_of(block: Block, width: int) -> list[Row]:
    """The rows of `block`, at most `width` cells each, no gap before or after."""
    if block.kind == "code":
        return code_rows(block.source, block.info, width, is_part=block.is_part)
    return _layout(_PARSER.parse(block.source), max(width, MIN_WIDTH))


def plain_rows(text: str, width: int, style: str = "") -> list[Row]:
    """Text that is not Markdown, such as what the user typed."""
    return [Row(spans) for spans in wrap([Span(tame(text), style)], max(width, MIN_WIDTH))]


def code_rows(code: str, info: str, width: int, *, is_part: bool = False) -> list[Row]:
    """Lines of code, long ones wrapped, under the name of the language."""
    width = max(width, MIN_WIDTH)
    rows = [] if is_part or not info else [Row((Span(" " + tame(info)[: width - 2], "code-info"),), "code")]
    for line in wrap(highlight(tame(code).removesuffix("\n"), info), width - 2):
        rows.append(Row((Span(" "), *line), "code"))
    return rows


def _layout(tokens: Sequence[Token], width: int) -> list[Row]:
    """The rows of the blocks in `tokens`, one blank row between two of them; none in a list that is written close."""
    rows: list[Row] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = _end(tokens, index)
        inner = tokens[index + 1 : end]
        is_close = token.hidden or (token.type.endswith("_list_open") and index > 0 and tokens[index - 1].hidden)
        if rows and not is_close:
            rows.append(Row())
        rows.extend(_block(token, inner, max(width, MIN_WIDTH)))
        index = end + 1
    return rows


def _end(tokens: Sequence[Token], index: int) -> int:
    """Where the block that begins at `index` ends."""
    if tokens[index].nesting <= 0:
        return index
    level = tokens[index].level
    end = index + 1
    while tokens[end].level > level:
        end += 1
    return end


def _block(token: Token, inner: Sequence[Token], width: int) -> Iterable[Row]:
    match token.type:
        case "paragraph_open":
            return _text(inner, width)
        case "heading_open":
            return _text(inner, width, token.tag if token.tag in ("h1", "h2") else "h3")
        case "bullet_list_open" | "ordered_list_open":
            return _items(inner, width)
        case "blockquote_open":
            return [row.behind(Span("| ", "faint")) for row in _layout(inner, width - 2)]
        case "fence" | "code_block":
            return code_rows(token.content, token.info.strip(), width)
        case "table_open":
            return table_rows(inner, width)
        case "hr":
            return [Row((Span("-" * min(width, _RULE_CELLS), "faint"),))]
        case _:
            return plain_rows(token.content, width) if token.content else []


def _text(inner: Sequence[Token], width: int, style: str = "") -> list[Row]:
    return [Row(spans) for spans in wrap(inline_spans(inner[0].children or (), style), width)]


def _items(tokens: Sequence[Token], width: int) -> list[Row]:
    rows: list[Row] = []
    index = 0
    while index < len(tokens):
        token, end = tokens[index], _end(tokens, index)
        marker = f"{token.info}{token.markup} " if token.info else "- "
        inside = _layout(tokens[index + 1 : end], width - len(marker)) or [Row()]
        rows.append(inside[0].behind(Span(marker, "marker")))
        rows.extend(row.behind(Span(" " * len(marker))) for row in inside[1:])
        index = end + 1
    return rows
