"""Markdown that grows, cut into blocks: what is finished is never parsed again.

The one thing a reader would get wrong: a finished block is not always a whole one. A long fence, list or paragraph is
handed out in parts while it grows, so that a token costs the same at the end of a long reply as at its beginning; one
pass over the whole text, when the reply has ended, puts the parts together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

BlockKind = Literal["text", "item", "code"]
"""Anything Markdown; an item of a list, which stands close to its neighbours; lines of code."""

Place = tuple[BlockKind, int, int]
"""Kind, first line and line past the end of a block."""

LONGEST_CHARS = 4_000
"""A block that is longer while it grows is cut: at most this much is parsed again for a token."""

LONGEST_WHOLE_CHARS = 20_000
"""The same for text that is whole: the inline parser takes quadratic time over some input that nobody means."""

_SLICE_CHARS = 2_000
_CODE_PART_LINES = 16

_FENCE = re.compile(r"(?P<indent> {0,3})(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of Markdown that is laid out on its own."""

    kind: BlockKind
    source: str
    """The text as the model wrote it; of code without its fence."""
    info: str = ""
    """Of code: the word after the fence, as a rule a language."""
    is_part: bool = False
    """Whether it goes on from the block before it: no gap, and one block for whoever copies."""


def parser() -> MarkdownIt:
    """The Markdown that is shown: CommonMark with tables and strikethrough. HTML is text, a bare address is no link."""
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 12}).enable(["table", "strikethrough"])
    made.core.ruler.at("inline", _inline)
    return made


_LONG_INLINE_CHARS = 400
_DENSE = 0.08
"""Share of signs that open something. Prose with links has 3 %; with more, or with brackets that are never closed, the
inline parser takes quadratic time."""


def _inline(state: StateCore) -> None:
    """The parser's own rule, but that a long text of mostly signs stays text."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        text, token.children = token.content, []
        if len(text) > _LONG_INLINE_CHARS and _is_bomb(text):
            token.children.append(Token("text", "", 0, content=text))
        else:
            state.md.inline.parse(text, state.md, state.env, token.children)


def _is_bomb(text: str) -> bool:
    return sum(map(text.count, "[*_`~!<&")) > _DENSE * len(text) or text.count("[") > 20 + 1.2 * text.count("]")


def _outliner() -> MarkdownIt:
    outliner = parser()
    outliner.core.ruler.enableOnly(["normalize", "block"])
    return outliner


_OUTLINE = _outliner()
"""Finds blocks only."""


class Growing:
    """A text that grows at its end."""

    def __init__(self) -> None:
        self._tail = ""
        self._fence: _Fence | None = None
        self._goes_on = False  # whether the tail is part of the block before it
        self._after_return = False  # whether the text so far ends with a carriage return, which a newline may follow

    def push(self, text: str) -> list[Block]:
        """Take more text; the blocks that are finished with it."""
        done: list[Block] = []
        if not text:
            return done
        rest = text.removeprefix("\n") if self._after_return else text
        self._after_return = text.endswith("\r")
        text = _with_newlines(rest)
        for begin in range(0, len(text), _SLICE_CHARS):
            self._tail += text[begin : begin + _SLICE_CHARS]
            while self._take_text(done) if self._fence is None else self._take_code(self._fence, done):
                pass
        return done

    def tail(self) -> list[Block]:
        """What is not finished, as far as it is known."""
        if self._fence is not None:
            return [self._fence.part(self._tail, is_last=True)]
        return _blocks(self._tail, goes_on=self._goes_on)

    def _take_text(self, done: list[Block]) -> bool:
        """Hand out all blocks but the last, which may go on. Whether there may be more to hand out."""
        places = _outline(self._tail)
        if not places:
            if self._tail.endswith("\n"):
                self._tail, self._goes_on = "", False
            return False
        kind, start, _ = places[-1]
        offset = _offset_of_line(self._tail, start)
        if offset:
            # Where they lie is known already: what begins after them does not change it.
            done += _blocks_at(places[:-1], self._tail[:offset], goes_on=self._goes_on)
            self._tail, self._goes_on = self._tail[offset:], False
        opening = _FENCE.match(self._tail) if kind == "code" else None
        if opening is not None:
            self._fence, self._tail = _Fence(opening), self._tail[opening.end() :]
            return True
        if len(self._tail) <= LONGEST_CHARS:
            return False
        cut = self._tail.rfind("\n", 1, LONGEST_CHARS) + 1 or LONGEST_CHARS
        done += _blocks(self._tail[:cut], goes_on=self._goes_on)
        self._tail, self._goes_on = self._tail[cut:], True
        return True

    def _take_code(self, fence: "_Fence", done: list[Block]) -> bool:
        """Hand out the code up to the end of its fence, or a part when there is enough for one. Whether it ended."""
        begin = fence.seen
        while (end := self._tail.find("\n", begin)) >= 0:
            if fence.ends_with(self._tail[begin:end]):
                done.append(fence.part(self._tail[:begin]))
                self._tail, self._fence = self._tail[end + 1 :], None
                return True
            begin = end + 1
            fence.n_lines += 1
            if fence.n_lines == _CODE_PART_LINES:
                done.append(fence.part(self._tail[:begin]))
                self._tail, begin, fence.n_lines = self._tail[begin:], 0, 0
        if len(self._tail) - begin > LONGEST_CHARS:
            done.append(fence.part(self._tail))
            self._tail, begin, fence.n_lines = "", 0, 0
        fence.seen = begin
        return False


class _Fence:
    """An open fence: what ends it, and how much of it was handed out."""

    def __init__(self, opening: re.Match[str]) -> None:
        self.info = opening["info"].strip()
        self.seen = 0  # characters of the tail that are known not to end it
        self.n_lines = 0  # and how many lines they are
        self._n_parts = 0
        self._indent = len(opening["indent"])
        self._mark = opening["mark"]

    def ends_with(self, line: str) -> bool:
        """Whether `line` closes the fence."""
        mark = line.strip(" \t")
        return len(mark) >= len(self._mark) and not mark.strip(self._mark[0]) and not line.startswith("    ")

    def part(self, code: str, *, is_last: bool = False) -> Block:
        """The next part; `is_last` for what may still change, whose last line may become the end of the fence."""
        if is_last:
            body, newline, line = code.rpartition("\n")
            code = body + newline if line.strip() and not line.strip().strip(self._mark[0]) else code
        if self._indent:
            code = re.sub(rf"^ {{1,{self._indent}}}", "", code, flags=re.MULTILINE)
        block = Block("code", code, self.info, is_part=self._n_parts > 0)
        self._n_parts += not is_last
        return block


def whole(source: str) -> list[Block]:
    """The blocks of a text that grows no more."""
    blocks: list[Block] = []
    for block in _blocks(_with_newlines(source), goes_on=False):
        if block.kind == "code" or len(block.source) <= LONGEST_WHOLE_CHARS:
            blocks.append(block)
        else:
            blocks.extend(_parts(block))
    return blocks


def _with_newlines(text: str) -> str:
    """Line ends as the Markdown parser sees them; it counts a carriage return as one, and lines are found by number."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parts(block: Block) -> Iterator[Block]:
    begin = 0
    while begin < len(block.source):
        end = block.source.rfind("\n", begin + 1, begin + LONGEST_CHARS) + 1 or begin + LONGEST_CHARS
        yield Block(block.kind if begin == 0 else "text", block.source[begin:end], is_part=begin > 0)
        begin = end


