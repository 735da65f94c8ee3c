"""The last line of a screen: the keys that matter most here, with the keymap applied."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from app.keymap import key_text, keys_in_force
from app.tui.context import context


class KeyLine(Static):
    """Key and title of some actions, most important first; what has no room is left out whole."""

    DEFAULT_CSS = """
    KeyLine {
        dock: bottom;
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        text-wrap: nowrap;
        text-overflow: clip;
    }
    """

    def __init__(self, actions: Sequence[tuple[str, str]]) -> None:
        """Pairs of action id and a word for it, shorter than its title."""
        super().__init__(markup=False)
        self._actions = actions

    def on_mount(self) -> None:
        """Draw it once there is a width."""
        self.draw()

    def on_resize(self) -> None:
        """Draw it for the new width."""
        self.draw()

    def draw(self) -> None:
        """Show as many as fit."""
        keys = keys_in_force(context(self.app).settings.keymap)
        room = self.content_size.width
        parts: list[Content] = []
        for action_id, word in self._actions:
            if not keys[action_id]:
                continue  # the palette has it
            part = Content.assemble((key_text(keys[action_id][0]), "bold $primary"), f" {word}")
            room -= len(part) + (3 if parts else 0)
            if room < 0:
                break
            parts.append(part)
        self.update(Content("   ").join(parts))
