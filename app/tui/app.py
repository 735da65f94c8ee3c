"""The Textual app: its screens, its themes, and the life and death of the engine thread.

The one thing a reader would get wrong: screens other than the chat lie on top of it. The chat is always mounted, so
that a reply goes on growing while the plan or the list of transcripts is looked at.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen

from app.backends.base import Backend, RunFacts
from app.host import Host, HostEvent, Opened
from app.model_choice import ModelChoice
from app.settings import Settings
from app.tui.action_bindings import bindings_of
from app.tui.screens.chat import ChatScreen
from engine.events import TurnStats

if TYPE_CHECKING:
    from app.transcripts import TranscriptStore

DRAIN_HZ = 20
"""How often the screen takes what the engine left in the mailbox."""

SCREEN_PLACES: dict[str, str] = {
    "transcripts": "app.tui.screens.transcripts:TranscriptsScreen",
    "plan": "app.tui.screens.plan:PlanScreen",
    "drives": "app.tui.screens.drives:DrivesScreen",
    "settings": "app.tui.screens.settings:SettingsScreen",
    "help": "app.tui.screens.help:HelpScreen",
    "logs": "app.tui.screens.logs:LogsScreen",
    "model": "app.tui.screens.model:ModelScreen",
}
"""Screens that open on top of the chat, by action id; imported when they are first wanted, made without arguments."""


class ArtesianApp(App[int]):
    """The chat application."""

    CSS_PATH = "artesian.tcss"
    TITLE = "Artesian"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("global")

    def __init__(
        self,
        *,
        backend_factory: Callable[[ModelChoice], Backend],
        choice: ModelChoice,
        store: "TranscriptStore",
        settings: Settings,
        transcript_id: str | None = None,
    ) -> None:
        """`backend_factory` is called on the engine thread; `transcript_id` names the conversation to resume."""
        super().__init__()
        self.choice = choice
        self.store = store
        self.settings = settings
        self.backend_factory = backend_factory
        self.host = Host(lambda: backend_factory(choice))
        self.facts: RunFacts | None = None
        """What the model is, once it is open."""
        self.last_turn: TurnStats | None = None
        """Figures of the last turn of this session."""
        self.chat = ChatScreen(transcript_id)

    def on_mount(self) -> None:
        """Show the chat at once; the model loads meanwhile."""
        self.push_screen(self.chat)
        self.host.start()
        self.set_interval(1 / DRAIN_HZ, self.drain)

    def on_unmount(self) -> None:
        """Stop the engine; what it wrote is in the transcript already."""
        self.host.close()

    def drain(self) -> None:
        """Hand what the engine left to whoever shows it."""
        events = self.host.mailbox.take()
        for event in events:
            self._note(event)
        if events:
            self.chat.take(events)

    def _note(self, event: HostEvent) -> None:
        if isinstance(event, Opened):
            self.facts = event.facts

    def open_screen(self, name: str) -> None:
        """Show the named screen on top of the chat; nothing if it is on top already."""
        module, _, cls = SCREEN_PLACES[name].partition(":")
        screen: Screen[object] = getattr(import_module(module), cls)()
        if type(self.screen) is not type(screen):
            self.push_screen(screen)

    def run_action_id(self, action_id: str, argument: str = "") -> None:
        """Do an action of the table, whoever has its method: the focused widget, its screen, the chat, the app."""
        name = f"action_{action_id}"
        for owner in (self.focused, self.screen, self.chat, self):
            method = getattr(owner, name, None)
            if method is not None:
                result = method(argument) if argument else method()
                if result is not None:
                    self.run_worker(result, exit_on_error=False)
                return
        self.notify(f"There is no action {action_id}.", severity="warning")

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation in the chat."""
        self.chat.open_transcript(transcript_id)
