"""The data files: text that a person edits, read and checked.

A block is `# topic`, a line `keys:`, lines `- phrasing | phrasing` and a line `> answer`; blocks of `unknown.txt` also
have `share:` and lists of words that their phrasings name in braces. The one thing a reader would get wrong: two
phrasings are the same when they have the same letters and digits in the same order, so "mirror?" repeats "Mirror".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from assets.demo_recipe.errors import RecipeError

DATA = Path(__file__).parent / "data"

MOST_ANSWER_CHARACTERS = 230
MOST_PHRASING_CHARACTERS = 90
LEAST_PHRASINGS = 20


@dataclass(slots=True)
class Block:
    """One topic."""

    topic: str
    keys: tuple[str, ...] = ()
    """What an answer must have to be right; `a|b` is met by either."""
    phrasings: list[str] = field(default_factory=list)
    answer: str = ""
    words: dict[str, list[str]] = field(default_factory=dict)
    """For templates: what may stand for a name in braces."""
    share: int = 0
    """For templates: questions to make of them."""


def bare(text: str) -> str:
    """What two phrasings have in common when they are the same one: letters, digits and single blanks.

    A text without a letter or digit is its own.
    """
    kept = "".join(c for c in text.lower() if c.isalnum() or c.isspace())
    return " ".join(kept.split()) or text.strip()


def has_keys(keys: tuple[str, ...], text: str) -> bool:
    """Whether `text` has every keyword, in any case."""
    low = text.lower()
    return all(any(one.lower() in low for one in key.split("|")) for key in keys)


def read_blocks(path: Path) -> list[Block]:
    """The blocks of a file, in its order. Raises: RecipeError with file and topic."""
    blocks: list[Block] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path.name}:{number}"
        if not line.strip() or line.startswith("## "):
            continue
        if line.startswith("# "):
            blocks.append(Block(topic=line[2:].strip()))
        elif not blocks:
            raise RecipeError(f"{where}: a line before the first topic")
        elif not _take(blocks[-1], line):
            raise RecipeError(f"{where}: neither keys, phrasings, answer nor words: {line!r}")
    for block in blocks:
        _check(path, block)
    _check_unique(path, blocks)
    return blocks


def _take(block: Block, line: str) -> bool:
    if line.startswith("- "):
        block.phrasings += [part.strip() for part in line[2:].split(" | ")]
    elif line.startswith("> ") and not block.answer:
        block.answer = line[2:].strip()
    elif (name := line.partition(": ")[0]).isidentifier():
        rest = line.partition(": ")[2]
        if name == "keys":
            block.keys = tuple(key.strip() for key in rest.split(","))
        elif name == "share":
            block.share = int(rest)
        else:
            block.words[name] = [word.strip() for word in rest.split(" | ")]
    else:
        return False
    return True


def _check(path: Path, block: Block) -> None:
    where = f"{path.name}: {block.topic!r}"
    if not block.keys or not block.answer:
        raise RecipeError(f"{where} has no keywords or no answer")
    if not has_keys(block.keys, block.answer):
        raise RecipeError(f"{where}: its own answer lacks one of the keywords {block.keys}")
    if len(block.answer) > MOST_ANSWER_CHARACTERS:
        raise RecipeError(f"{where}: an answer of {len(block.answer)} characters, {MOST_ANSWER_CHARACTERS} are allowed")
    if len(block.phrasings) < LEAST_PHRASINGS and not block.share:
        raise RecipeError(f"{where}: {len(block.phrasings)} phrasings, at least {LEAST_PHRASINGS} are wanted")
    for phrasing in block.phrasings:
        if not 0 < len(phrasing) <= MOST_PHRASING_CHARACTERS:
            raise RecipeError(f"{where}: a phrasing of {len(phrasing)} characters: {phrasing!r}")


def _check_unique(path: Path, blocks: list[Block]) -> None:
    seen: dict[str, str] = {}
    for block in blocks:
        for phrasing in block.phrasings:
            if (other := seen.setdefault(bare(phrasing), block.topic)) != block.topic:
                raise RecipeError(f"{path.name}: {phrasing!r} stands for {other!r} and for {block.topic!r}")


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A question that needs the turn before it."""

    before: str
    """Topic of that turn."""
    topic: str
    phrasings: tuple[str, ...]


def read_follow_ups(path: Path) -> list[FollowUp]:
    """Lines `before -> topic: phrasing | phrasing`. Raises: RecipeError."""
    found = []
    for where, line in _lines(path):
        heads, _, rest = line.partition(": ")
        before, arrow, topic = heads.partition(" -> ")
        if not arrow or not rest:
            raise RecipeError(f"{where}: not `before -> topic: phrasings`")
        found.append(FollowUp(before.strip(), topic.strip(), tuple(part.strip() for part in rest.split(" | "))))
    return found


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A phrasing that training never reads."""

    kind: str
    """fact, unknown, about artesian or talk."""
    topic: str
    phrasing: str


def read_held_out(path: Path) -> list[HeldOut]:
    """Lines `kind; topic: phrasing | phrasing`. Raises: RecipeError."""
    found = []
    for where, line in _lines(path):
        heads, _, rest = line.partition(": ")
        kind, semicolon, topic = heads.partition("; ")
        if not semicolon or not rest:
            raise RecipeError(f"{where}: not `kind; topic: phrasings`")
        found += [HeldOut(kind.strip(), topic.strip(), part.strip()) for part in rest.split(" | ")]
    return found


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("# "):
            yield f"{path.name}:{number}", line
