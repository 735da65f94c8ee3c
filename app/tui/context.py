"""What the screens on top of the chat need of the app: one protocol, so that a test can be that app."""

from typing import TYPE_CHECKING, Protocol, cast

from textual.app import App

from app.backends.base import RunFacts
from app.drive_job import DriveJob
from app.model_choice import ModelChoice
from app.run_options import RunOptions
from app.settings import Settings
from engine.events import TurnStats

if TYPE_CHECKING:
    from app.transcripts.store import TranscriptStore


class Context(Protocol):
    """The app, as a screen sees it."""

    choice: ModelChoice
    store: "TranscriptStore"
    settings: Settings
    options: RunOptions
    """What the command line said of how a model is run."""
    theme_name: str
    facts: RunFacts | None
    """What the model is, once it is open."""
    last_turn: TurnStats | None
    """Figures of the last turn of this session."""
    drive_job: DriveJob | None
    """Copying or the like that was begun last."""

    def run_action_id(self, action_id: str, argument: str = "") -> None:
        """Do an action of the table."""
        ...

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation in the chat."""
        ...

    def reopen(self, choice: ModelChoice) -> None:
        """Use another model from now on. Raises: ConfigError, SamplerSettingsError."""
        ...

    def take_theme(self, theme: str | None) -> None:
        """Change the theme."""
        ...


def context(app: App[object]) -> Context:
    """`app` as what it is to a screen."""
    return cast(Context, app)
