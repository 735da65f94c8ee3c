"""Words in all transcripts: what a query means, and the search that reads every file.

The one thing a reader would get wrong: a word of the query matches words that begin with it, whatever their case and
accents, and all of them must be in the same message. Scripts written without blanks are compared sign by sign. The
index holds the same words, so that with it and without it the same is found.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.load import load_file
from app.transcripts.records import Role

MOST_HITS = 200
_MOST_TERMS = 32
_AROUND = 60
_SIGNS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Kana, Han."""
_WORD = re.compile(rf"[{_SIGNS}]|[^\W_{_SIGNS}]+")
_TERM = re.compile(rf"[{_SIGNS}]+|[^\W_{_SIGNS}]+")
_SIGN = re.compile(f"[{_SIGNS}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that has the words."""

    transcript: str
    """Id."""
    node: str
    """Id."""
    role: Role
    snippet: str
    """Text around the first word, on one line. Not yet safe for a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One word of a query, or a run of signs."""

    words: tuple[str, ...]
    """As they stand in `word_line`, next to each other."""
    is_begin: bool
    """Whether the last word may go on."""

    def within(self, line: str) -> bool:
        """Whether a message with this `word_line` has it."""
        return f" {' '.join(self.words)}{'' if self.is_begin else ' '}" in line


def plain(text: str) -> str:
    """Text without case and accents, as words are compared."""
    if text.isascii():
        return text.casefold()
    spread = unicodedata.normalize("NFKD", text)
    bare = "".join(char for char in spread if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", bare).casefold()


def word_line(text: str) -> str:
    """The words of a text with one blank before and behind each."""
    return f" {' '.join(_WORD.findall(plain(text)))} "


def terms_of(query: str) -> list[Term]:
    """What is looked for; of a very long query only the first 32."""
    found = _TERM.findall(plain(query))[:_MOST_TERMS]
    return [
        Term(words=tuple(one), is_begin=False) if _SIGN.match(one) else Term(words=(one,), is_begin=True)
        for one in found
    ]


def snippet(text: str, terms: Sequence[Term]) -> str:
    """The text around the first term, about 120 characters."""
    bare = plain(text)
    patterns = (rf"(?<![^\W_{_SIGNS}]){re.escape(''.join(term.words))}" for term in terms)
    places = [found.start() for pattern in patterns if (found := re.search(pattern, bare))]
    # Without accents and ligatures a text is about as long as with them.
    place = min(places, default=0) * len(text) // max(len(bare), 1)
    start, end = max(0, place - _AROUND), place + _AROUND
    cut = " ".join(text[start:end].split())
    whole = f"{'...' if start else ''}{cut}{'...' if end < len(text) else ''}"
    return whole.encode("utf-8", "replace").decode()  # half a character cannot be kept in an index


def scan(paths: Iterable[Path], query: str, files: FileOps) -> list[Hit]:
    """Search by reading every file, the one changed last first. Files that cannot be read are passed over."""
    terms = terms_of(query)
    hits: list[Hit] = []
    for path in sorted(paths, key=_order) if terms else ():
        try:
            nodes = load_file(path, files).tree.nodes()
        except OSError:
            continue
        for node in nodes:
            line = word_line(node.text)
            if all(term.within(line) for term in terms):
                hits.append(Hit(transcript=path.stem, node=node.id, role=node.role, snippet=snippet(node.text, terms)))
                if len(hits) == MOST_HITS:
                    return hits
    return hits


def _order(path: Path) -> tuple[int, str]:
    try:
        return -path.stat().st_mtime_ns, path.stem
    except OSError:
        return 0, path.stem