def _blocks(text: str, *, goes_on: bool) -> list[Block]:
    return _blocks_at(_outline(text), text, goes_on=goes_on)


def _blocks_at(places: Sequence[Place], text: str, *, goes_on: bool) -> list[Block]:
    lines = text.split("\n")
    blocks: list[Block] = []
    for kind, start, end in places:
        source = "\n".join(lines[start:end]).rstrip()
        opening = _FENCE.match(source + "\n") if kind == "code" else None
        is_part = goes_on and not blocks
        if opening is None:
            blocks.append(Block("text" if kind == "code" else kind, source, is_part=is_part))
            continue
        fence = _Fence(opening)
        body = lines[start + 1 : end]
        while body and not body[-1].strip():
            body.pop()
        if body and fence.ends_with(body[-1]):
            body.pop()
        blocks.append(fence.part("\n".join([*body, ""]) if body else ""))
    return blocks


@lru_cache(maxsize=2)  # what grows is asked about twice: for what is finished, then for what is not
def _outline(text: str) -> tuple[Place, ...]:
    """The blocks; lists by item."""
    places: list[Place] = []
    for token in _OUTLINE.parse(text):
        if token.map is None or token.nesting < 0:
            continue
        if token.level == 0 and not token.type.endswith("_list_open"):
            places.append(("code" if token.type == "fence" else "text", *_pair(token.map)))
        elif token.level == 1 and token.type == "list_item_open":
            places.append(("item", *_pair(token.map)))
    return tuple(places)


def _pair(lines: Sequence[int]) -> tuple[int, int]:
    return lines[0], lines[1]


def _offset_of_line(text: str, line: int) -> int:
    offset = 0
    for _ in range(line):
        offset = text.index("\n", offset) + 1
    return offset
