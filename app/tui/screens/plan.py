"""Where the time goes: the last turn in figures, and the plan behind it, what lives where and what more would buy."""

from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.content import Content

from app.errors import AppError
from app.plan_report import explain_choice, plan_sections
from app.report import said
from app.sanitize import one_line
from app.tui.context import context
from app.tui.screens.drives import TurnFiguresScreen
from app.tui.widgets.page import Page
from app.tui.widgets.report import draw_sections
from app.turn_report import Section, turn_sections
from engine.errors import EngineError
from planner.errors import PlanError
from storage.errors import StorageError


class PlanScreen(TurnFiguresScreen):
    """The turn above, the plan below."""

    HEADING = "Where the time goes"
    KEYS: ClassVar = (("close", "back"), ("help", "keys"))

    def __init__(self) -> None:
        super().__init__()
        self._plan: Sequence[Section] = (Section(title="The plan", lines=(), note="It is being made."),)

    def on_mount(self) -> None:
        """Make the plan aside: it reads the headers of every shard."""
        super().on_mount()
        choice = context(self.app).choice
        self.say_beside_heading("the bundled demo" if choice.is_demo else str(choice.folder))
        self._make_plan()

    def draw(self, width: int) -> Content:
        """Both, for so many columns."""
        stats = context(self.app).last_turn
        none = [Section(title="The last turn", lines=(), note="No turn has been run yet.")]
        return draw_sections([*(none if stats is None else turn_sections(stats)), *self._plan], width)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _make_plan(self) -> None:
        app = context(self.app)
        try:
            plan = plan_sections(explain_choice(app.choice, app.settings, app.options))
        except (AppError, EngineError, PlanError, StorageError, OSError) as error:
            note = said(error)
            plan = [Section(title="The plan", lines=(), note=one_line(note))]
        self.app.call_from_thread(self._show_plan, plan)

    def _show_plan(self, plan: Sequence[Section]) -> None:
        self._plan = plan
        if self.is_mounted:
            self.query_one(Page).redraw()
