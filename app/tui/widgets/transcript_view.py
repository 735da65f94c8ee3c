"""The conversation as one widget that paints the rows it shows.

The one thing a reader would get wrong: it follows the end by itself while the user has not scrolled away, and stays
where it is, to the row, once they have.

Not Textual's Markdown widget: that one splits its whole text and lays out all its blocks for every piece, 11 ms a token
at token 500 and 38 ms at token 9,500. This takes 1.9 and 1.7 ms, measured by `python -m tests.app.tui.screen_cost`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from app.tui.action_bindings import bindings_of
from app.tui.flow.spans import Row
from app.tui.widgets.scroll_bar import thumb_cells
from app.tui.widgets.turn import NoteRows, ReplyRows, Stop, UserRows

TEXT_CELLS = 96
"""The widest a line of text becomes: longer ones are hard to read."""

_GUTTER = 2
"""Cells left of the text, for the mark of the cursor."""

_LONG_ROWS = 400
"""More rows than these take longer to lay out than two frames last."""
_RESIZE_AFTER_S = 0.1

_STYLES = (
    *("em", "strong", "struck", "link", "code-inline", "h1", "h2", "h3", "marker", "faint"),
    *("notice", "error", "progress", "footer", "thinking", "prompt", "prompt-mark"),
    *("code", "code-info", "code-keyword", "code-name", "code-value", "code-comment"),
    *("cursor", "found", "found-here", "selection"),
)

MessageRows = UserRows | ReplyRows | NoteRows


def _on_the_screen(binding: BindingType) -> BindingType:
    """The binding of an action that the screen does: a turn's keys are heard here, what they do concerns the chat."""
    return replace(binding, action=f"screen.{binding.action}") if isinstance(binding, Binding) else binding


@dataclass(frozen=True, slots=True)
class Match:
    """A place where what is looked for stands."""

    message: int
    row: int
    start: int
    """In characters of the row's text."""
    end: int


