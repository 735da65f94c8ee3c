"""All conversations, newest first: searched as you type, resumed, renamed, deleted, and brought back.

Files are read in threads, as a drive that the engine keeps busy may take long; the newest search alone is shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.actions import Scope
from app.errors import AppError
from app.report import format_bytes, said
from app.sanitize import one_line, visible
from app.tui.action_bindings import bindings_of
from app.tui.context import context
from app.tui.screens.confirm import AskScreen
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.marked_list import MarkedList
from app.tui.widgets.page import MUTED

if TYPE_CHECKING:
    from app.transcripts.records import TranscriptInfo
    from app.transcripts.search import Hit

_MOST_TITLE = 300
"""Characters of a title that are shown; files from elsewhere may have a book for one."""
SEARCH_AFTER_S = 0.15
"""A search begins this long after the last key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One conversation in the list."""

    info: "TranscriptInfo"
    snippet: str = ""
    """Where the words were found; "" without a search, or when they are in the title."""
    n_hits: int = 0


class TranscriptsScreen(PanelScreen):
    """The list."""

    HEADING = "Conversations"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "panel", "transcripts")
    KEYS: ClassVar = (
        ("open_transcript", "resume"),
        ("search_transcripts", "search"),
        ("close", "back"),
        ("rename_transcript", "rename"),
        ("delete_transcript", "delete"),
        ("undo_delete", "undo"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of("transcripts"),
        ("down", "move(1)", "Down"),
        ("up", "move(-1)", "Up"),
    ]
    AUTO_FOCUS = ".panel-list"

    def __init__(self, text: str = "") -> None:
        """`text` is searched at once."""
        super().__init__()
        self._text = text
        self._listed: Sequence[Listed] = ()
        self._deleted: list[str] = []
        self._timer: Timer | None = None
        self._asked = 0
        self._shown_text = ""

    def body(self) -> Iterable[Widget]:
        """Search box, list, and a line for what there is to say."""
        yield Input(self._text, placeholder="Search all conversations", classes="panel-search", compact=True)
        yield MarkedList(classes="panel-list")
        yield Static(classes="panel-note", markup=False)

    def on_mount(self) -> None:
        """Read the list."""
        self.look()

    def look(self) -> None:
        """Read the list again, or search, in a thread."""
        self._asked += 1
        self._look(self.query_one(Input).value.strip(), self._asked)

    @work(thread=True, exclusive=True, group="look", exit_on_error=False)
    def _look(self, text: str, ticket: int) -> None:
        store = context(self.app).store
        try:
            infos = store.list()
            found = _found(infos, text, store.search(text)) if text else [Listed(info=info) for info in infos]
            problem = ""
        except (OSError, AppError) as error:
            found, problem = [], f"The conversations cannot be read: {error}"
        self.app.call_from_thread(self._show, found, text, problem, ticket)

    def _show(self, found: Sequence[Listed], text: str, problem: str, ticket: int) -> None:
        if ticket != self._asked or not self.is_mounted:
            return  # a newer search is under way
        chosen = self._chosen()
        self._listed = found
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        options.clear_options()
        options.add_options([Option(_entry(item), id=item.info.id) for item in found])
        ids = [item.info.id for item in found]
        if found:
            # One that was deleted gives its place to the next; another search begins at the first.
            at = min(at, len(found) - 1) if text == self._shown_text else 0
            options.highlighted = ids.index(chosen.info.id) if chosen and chosen.info.id in ids else at
        self._shown_text = text
        n_found = len(found)
        self.say_beside_heading(f"{n_found:,} found" if text else f"{n_found:,}" if n_found else "")
        nothing = f"Nothing has all the words of {text!r}." if text else "There are none yet. What you write is saved."
        self._note(problem or ("" if found else nothing))

    def action_move(self, step: int) -> None:
        """Move the mark, also from the search box."""
        options = self.query_one(OptionList)
        if options.option_count:
            at = 0 if options.highlighted is None else options.highlighted
            options.highlighted = min(max(at + step, 0), options.option_count - 1)

    def action_search_transcripts(self) -> None:
        """Go to the search box."""
        self.set_focus(self.query_one(Input))  # at once: the keys that follow are for it

    def action_close(self) -> None:
        """From the search box to the list, without a search first; from the list to the chat."""
        box = self.query_one(Input)
        if box.has_focus or box.value:
            box.value = ""
            self.query_one(OptionList).focus()
        else:
            super().action_close()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SEARCH_AFTER_S, self.look)

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _enter(self, event: Input.Submitted | OptionList.OptionSelected) -> None:
        event.stop()
        self.action_open_transcript()

    def action_open_transcript(self) -> None:
        """Go on with the marked conversation."""
        chosen = self._chosen()
        if chosen is not None:
            app = context(self.app)
            self.dismiss()
            app.open_transcript(chosen.info.id)

    def action_rename_transcript(self) -> None:
        """Ask for another title."""
        chosen = self._chosen()
        if chosen is None:
            return

        def answered(title: str | None) -> None:
            if title is not None:
                self._change(lambda: context(self.app).store.rename(chosen.info.id, title.strip()))

        details = "Empty goes back to the first line of the conversation."
        self.app.push_screen(AskScreen("Another title", chosen.info.title, details=details), answered)

    def action_delete_transcript(self) -> None:
        """Delete the marked conversation; no question, as it can be brought back."""
        chosen = self._chosen()
        if chosen is None:
            return

        def delete() -> str:
            self._deleted.append(context(self.app).store.delete(chosen.info.id))
            return f"Deleted: {one_line(chosen.info.title or 'no title')}. u brings it back."

        self._change(delete)

    def action_undo_delete(self) -> None:
        """Bring back what was deleted last."""

        def undo() -> str:
            token = self._deleted.pop() if self._deleted else None
            context(self.app).store.undo(token)
            return "It is back."

        self._change(undo)

    @work(thread=True, exit_on_error=False)
    def _change(self, change: Callable[[], str | None]) -> None:
        try:
            answer = change() or ""
        except (OSError, AppError) as error:
            answer = said(error)
        self.app.call_from_thread(self._changed, answer)

    def _changed(self, answer: str) -> None:
        if answer:
            self.notify(visible(answer), markup=False)
        self.look()

    def _chosen(self) -> Listed | None:
        at = self.query_one(OptionList).highlighted
        return self._listed[at] if at is not None and at < len(self._listed) else None

    def _note(self, text: str) -> None:
        note = self.query_one(".panel-note", Static)
        note.update(visible(text))
        note.display = bool(text)


def _found(infos: "Sequence[TranscriptInfo]", text: str, hits: "Sequence[Hit]") -> list[Listed]:
    """The conversations with a hit, or with the text in the title, in the order of `infos`."""
    by_id: dict[str, list[str]] = {}
    for hit in hits:
        by_id.setdefault(hit.transcript, []).append(hit.snippet)
    wanted = text.casefold()
    found = []
    for info in infos:
        snippets = by_id.get(info.id, [])
        if snippets or wanted in info.title.casefold():
            found.append(Listed(info=info, snippet=snippets[0] if snippets else "", n_hits=len(snippets)))
    return found


def _entry(item: Listed) -> Content:
    info = item.info
    when = info.updated.astimezone().strftime("%Y-%m-%d %H:%M")
    messages = f"{info.n_messages:,} message{'' if info.n_messages == 1 else 's'}"
    facts = [when, messages, format_bytes(info.size_bytes)]
    if item.n_hits > 1:
        facts.append(f"{item.n_hits:,} places")
    lines = [
        Content(one_line(info.title[:_MOST_TITLE]) or "no title"),
        Content.styled(f"  {' | '.join(facts)}", MUTED),
    ]
    if item.snippet:
        lines.append(Content.styled(f"  {one_line(item.snippet)}", MUTED))
    return Content("\n").join(lines)
