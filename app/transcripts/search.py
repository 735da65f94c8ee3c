"""Words in all transcripts.

The one thing a reader would get wrong: a word of the query matches words that begin with it, whatever their case and
accents; all words of the query must be in the same message.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.load import load_file
from app.transcripts.records import Node, Role

MOST_HITS = 200
_AROUND = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that has the words."""

    transcript: str
    """Id."""
    node: str
    """Id."""
    role: Role
    snippet: str
    """Text around the first word. Not yet safe for a terminal."""


def plain(text: str) -> str:
    """Text without case and accents, as words are compared."""
    spread = unicodedata.normalize("NFKD", text)
    return "".join(char for char in spread if not unicodedata.combining(char)).casefold()


def words_of(query: str) -> list[str]:
    """The words of a query, as they are compared."""
    return re.findall(r"\w+", plain(query))


def scan(paths: Iterable[Path], query: str, files: FileOps) -> list[Hit]:
    """Search by reading every file. Files that cannot be read are passed over."""
    patterns = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words_of(query)]
    hits: list[Hit] = []
    for path in paths if patterns else ():
        try:
            nodes = load_file(path, files).tree.nodes()
        except OSError:
            continue
        for node in nodes:
            text = plain(node.text)
            places = [found.start() for pattern in patterns if (found := pattern.search(text))]
            if len(places) == len(patterns):
                hits.append(_hit(path.stem, node, places[0]))
    return hits[:MOST_HITS]


def _hit(transcript: str, node: Node, place: int) -> Hit:
    start = max(0, place - _AROUND)
    snippet = " ".join(node.text[start : place + _AROUND].split())
    return Hit(transcript=transcript, node=node.id, role=node.role, snippet=snippet)
