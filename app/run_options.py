"""What the command line said of how a model is run, in one record: for the engine, and for whoever shows its plan."""

from dataclasses import dataclass, field

from app.drafting import DraftOptions, make_drafting
from app.model_choice import ModelChoice
from app.reading import MemoryOptions, Reading, ReadingOptions, make_reading, make_wishes
from app.settings import Settings
from engine.draft.settings import DraftSettings
from planner.plan import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options; by default the command line was silent."""

    memory: MemoryOptions = field(default_factory=MemoryOptions)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    drafting: DraftOptions = field(default_factory=DraftOptions)
    chunk_tokens: int | None = None
    """Prompt tokens in one forward; None leaves them to the planner."""
    numerics: str | None = None
    """Float32 activations, or the vendor's roundings; None leaves it to the settings."""

    def resolve(self, settings: Settings, choice: ModelChoice) -> tuple[Reading, DraftSettings, Wishes]:
        """The options, then the settings, for one model: how it is read, drafted for, and what the planner is asked.

        Raises: UsageError for an option that cannot act.
        """
        reading = make_reading(self.reading, settings, choice)
        draft = make_drafting(self.drafting, settings)
        wishes = make_wishes(self.memory, settings, reading, chunk_tokens=self.chunk_tokens, drafting=draft.mode)
        return reading, draft, wishes
