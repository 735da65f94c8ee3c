"""A text that is shown: its blocks, and their rows at one width, kept apart into what is finished and what is not."""

from collections.abc import Sequence

from app.tui.flow.blocks import Block, Growing, whole
from app.tui.flow.rows import plain_rows, rows_of
from app.tui.flow.spans import Row


class Flow:
    """Markdown in rows. Growing costs what the last block costs; another width lays everything out again."""

    def __init__(self, width: int) -> None:
        self.blocks: list[Block] = []
        """Finished ones."""
        self.tail: list[Block] = []
        """What still changes."""
        self.rows: list[Row] = []
        """Of the finished blocks."""
        self.tail_rows: list[Row] = []
        self.first_rows: list[int] = []
        """Where each block begins in `rows`, those of the tail where they would stand after them."""
        self.is_raw = False
        """Whether the text is shown as it was written."""
        self._width = width
        self._source: list[str] = []
        self._growing: Growing | None = Growing()

    @property
    def source(self) -> str:
        """The text as it was written."""
        if len(self._source) > 1:
            self._source = ["".join(self._source)]
        return self._source[0] if self._source else ""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.rows) + len(self.tail_rows)

    def push(self, text: str) -> None:
        """Take more text at the end; nothing after `settle`."""
        assert self._growing is not None, "a settled text does not grow"
        self._source.append(text)
        done = self._growing.push(text)
        if self.is_raw:
            self.blocks += done
            self.tail = self._growing.tail()
            self._lay_out()
            return
        self._take_back_tail()
        self._add(done, self.blocks, self.rows)
        self.tail = self._growing.tail()
        self._add(self.tail, [], self.tail_rows)

    def settle(self) -> None:
        """End the growing, for now: what was handed out in parts is put together. Takes a while for a long text."""
        self._growing = None
        self.blocks, self.tail = whole(self.source), []
        self._lay_out()

    def settled(self) -> "Flow":
        """A settled one of the same text, made in another thread while this one is shown."""
        flow = Flow(self._width)
        flow.is_raw, flow._source = self.is_raw, [self.source]
        flow.settle()
        return flow

    def is_like(self, other: "Flow") -> bool:
        """Whether they show the same text in the same way."""
        return (self.source, self._width, self.is_raw) == (other.source, other._width, other.is_raw)

    def reopen(self) -> None:
        """Let it grow again."""
        text = self.source
        self._source, self.blocks, self.tail, self._growing = [], [], [], Growing()
        self.rows, self.tail_rows, self.first_rows = [], [], []
        if text:
            self.push(text)

    def set_width(self, width: int) -> None:
        """Lay out for another width."""
        if width != self._width:
            self._width = width
            self._lay_out()

    def set_raw(self, is_raw: bool) -> None:
        """Show the text as it was written, or rendered."""
        self.is_raw = is_raw
        self._lay_out()

    def row(self, index: int) -> Row:
        """One row."""
        n_done = len(self.rows)
        return self.rows[index] if index < n_done else self.tail_rows[index - n_done]

    def _lay_out(self) -> None:
        self.first_rows, self.tail_rows = [], []
        if self.is_raw:
            self.rows = plain_rows(self.source, self._width)
            return
        self.rows = []
        blocks, self.blocks = self.blocks, []
        self._add(blocks, self.blocks, self.rows)
        self._add(self.tail, [], self.tail_rows)

    def _take_back_tail(self) -> None:
        self.tail_rows = []
        del self.first_rows[len(self.blocks) :]

    def _add(self, blocks: Sequence[Block], to: list[Block], rows: list[Row]) -> None:
        before = self.blocks[-1] if self.blocks else None
        offset = 0 if rows is self.rows else len(self.rows)
        for block in blocks:
            if before is not None and not _is_close(before, block):
                rows.append(Row())
            self.first_rows.append(offset + len(rows))
            rows.extend(rows_of(block, self._width))
            to.append(block)
            before = block


def _is_close(before: Block, block: Block) -> bool:
    return block.is_part or (before.kind == "item" and block.kind == "item")
