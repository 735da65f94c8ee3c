"""What a conversation is called when nobody has named it."""

from collections.abc import Iterable

from app.transcripts.records import Node

_MOST = 80


def title_of(nodes: Iterable[Node]) -> str:
    """The first line with something in it that the user wrote, cut to 80 characters; "" when there is none."""
    return next((first_line(node.text) for node in nodes if node.role == "user" and node.text.strip()), "")


def first_line(text: str) -> str:
    """The first line that is not blank, cut to 80 characters with an ellipsis."""
    line = text.strip()[: 4 * _MOST].splitlines()[:1]
    words = " ".join(line[0].split()) if line else ""
    return words if len(words) <= _MOST else words[: _MOST - 1].rstrip() + "\u2026"
