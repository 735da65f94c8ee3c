"""A file of lines to a message tree, and what of it could not be used. Writes nothing and takes no lock."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.lines import Damage, LineReader, decode
from app.transcripts.tree import Tree

MOST_MESSAGES = 100_000
_MOST_DAMAGE = 1000
"""Named one by one; a file of junk has a million bad lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A file that was read."""

    tree: Tree
    damage: tuple[Damage, ...]
    """Lines that were skipped or fit badly, those known to be torn left out."""
    n_lines: int
    torn_bytes: int
    """At the end, of a line whose writing was interrupted; it is not among the damage."""
    too_long: bool
    """Whether the file has more than is read."""


def load(read: Callable[[int, int], bytes]) -> Loaded:
    """Fold the lines that `read(n_bytes, offset)` gives. Raises: OSError as it does."""
    tree, damage = Tree(), list[Damage]()
    reader = LineReader(read)
    for line in reader:
        if not line.strip():
            continue
        try:
            wrong = tree.apply(decode(line))
        except ValueError as error:
            wrong = str(error)
        if wrong and len(damage) < _MOST_DAMAGE:
            damage.append(Damage(line=reader.n_lines, reason=wrong))
        if len(tree) >= MOST_MESSAGES:
            reader.too_long = True
            break
    torn = reader.n_lines if reader.torn_bytes else 0
    return Loaded(
        tree=tree,
        damage=tuple(one for one in damage if one.line not in tree.known_torn and one.line != torn),
        n_lines=reader.n_lines,
        torn_bytes=reader.torn_bytes,
        too_long=reader.too_long,
    )


def load_file(path: Path, files: FileOps) -> Loaded:
    """Read a file that somebody may be writing. Raises: OSError."""
    fd = files.open(path, os.O_RDONLY)
    try:
        return load(lambda n_bytes, offset: files.read(fd, n_bytes, offset))
    finally:
        files.close(fd)
