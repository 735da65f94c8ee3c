"""The inside of a paragraph as spans: emphasis, code, links.

The one thing a reader would get wrong: nothing here can be followed or clicked. A link is its text and, where the two
differ, the address beside it, so that what is shown is all there is.
"""

from collections.abc import Sequence

from markdown_it.token import Token

from app.tui.flow.spans import Span, tame

_STYLES = {"em": "em", "strong": "strong", "s": "struck", "link": "link"}


def inline_spans(tokens: Sequence[Token], style: str = "") -> list[Span]:
    """The spans of an inline token's children, on top of `style`."""
    spans: list[Span] = []
    open_styles = [style] if style else []
    links: list[tuple[str, int]] = []  # address, and the span its text begins with
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        match token.type:
            case "text" | "html_inline":
                spans.append(Span(tame(token.content), " ".join(open_styles)))
            case "softbreak":
                spans.append(Span(" ", " ".join(open_styles)))
            case "hardbreak":
                spans.append(Span("\n"))
            case "code_inline":
                spans.append(Span(tame(token.content), " ".join([*open_styles, "code-inline"])))
            case "image":
                spans.append(Span(tame(f"[image: {token.content}] ({token.attrs.get('src', '')})"), "link"))
            case _ if edge == "open":
                open_styles.append(_STYLES.get(name, ""))
                if name == "link":
                    links.append((str(token.attrs.get("href", "")), len(spans)))
            case _ if edge == "close" and len(open_styles) > bool(style):
                open_styles.pop()
                if name == "link":
                    spans.extend(_address(*links.pop(), spans))
    return [span for span in spans if span.text]


def _address(href: str, begin: int, spans: Sequence[Span]) -> list[Span]:
    text = "".join(span.text for span in spans[begin:])
    shown = tame(href)
    return [] if not shown or shown.removeprefix("mailto:") == text else [Span(f" ({shown})", "faint")]
