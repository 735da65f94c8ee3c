"""Code as spans: what kind of word each is. Which language is asked of the fence's info word, never guessed."""

from collections.abc import Mapping
from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

from app.tui.flow.spans import Span

_STYLES: Mapping[_TokenType, str] = {
    Token.Comment: "code-comment",
    Token.Keyword: "code-keyword",
    Token.Operator.Word: "code-keyword",
    Token.Name.Builtin: "code-name",
    Token.Name.Class: "code-name",
    Token.Name.Decorator: "code-name",
    Token.Name.Function: "code-name",
    Token.Name.Tag: "code-name",
    Token.Literal.Number: "code-value",
    Token.Literal.String: "code-value",
    Token.Keyword.Constant: "code-value",
    Token.Generic.Deleted: "code-comment",
    Token.Generic.Inserted: "code-value",
    Token.Generic.Heading: "code-keyword",
}
"""By kind of word; a kind that is not here looks like the nearest one above it."""

LONGEST_CHARS = 200_000
"""Longer code is shown in one colour: half a second is too long for decoration."""


def highlight(code: str, info: str) -> list[Span]:
    """`code` in spans that together are `code`."""
    lexer = _lexer(info.split()[0].strip("{.}").lower()) if info and len(code) <= LONGEST_CHARS else None
    if lexer is None:
        return [Span(code)]
    spans: list[Span] = []
    for kind, text in lexer.get_tokens(code):
        spans.append(Span(text, _style(kind)))
    return spans


@lru_cache(maxsize=32)
def _lexer(name: str) -> Lexer | None:
    try:
        # The text comes back as it was: no blank line lost, no newline added.
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _style(kind: _TokenType) -> str:
    at: _TokenType | None = kind
    while at is not None:
        if at in _STYLES:
            return _STYLES[at]
        at = at.parent
    return ""
