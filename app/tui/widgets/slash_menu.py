"""The list of commands that goes with a slash being typed. It never takes the focus: the box keeps it."""

from collections.abc import Sequence

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from app.actions import Action

MOST_ROWS = 8


class SlashMenu(Static):
    """Shows some actions, one of them marked. Empty, it takes no room."""

    DEFAULT_CSS = """
    SlashMenu {
        height: auto;
        display: none;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-open { display: block; }
    }
    """

    class Chosen(Message):
        """The user clicked a command."""

        def __init__(self, action: Action) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._actions: Sequence[Action] = ()
        self._at = 0
        self._first = 0

    @property
    def offered(self) -> Sequence[Action]:
        """What is shown, or would be with more room."""
        return self._actions

    @property
    def chosen(self) -> Action | None:
        """The marked action; None when there is none."""
        return self._actions[self._at] if self._actions else None

    @property
    def is_open(self) -> bool:
        """Whether anything is offered."""
        return bool(self._actions)

    def offer(self, actions: Sequence[Action]) -> None:
        """Show `actions`, the first marked; the mark stays where it was if they are the same."""
        if not actions and not self._actions:
            return  # an update lays out the whole screen, which no key is to wait for
        if actions != self._actions:
            self._actions, self._at, self._first = actions, 0, 0
        self._paint()

    def move(self, step: int) -> None:
        """Move the mark, around the ends."""
        if self._actions:
            self._at = (self._at + step) % len(self._actions)
            self._first = min(max(self._first, self._at - MOST_ROWS + 1), self._at)
            self._paint()

    def on_click(self, event: Click) -> None:
        """Take the command under the pointer."""
        row = self._first + event.y
        if row < len(self._actions):
            self.post_message(self.Chosen(self._actions[row]))

    def _paint(self) -> None:
        self.set_class(self.is_open, "-open")
        shown = self._actions[self._first : self._first + MOST_ROWS]
        names = [f"/{action.slash} {action.argument}".rstrip() for action in shown]
        width = max(map(len, names), default=0)
        lines = []
        for row, (name, action) in enumerate(zip(names, shown, strict=True), self._first):
            marked = row == self._at
            text = f"{'>' if marked else ' '} {name.ljust(width)}  {action.title}"
            lines.append(Content.styled(text, "bold $primary" if marked else ""))
        self.update(Content("\n").join(lines))