class TranscriptView(ScrollView, can_focus=True):
    """The messages of a conversation, from the first to the head."""

    BINDINGS: ClassVar[list[BindingType]] = [_on_the_screen(one) for one in bindings_of("turn")]
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in _STYLES}

    @dataclass
    class Typed(Message):
        """A letter that does nothing here: the user is writing."""

        text: str

    @dataclass
    class Aligned(Message):
        """The text begins at another column."""

        left_cells: int

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.messages: list[MessageRows] = []
        self.cursor: tuple[int, int] | None = None
        """Message and stop within it; None while it is not in use."""
        self.follows = True
        """Whether the end is kept in sight."""
        self.matches: list[Match] = []
        self.match_index = 0
        self._wanted = ""  # what is looked for
        self._starts: list[int] = []
        self._text_cells = TEXT_CELLS
        self._left = 0
        self._styles: dict[tuple[str, ...], Style] = {}
        self._strips: dict[int, tuple[Row, object, Strip]] = {}
        self._blank_strip: Strip | None = None
        self._look: tuple[tuple[LineFilter, ...], Color] = ((), Color(0, 0, 0))
        """What changes every line on its way to the terminal, and the ground it lies on."""
        self._thumb = (0, 0)
        self._cursor_rows = range(0)
        self._resize_timer: Timer | None = None

    # what is shown

    @property
    def text_cells(self) -> int:
        """Width of the text."""
        return self._text_cells

    @property
    def left_cells(self) -> int:
        """Cells left of the text, those for the mark included."""
        return self._left + _GUTTER

    def show(self, messages: Sequence[MessageRows], *, from_top: bool = False) -> None:
        """Show these messages instead, from the end or from the top."""
        self.messages = list(messages)
        self.cursor, self.follows = None, not from_top
        for message in self.messages:
            message.set_width(self._text_cells)
        self._strips.clear()
        self.look_again()
        self.changed()
        if from_top:
            self.scroll_to(y=0, animate=False, force=True)
            self.follows = False

    def replace(self, messages: Sequence[MessageRows]) -> None:
        """Show these messages instead, where the user is: others of the same conversation, or more."""
        self.messages = list(messages)
        for message in self.messages:
            message.set_width(self._text_cells)
        self._strips.clear()
        self.look_again()
        self.changed()

    def changed(self, first: int = 0, row: int = 0) -> None:
        """The rows from number `row` of message number `first` on are others now."""
        n_rows = self.virtual_size.height
        before = self._starts[first] + row if first < len(self._starts) else n_rows
        self._count()
        self._keep_cursor()
        if self.follows:
            self.scroll_end(animate=False, immediate=True, force=True)
        self._move_bar()
        top = self.scroll_offset.y
        after = min(max(n_rows, self.virtual_size.height), top + self.size.height)
        if top <= before:
            self.refresh(Region(0, before - top, self.size.width, max(after - before, 0)))
        else:
            self.refresh()

    def set_reading_width(self) -> None:
        """Lay out for the widget's width, with what is at the top of the screen kept there."""
        room = self.scrollable_content_region.width
        cells = max(min(room - _GUTTER - 1, TEXT_CELLS), 8)
        self._left = max((room - cells - _GUTTER) // 2, 0) if room > TEXT_CELLS + 2 * _GUTTER else 0
        self._strips.clear()
        self.post_message(self.Aligned(self.left_cells))
        if cells == self._text_cells:
            return
        anchor = self._at(self.scroll_offset.y) if self.messages and not self.follows else None
        share = anchor[1] / max(self.messages[anchor[0]].n_rows, 1) if anchor else 0.0
        self._text_cells = cells
        for message in self.messages:
            message.set_width(cells)
        self.look_again()
        self.changed()
        if anchor is not None:
            y = self._starts[anchor[0]] + round(share * self.messages[anchor[0]].n_rows)
            self.scroll_to(y=y, animate=False, force=True)

    def to_end(self) -> None:
        """Go to the end and follow it."""
        self.follows = True
        self._place_cursor(None)
        self.scroll_end(animate=False, immediate=True, force=True)

    # the cursor

    def move_cursor(self, step: int) -> bool:
        """Move to the block above or below; from nowhere to the last one. False when it left at the bottom."""
        stops = self._all_stops()
        if not stops:
            return False
        places = [(message, index) for message, index, _ in stops]
        if self.cursor is None:
            if step > 0:
                return False
            at = len(places) - 1
        else:
            at = (places.index(self.cursor) if self.cursor in places else len(places) - 1) + step
        if at >= len(places):
            self._place_cursor(None)
            return False
        self._place_cursor(places[max(at, 0)])
        self._show_cursor()
        return True

    def leave_cursor(self) -> None:
        """Take the cursor away."""
        self._place_cursor(None)

    @property
    def at_cursor(self) -> tuple[MessageRows, Stop] | None:
        """The message and the block under the cursor."""
        if self.cursor is None:
            return None
        message = self.messages[self.cursor[0]]
        stops = list(message.stops())
        return (message, stops[min(self.cursor[1], len(stops) - 1)]) if stops else None

    def _all_stops(self) -> list[tuple[int, int, Stop]]:
        return [
            (number, index, stop)
            for number, message in enumerate(self.messages)
            for index, stop in enumerate(message.stops())
        ]

    def _place_cursor(self, place: tuple[int, int] | None) -> None:
        if place == self.cursor:
            return
        self.cursor = place
        self._keep_cursor()
        self.refresh()

    def _keep_cursor(self) -> None:
        """The rows under the cursor, which move as the conversation grows."""
        if self.cursor is not None and self.cursor[0] >= len(self.messages):
            self.cursor = None
        here = self.at_cursor
        if here is None or self.cursor is None:
            self._cursor_rows = range(0)
            return
        first = self._starts[self.cursor[0]] + here[1].first_row
        self._cursor_rows = range(first, first + here[1].n_rows)

    def _show_cursor(self) -> None:
        rows, top, height = self._cursor_rows, self.scroll_offset.y, self.size.height
        if rows.start < top or len(rows) >= height:
            self._scroll_by_hand(rows.start)
        elif rows.stop > top + height:
            self._scroll_by_hand(rows.stop - height)

    def _scroll_by_hand(self, y: int) -> None:
        self.scroll_to(y=y, animate=False, force=True)
        self._note_scroll(y)

    # finding

    def find(self, text: str) -> int:
        """Mark every place of `text`, upper and lower case alike, and go to the last; how many there are."""
        self._wanted = text
        self.look_again()
        self.match_index = len(self.matches) - 1
        self.refresh()
        self._show_match()
        return len(self.matches)

    def look_again(self) -> None:
        """Mark the places in the rows as they are now; who changes rows beside the end calls it."""
        self.matches = list(self._places_of(self._wanted)) if self._wanted.strip() else []
        self.match_index = max(min(self.match_index, len(self.matches) - 1), 0)

    def find_step(self, step: int) -> None:
        """Go to the next or the previous place, around the ends."""
        if self.matches:
            self.match_index = (self.match_index + step) % len(self.matches)
            self._show_match()
            self.refresh()

    def _show_match(self) -> None:
        if self.matches:
            match = self.matches[self.match_index]
            y = self._starts[match.message] + match.row
            if not self.scroll_offset.y <= y < self.scroll_offset.y + self.size.height:
                self._scroll_by_hand(max(y - self.size.height // 3, 0))

    def _places_of(self, text: str) -> Iterator[Match]:
        # A row ends where a blank or nothing was: both are tried by letting white space in the pattern match either.
        wanted = re.compile(r"\s+".join(re.escape(word) for word in text.split()), re.IGNORECASE)
        for number, message in enumerate(self.messages):
            rows = [message.row(index).text for index in range(message.n_rows)]
            begins = list(accumulate((len(row) + 1 for row in rows), initial=0))
            for found in wanted.finditer("\n".join(rows)):
                row = bisect_right(begins, found.start()) - 1
                start, end = found.start() - begins[row], found.end() - begins[row]
                yield Match(number, row, start, min(end, len(rows[row])))

    # painting

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of the screen.

        Textual's own would ask for borders, padding and tints of each, of which there are none, and keep what it paints
        by its place on the screen: with every row that is added, all of them would be painted again.
        """
        look = (tuple(self.get_line_filters()), self.background_colors[1])
        if look != self._look:
            self._forget_painted()
            self._look = look
        strips = [self._line(y) for y in crop.line_range]
        left, right = crop.column_span
        return [strip.crop(left, right) for strip in strips] if left > 0 or right < self.size.width else strips

    def render_line(self, y: int) -> Strip:
        """One line, which says where each of its letters stands: Textual asks for it where the mouse selects.

        What is painted leaves that out: no two letters would have a style in common, and each style has its colours
        looked up.
        """
        at = y + self.scroll_offset.y
        return self._line(y).apply_offsets(0, at) if at < self.virtual_size.height else self._line(y)

    def _line(self, y: int) -> Strip:
        width = self.size.width
        at = y + self.scroll_offset.y
        if not self._starts or at >= self.virtual_size.height:
            return self._blank(width)
        number, index = self._at(at)
        row = self.messages[number].row(index)
        selected = None if self.text_selection is None else self.text_selection.get_span(at)
        matches = tuple(m for m in self.matches if m.message == number and m.row == index) if self.matches else ()
        here = self.matches[self.match_index] if matches else None
        flags = (at in self._cursor_rows, selected, matches, here)
        known = self._strips.get(at)
        if known is not None and known[0] == row and known[1] == flags:
            return known[2]
        strip = self._filtered(
            self._paint(row, width, is_cursor=flags[0], selected=selected, matches=matches, here=here)
        )
        if len(self._strips) > 1_000:
            self._strips.clear()
        self._strips[at] = (row, flags, strip)
        return strip

    def _filtered(self, strip: Strip) -> Strip:
        filters, background = self._look
        for one in filters:
            strip = strip.apply_filter(one, background)
        return strip

    def _blank(self, width: int) -> Strip:
        """A line below the conversation. Kept: asking for the style takes longer than painting a row of text."""
        if self._blank_strip is None or self._blank_strip.cell_length != width:
            self._blank_strip = self._filtered(Strip.blank(width, self._style()))
        return self._blank_strip

    def _paint(
        self,
        row: Row,
        width: int,
        *,
        is_cursor: bool,
        selected: tuple[int, int] | None,
        matches: Sequence[Match],
        here: Match | None,
    ) -> Strip:
        base = self._style()
        ground = "cursor" if is_cursor else ""
        fill = ground or row.fill
        mark = Segment("| ", self._style(ground, "prompt-mark")) if is_cursor else Segment("  ", base)
        segments = [Segment(" " * self._left, base), mark]
        cells, offset = 0, 0
        for text, style in row.spans:
            under = fill if cells >= row.fill_from else ground
            for part, extra in self._parts(text, offset, selected, matches, here):
                segments.append(Segment(part, self._style(under, style, extra)))
            cells += cell_len(text)
            offset += len(text)
        segments.append(Segment(" " * max(self._text_cells + 1 - cells, 0), self._style(fill)))
        strip = Strip([segment for segment in segments if segment.text])
        return strip.adjust_cell_length(width, base)

    def _parts(
        self,
        text: str,
        offset: int,
        selected: tuple[int, int] | None,
        matches: Sequence[Match],
        here: Match | None,
    ) -> Iterator[tuple[str, str]]:
        """`text` cut where something is found or selected, each part with the style on top of its own."""
        marks = [(m.start, m.end, "found-here" if m is here else "found") for m in matches]
        if selected is not None:
            left = self._left + _GUTTER
            end = selected[1] - left if selected[1] >= 0 else offset + len(text)
            marks.append((max(selected[0] - left, 0), end, "selection"))
        edges = {0, len(text)}
        for start, end, _ in marks:
            edges |= {min(max(start - offset, 0), len(text)), min(max(end - offset, 0), len(text))}
        places = sorted(edges)
        for start, end in pairwise(places):
            at = offset + start
            yield text[start:end], next((style for a, b, style in reversed(marks) if a <= at < b), "")

    def _style(self, *layers: str) -> Style:
        """The style of names on top of each other, the lowest first."""
        style = self._styles.get(layers)
        if style is None:
            names = [f"transcript--{name}" for layer in layers for name in layer.split()]
            style = self.get_visual_style(*names).rich_style
            # Textual leaves reverse video out of what it adds up; without colour it is all there is.
            if any(self.get_component_styles(name).text_style.reverse for name in names):
                style += Style(reverse=True)
            self._styles[layers] = style
        return style

    def notify_style_update(self) -> None:
        """Look styles up again: there is another theme."""
        super().notify_style_update()
        self._styles.clear()
        self._forget_painted()

    def _forget_painted(self) -> None:
        self._strips.clear()
        self._blank_strip = None

    # selecting with the mouse

    @property
    def allow_select(self) -> bool:
        """Always."""
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, without the space left of it."""
        left = " " * (self._left + _GUTTER)
        rows = (message.row(index).text for message in self.messages for index in range(message.n_rows))
        text = selection.extract("\n".join((left + row).rstrip() for row in rows))
        return "\n".join(line.removeprefix(left) for line in text.split("\n")), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Paint it."""
        self.refresh()

    # what Textual calls

    def on_mount(self) -> None:
        """Take the width there is."""
        self.set_reading_width()

    def on_resize(self) -> None:
        """Lay out for the new width; a long conversation once the size has stood still for a moment."""
        if self._resize_timer is not None:
            self._resize_timer.stop()
        if self.virtual_size.height > _LONG_ROWS:
            self._resize_timer = self.set_timer(_RESIZE_AFTER_S, self.set_reading_width)
        else:
            self.set_reading_width()
        if self.follows:
            self.scroll_end(animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Show the rows that are there now, in place of what Textual does; follow the end again once it is reached."""
        self._move_bar()
        if round(old_value) != round(new_value):
            self.refresh(self.size.region)
        if new_value != old_value:
            self._note_scroll(new_value)

    def _move_bar(self) -> None:
        """Tell the scroll bar, which is painted again only where it looks different: in a long conversation it rarely
        does, and its cells cost as much as the text beside them.
        """
        bar, total, height = self.vertical_scrollbar, self.virtual_size.height, self.size.height
        thumb = thumb_cells(height, total, self.scroll_y)
        bar.set_reactive(ScrollBar.window_virtual_size, total)
        bar.set_reactive(ScrollBar.position, bar.validate_position(self.scroll_y))
        if thumb != self._thumb:
            self._thumb = thumb
            bar.refresh()

    def _note_scroll(self, y: float) -> None:
        self.follows = y >= self.max_scroll_y - 0.5

    def on_key(self, event: events.Key) -> None:
        """Let a letter that no action has go to the box."""
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            self.post_message(self.Typed(event.character))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the block under the mouse."""
        at = event.y + self.scroll_offset.y
        if not self._starts or at >= self.virtual_size.height:
            return
        number, row = self._at(at)
        for index, stop in enumerate(self.messages[number].stops()):
            if stop.first_row <= row < stop.first_row + stop.n_rows:
                self._place_cursor((number, index))

    def _count(self) -> None:
        starts, total = [], 0
        for message in self.messages:
            starts.append(total)
            total += message.n_rows
        self._starts = starts
        size = Size(self.size.width, total)
        if size != self.virtual_size:
            # Not by assigning it, for which Textual lays out the whole screen: the scrollbar is always there, so a
            # longer conversation moves nothing else, and each new row would cost more than all that is painted.
            self.set_reactive(Widget.virtual_size, size)
            self.scroll_y = self.validate_scroll_y(self.scroll_y)

    def _at(self, y: int) -> tuple[int, int]:
        """The message and the row within it."""
        number = bisect_right(self._starts, y) - 1
        return number, y - self._starts[number]
