"""Help: the keys in force on the screen below, every slash command, and what the figures say."""

from collections.abc import Iterable
from itertools import chain
from textwrap import wrap
from typing import ClassVar

from textual.content import Content
from textual.widget import Widget

from app.actions import ACTIONS, Action, Scope
from app.keymap import key_text, keys_in_force
from app.tui.context import context
from app.tui.palette import scopes_of
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.page import MUTED, Page, column_width, heading, in_columns, pairs

_SCOPE_TITLES: dict[Scope, str] = {
    "chat": "In the chat",
    "turn": "On a block of the conversation; by its slash name on the last one",
    "find": "In the line that finds",
    "transcripts": "In the list of transcripts",
    "settings": "In the list of settings",
    "models": "In the list of models",
    "mirrors": "In the list of drives",
    "panel": "On this screen",
    "global": "Everywhere",
}
"""In the order in which the sections stand."""

_EDITING = (
    ("ctrl+left ctrl+right", "one word left, right"),
    ("ctrl+a ctrl+e", "start, end of the line"),
    ("ctrl+w", "delete the word before the cursor"),
    ("ctrl+u ctrl+k", "delete to the start, the end of the line"),
    ("ctrl+z ctrl+y", "undo, redo"),
    ("Up Down", "at the first and last line: earlier messages; with text in the box, those that contain it"),
    ("Tab", "completes a slash command; else goes to the next part of the screen"),
)

_FIGURES = (
    ("read, reused", "tokens that were read for the turn, and those that were kept from before"),
    ("drive wait", "the share of the turn's time that went by waiting for the drives"),
    ("hit", "the share of the experts needed that were in memory already"),
    ("draft 3.0/5", "of 5 tokens drafted at a time 3.0 were right; wrong ones cost time, never the answer"),
    ("83 of 1,024 tokens", "the length of the conversation, and the most it can have"),
)


class HelpScreen(PanelScreen):
    """What can be done here, and how."""

    HEADING = "Keys"
    KEYS: ClassVar = (("close", "back"),)

    def body(self) -> Iterable[Widget]:
        """One text."""
        yield Page(self._draw)

    def on_mount(self) -> None:
        """Say how keys are changed."""
        self.say_beside_heading("changed by [keymap] in the settings, with the names in brackets")

    def action_help(self) -> None:
        """The key that opened it closes it."""
        self.action_close()

    def _draw(self, width: int) -> Content:
        stack = self.app.screen_stack
        below = stack[stack.index(self) - 1] if self in stack and stack.index(self) else None
        here = scopes_of(below)
        keys = keys_in_force(context(self.app).settings.keymap)
        room = column_width(width)
        blocks = []
        for scope, title in _SCOPE_TITLES.items():
            entries = [_entry(action, keys[action.id], room) for action in ACTIONS if action.scope == scope]
            if scope in here:
                blocks.append([*map(heading, wrap(title, room)), *chain.from_iterable(entries)])
        if "chat" in here:
            blocks.insert(1, [heading("In the box"), *pairs(_EDITING, room)])
            blocks.append([heading("What the figures say"), *pairs(_FIGURES, room)])
        return in_columns(blocks, width)


def _entry(action: Action, keys: tuple[str, ...], width: int) -> list[Content]:
    """Keys and title, then slash name and what happens; where there is room, the name for the keymap in brackets."""
    column = 22 if width >= 60 else 15
    key = " ".join(map(key_text, keys))
    slash = f"/{action.slash} {action.argument}".rstrip() if action.slash else ""
    name = f"[{action.id}]".rjust(max(width - column - len(action.title), 0)) if width >= 60 else ""
    title = Content.assemble((action.title, "bold"), (name, MUTED))
    said = [Content.styled(line, MUTED) for line in wrap(action.help, max(width - column, 16))]
    return [*_beside(key, [title], column), *_beside(slash, said, column)]


def _beside(name: str, lines: list[Content], column: int) -> list[Content]:
    """`lines` in the second column, with `name` in the first, or above if it has no room there."""
    fits = len(name) < column
    head = (
        [Content.assemble((name.ljust(column), "$primary"), lines[0])] if fits else [Content.styled(name, "$primary")]
    )
    return [*head, *(Content.assemble(" " * column, line) for line in (lines[1:] if fits else lines))]
