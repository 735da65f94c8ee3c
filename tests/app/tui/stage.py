"""An app that holds one screen or widget of ours, and notes what it is asked to do."""

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from app.actions import Scope
from app.backends.base import RunFacts
from app.drive_job import DriveJob
from app.model_choice import ModelChoice, choose_model
from app.run_options import RunOptions
from app.settings import Settings
from app.transcripts.store import TranscriptStore
from app.tui.themes import ThemedApp
from app.tui.widgets.prompt import Prompt
from engine.events import TurnStats


class Chat(Screen[None]):
    """Stands where the chat would."""

    ACTION_SCOPES: tuple[Scope, ...] = ("global", "chat", "turn", "find")

    def __init__(self, *widgets: Widget) -> None:
        super().__init__()
        self._widgets = widgets

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield from self._widgets


class Stage(ThemedApp):
    """What `app.tui.context.Context` asks for, made up."""

    def __init__(
        self,
        *widgets: Widget,
        screen: Screen[object] | None = None,
        store: TranscriptStore | None = None,
        settings: Settings | None = None,
        options: RunOptions | None = None,
        theme: str | None = None,
        facts: RunFacts | None = None,
        last_turn: TurnStats | None = None,
    ) -> None:
        """`widgets` stand in the chat's place, `screen` above it."""
        super().__init__(theme)
        self.animation_level = "none"
        self.settings = settings or Settings()
        self.options = options or RunOptions()
        self.choice: ModelChoice = choose_model(None, self.settings, environ={})
        self.store = store
        self.facts = facts
        self.last_turn = last_turn
        self.drive_job: DriveJob | None = None
        self.done: list[tuple[str, str]] = []
        """Actions that were asked for, with their argument."""
        self.opened: list[str] = []
        """Transcripts and models that were asked for."""
        self.sent: list[str] = []
        """What was sent from a box."""
        self.problems: list[str] = []
        """What a box had to say."""
        self._chat = Chat(*widgets)
        self._above = screen

    def on_mount(self) -> None:
        """Show them."""
        self.push_screen(self._chat)
        if self._above is not None:
            self.push_screen(self._above)

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Note it."""
        self.sent.append(event.text)

    def on_prompt_commanded(self, event: Prompt.Commanded) -> None:
        """Note it."""
        self.done.append((event.action.id, event.argument))

    def on_prompt_problem(self, event: Prompt.Problem) -> None:
        """Note it."""
        self.problems.append(event.text)

    def run_action_id(self, action_id: str, argument: str = "") -> None:
        """Note it."""
        self.done.append((action_id, argument))

    def reopen(self, choice: ModelChoice) -> None:
        """Note it."""
        self.choice = choice
        self.opened.append(str(choice.folder))

    def open_transcript(self, transcript_id: str) -> None:
        """Note it."""
        self.opened.append(transcript_id)
