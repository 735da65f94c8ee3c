"""The palette: every action that makes sense on this screen, found by any part of its name, slash name or help."""

from collections.abc import Callable
from typing import ClassVar

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from app.actions import ACTIONS, Action, Scope
from app.keymap import keys_in_force, shown_keys
from app.tui.context import context
from app.tui.widgets.page import MUTED


def scopes_of(screen: object) -> tuple[Scope, ...]:
    """What can be done on a screen, as it says itself; everywhere else only what is done from anywhere."""
    return getattr(screen, "ACTION_SCOPES", ("global",))


class ActionProvider(Provider):
    """The action table for the palette."""

    async def discover(self) -> Hits:
        """All of them, in the table's order."""
        for action in self._actions():
            yield DiscoveryHit(self._display(action), self._runner(action), text=action.title, help=action.help)

    async def search(self, query: str) -> Hits:
        """Those whose title or slash name match."""
        matcher = self.matcher(query)
        for action in self._actions():
            score = max(matcher.match(action.title), matcher.match(f"/{action.slash}") if action.slash else 0.0)
            if score > 0:
                yield Hit(score, self._display(action), self._runner(action), text=action.title, help=action.help)

    def _actions(self) -> list[Action]:
        scopes = scopes_of(self.screen)
        return [action for action in ACTIONS if action.in_palette and action.scope in scopes]

    def _display(self, action: Action) -> Content:
        ways = [shown_keys(keys_in_force(context(self.app).settings.keymap)[action.id])]
        ways.append(f"/{action.slash}" if action.slash else "")
        beside = "  ".join(filter(None, ways))
        return Content.assemble(action.title, ("  " + beside if beside else "", MUTED))

    def _runner(self, action: Action) -> Callable[[], None]:
        app = context(self.app)
        return lambda: app.run_action_id(action.id)


class Palette(CommandPalette):
    """Textual's palette without its picture sign, which some terminals draw two cells wide and some one."""

    DEFAULT_CSS = """
    Palette SearchIcon { display: none; }
    Palette > Vertical { margin-top: 1; }
    Palette #--input { border: none; padding: 0 1; }
    Palette #--input Input { padding: 0; }
    Palette CommandList { border-bottom: none; }
    """
    TITLE: ClassVar[str] = "Actions"

    def __init__(self) -> None:
        super().__init__(providers=[ActionProvider], placeholder="What do you want to do?")
