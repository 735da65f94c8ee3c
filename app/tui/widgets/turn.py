"""One message as rows: what the user wrote, or a reply with its thinking, its notices and its figures.

The one thing a reader would get wrong: these are not widgets. A transcript of two hundred turns is one widget that
paints the rows it shows, so neither layout nor style sheets are asked about what lies above the screen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from app.sanitize import one_line
from app.tui.figures import fitting
from app.tui.flow.flow import Flow
from app.tui.flow.rows import plain_rows
from app.tui.flow.spans import Row, Span, tame, wrap

LONG_CHARS = 6_000
"""A longer reply is settled in a thread: it takes 30 ms for so many characters."""

StopKind = Literal["prompt", "thinking", "text", "code", "note"]


@dataclass(frozen=True, slots=True)
class Stop:
    """A place where the block cursor stands: a message of the user, a paragraph, a fence."""

    kind: StopKind
    first_row: int
    """Within the message."""
    n_rows: int
    source: str
    """What copying it gives."""


class UserRows:
    """What the user wrote, or a system message."""

    def __init__(self, node_id: str, text: str, width: int, *, is_system: bool = False) -> None:
        self.node_id = node_id
        self.text = text
        self.place = (1, 1)
        """Which of how many siblings it is."""
        self._is_system = is_system
        self._width = width
        self._rows: list[Row] | None = None

    @property
    def n_rows(self) -> int:
        """Rows, the blank one after them included."""
        return len(self._made())

    def row(self, index: int) -> Row:
        """One row."""
        return self._made()[index]

    def set_width(self, width: int) -> None:
        """Lay out for another width."""
        if width != self._width:
            self._width, self._rows = width, None

    def set_place(self, index: int, count: int) -> None:
        """Which of how many siblings it is, counted from 1."""
        if (index, count) != self.place:
            self.place, self._rows = (index, count), None

    def stops(self) -> Iterator[Stop]:
        """One: the message."""
        yield Stop("prompt", 0, self.n_rows - 1, self.text)

    def _made(self) -> list[Row]:
        if self._rows is None:
            self._rows = self._make()
        return self._rows

    def _make(self) -> list[Row]:
        note = f"{self.place[0]} of {self.place[1]}" if self.place[1] > 1 else ""
        mark = "system  " if self._is_system else "> "
        room = self._width - len(mark) - (len(note) + 2 if note else 1)
        rows: list[Row] = []
        for index, row in enumerate(plain_rows(self.text, room, "faint" if self._is_system else "")):
            lead = Span(mark if index == 0 else " " * len(mark), "faint" if self._is_system else "prompt-mark")
            spans = (lead, *row.spans)
            if note and index == 0:
                used = sum(cell_len(span.text) for span in spans)
                spans = (*spans, Span(" " * (self._width - used - len(note) - 1)), Span(note, "faint"))
            rows.append(Row(spans, "" if self._is_system else "prompt"))
        return [*rows, Row()]


class NoteRows:
    """Something of ours in the place of a conversation: lines of spans."""

    def __init__(self, lines: Sequence[Sequence[Span]], width: int) -> None:
        self.node_id = ""
        self._lines = lines
        self._width = width
        self._rows = self._make()

    @property
    def n_rows(self) -> int:
        """Rows."""
        return len(self._rows)

    def row(self, index: int) -> Row:
        """One row."""
        return self._rows[index]

    def set_width(self, width: int) -> None:
        """Lay out for another width."""
        self._width = width
        self._rows = self._make()

    def stops(self) -> Iterator[Stop]:
        """None."""
        yield from ()

    def _make(self) -> list[Row]:
        return [Row(spans) for line in self._lines for spans in wrap(line, self._width)]


class ReplyRows:
    """A reply, from waiting for it to its figures."""

    def __init__(self, node_id: str, width: int) -> None:
        self.node_id = node_id
        self.place = (1, 1)
        self.is_folded = True
        """Whether the thinking is shown by its length alone."""
        self.is_raw = False
        self.answer = Flow(width)
        self.thinking = Flow(width - 2)
        self._width = width
        self._n_thinking_tokens: int | None = None
        self._notices: list[str] = []
        self._progress: list[str] = []
        self._error: tuple[str, str] | None = None
        self._footer: Sequence[str] = ()
        self._head: list[Row] = []
        self._foot: list[Row] = []
        self._make_head()
        self._make_foot()

    # what is shown

    def push_text(self, text: str) -> None:
        """More of the answer."""
        if not self.answer.n_rows and not self.answer.source:
            text = text.lstrip("\n")
        self._set_progress(())
        if text:
            self.answer.push(text)
        self._make_head()

    def push_thinking(self, text: str) -> None:
        """More of the thinking."""
        self._set_progress(())
        self.thinking.push(text if self.thinking.source else text.lstrip("\n"))
        self._make_head()

    def add_notice(self, text: str) -> None:
        """Something the user should know; each text once."""
        if text not in self._notices:
            self._notices.append(text)
            self._make_head()

    @property
    def is_long(self) -> bool:
        """Whether settling it takes longer than a screen may stand still."""
        return len(self.answer.source) + len(self.thinking.source) > LONG_CHARS

    def settle(self) -> None:
        """It grows no more, or not for now."""
        for flow in (self.thinking, self.answer):
            if flow.source:
                flow.settle()
        self._set_progress(())

    def settled(self) -> tuple[Flow, Flow]:
        """Thinking and answer as `settle` would leave them; from any thread, for `take_settled`."""
        return self.thinking.settled(), self.answer.settled()

    def take_settled(self, flows: tuple[Flow, Flow]) -> bool:
        """Show these instead; False when the text or the width is another by now."""
        thinking, answer = flows
        if not (thinking.is_like(self.thinking) and answer.is_like(self.answer)):
            return False
        self.thinking, self.answer = thinking, answer
        return True

    def reopen(self) -> None:
        """It grows again: the reply is gone on with."""
        self.answer.reopen()
        self.thinking.reopen()
        self._footer, self._error = (), None
        self._make_head()
        self._make_foot()

    def set_progress(self, lines: Sequence[str]) -> None:
        """What is going on in place of the reply; gone with its first text."""
        self._set_progress(lines)

    def set_thinking_tokens(self, n_tokens: int) -> None:
        """How many tokens the thinking took."""
        self._n_thinking_tokens = n_tokens
        self._make_head()

    def set_error(self, message: str, hint: str) -> None:
        """What the reply failed of; a line end in it is one of a file's name."""
        self._error = (one_line(message), one_line(hint))
        self._make_head()
        self._set_progress(())

    def set_footer(self, parts: Sequence[str]) -> None:
        """The figures."""
        self._footer = parts
        self._make_head()
        self._set_progress(())

    def set_place(self, index: int, count: int) -> None:
        """Which of how many siblings it is, counted from 1."""
        self.place = (index, count)
        self._make_foot()

    def fold(self, is_folded: bool) -> None:
        """Hide the thinking, or show it."""
        self.is_folded = is_folded
        self._make_head()

    def set_raw(self, is_raw: bool) -> None:
        """Show the answer as it was written, or rendered."""
        self.is_raw = is_raw
        self.answer.set_raw(is_raw)

    def set_width(self, width: int) -> None:
        """Lay out for another width."""
        if width == self._width:
            return
        self._width = width
        self.answer.set_width(width)
        self.thinking.set_width(width - 2)
        self._make_head()
        self._make_foot()

    @property
    def width(self) -> int:
        """Cells of a row."""
        return self._width

    @property
    def error(self) -> str:
        """What it failed of, or ""."""
        return "" if self._error is None else self._error[0]

    # its rows

    @property
    def n_rows(self) -> int:
        """Rows, the blank one after them included."""
        return len(self._head) + self._n_thinking_rows + self.answer.n_rows + len(self._foot)

    @property
    def n_still_rows(self) -> int:
        """Rows at the beginning that more text will not change."""
        if not self.answer.source or self.is_raw:
            return 0
        return len(self._head) + self._n_thinking_rows + len(self.answer.rows)

    def row(self, index: int) -> Row:
        """One row."""
        if index < len(self._head):
            return self._head[index]
        index -= len(self._head)
        n_thinking = self._n_thinking_rows
        if index < n_thinking:
            if index == n_thinking - 1:
                return Row()
            row = self.thinking.row(index)
            return Row((Span("| ", "faint"), *(Span(s.text, f"{s.style} thinking".strip()) for s in row.spans)))
        index -= n_thinking
        if index < self.answer.n_rows:
            return self.answer.row(index)
        return self._foot[index - self.answer.n_rows]

    def stops(self) -> Iterator[Stop]:
        """The thinking, then the blocks of the answer: the parts of one fence, or the items of a list, are one."""
        n_thinking = self._n_thinking_rows
        if self.thinking.source:
            yield Stop("thinking", self._thinking_row, 1 + max(n_thinking - 1, 0), self.thinking.source)
        first = len(self._head) + n_thinking
        groups = [] if self.is_raw else list(self._groups())
        for index, (kind, row, source) in enumerate(groups):
            end = groups[index + 1][1] if index + 1 < len(groups) else self.answer.n_rows
            while end > row + 1 and not self.answer.row(end - 1).spans:
                end -= 1
            yield Stop(kind, first + row, end - row, source)
        if not groups:
            n_rows = self.n_rows - first - 1
            if n_rows > 0:
                yield Stop("note", first, n_rows, self.answer.source or self.error)

    def _groups(self) -> Iterator[tuple[StopKind, int, str]]:
        kind, row = "", 0
        sources: list[str] = []
        for block, first_row in zip([*self.answer.blocks, *self.answer.tail], self.answer.first_rows, strict=True):
            if not (block.is_part or (block.kind == "item" and kind == "item")):
                if kind:
                    yield "code" if kind == "code" else "text", row, _joined(kind, sources)
                kind, row, sources = block.kind, first_row, []
            sources.append(block.source)
        if kind:
            yield "code" if kind == "code" else "text", row, _joined(kind, sources)

    @property
    def _n_thinking_rows(self) -> int:
        return self.thinking.n_rows + 1 if self.thinking.source and not self.is_folded else 0

    def _set_progress(self, lines: Sequence[str]) -> None:
        if lines or self._progress or not self._foot or self._footer or self._error:
            self._progress = list(lines)
            self._make_foot()

    def _make_head(self) -> None:
        rows: list[Row] = []
        for notice in self._notices:
            rows.extend(_flagged(notice, "notice", self._width))
        if rows:
            rows.append(Row())
        self._thinking_row = len(rows)
        if self.thinking.source:
            rows.append(Row((Span(self._thinking_line(), "faint"),)))
            if self.is_folded:
                rows.append(Row())
        self._head = rows

    def _thinking_line(self) -> str:
        size = f", {self._n_thinking_tokens:,} tokens" if self._n_thinking_tokens else ""
        is_done = bool(self.answer.source or self._footer or self._error)
        what = "thought" if is_done else "thinking"
        return f"{'+' if self.is_folded else '-'} {what}{size}"

    def _make_foot(self) -> None:
        rows: list[Row] = []
        for line in self._progress:
            rows.append(Row((Span(line, "progress"),)))
        if self._error is not None:
            message, hint = self._error
            rows.extend(self._gap())
            rows.extend(_flagged(message, "error", self._width))
            if hint:
                rows.extend(
                    Row(spans).behind(Span("  ")) for spans in wrap([Span(tame(hint), "faint")], self._width - 2)
                )
        parts = list(self._footer)
        if self.place[1] > 1:
            parts.insert(0, f"reply {self.place[0]} of {self.place[1]}")
        if parts:
            if not rows:
                rows.extend(self._gap())
            rows.append(Row((Span(fitting(parts, self._width), "footer"),)))
        self._foot = [*rows, Row()]

    def _gap(self) -> list[Row]:
        return [Row()] if self.answer.n_rows else []


def _joined(kind: str, sources: Sequence[str]) -> str:
    return ("" if kind == "code" else "\n").join(sources)


def _flagged(text: str, style: str, width: int) -> Iterator[Row]:
    """Rows with a sign before the first, so that it is seen without colour."""
    for index, spans in enumerate(wrap([Span(tame(text), style)], width - 2)):
        yield Row(spans).behind(Span("! " if index == 0 else "  ", style))
