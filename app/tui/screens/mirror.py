"""The drive wizard: where copies of the model could go, what they would buy, and making them while the chat goes on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import paths
from app.actions import Scope
from app.drive_job import DriveJob
from app.errors import AppError
from app.mirror_text import facts_of, place_remark
from app.mirror_work import check_job, copy_job, measure_job, remove_job
from app.mirroring import MirrorDesk, MirrorState
from app.progress import progress_text
from app.report import format_bytes, said
from app.sanitize import one_line, visible
from app.settings import load_settings
from app.tui.action_bindings import bindings_of
from app.tui.context import context
from app.tui.screens.confirm import ConfirmScreen
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.marked_list import MarkedList
from app.tui.widgets.page import MUTED
from storage.mirroring.places import Place
from storage.mirroring.proposal import Proposal

REFRESH_S = 0.25
"""The screen looks at the work this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One place, what copies there would buy, and what is there already."""

    place: Place
    target: Path
    proposal: Proposal
    state: MirrorState | None
    rate: float | None


class MirrorScreen(PanelScreen):
    """The places, best first."""

    HEADING = "Copies on other drives"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "panel", "mirrors")
    KEYS: ClassVar = (
        ("make_mirror", "copy there"),
        ("measure_place", "measure"),
        ("close", "back"),
        ("check_mirror", "check"),
        ("remove_mirror", "remove"),
        ("pause_work", "pause"),
        ("stop_work", "stop"),
        ("help", "keys"),
    )
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("mirrors")
    AUTO_FOCUS = ".panel-list"

    def __init__(self, make_desk: Callable[[], MirrorDesk] | None = None) -> None:
        """None for `make_desk` takes the app's model, the settings file and this machine."""
        super().__init__()
        self._make_desk = make_desk or (lambda: MirrorDesk.of_user(context(self.app).choice))
        self._desk: MirrorDesk | None = None
        self._rows: Sequence[_Row] = ()
        self._settled: DriveJob | None = None  # the work whose end was seen here; it changes the settings

    def body(self) -> Iterable[Widget]:
        """A word on what this is, the places, what the marked one would buy, and the work under way."""
        yield Static(id="mirror-about", classes="panel-note", markup=False)
        yield MarkedList(classes="panel-list wraps")
        yield Static(id="mirror-offer", classes="panel-note", markup=False)
        yield Static(id="mirror-work", classes="panel-note", markup=False)

    def on_mount(self) -> None:
        """Look around, and follow the work."""
        self._about("Looking at the drives...")
        self._look()
        self.set_interval(REFRESH_S, self._follow)

    @work(thread=True, exclusive=True, group="look", exit_on_error=False)
    def _look(self) -> None:
        """Read headers and mounts: a second for a large model, so not on the screen's thread."""
        try:
            desk = self._make_desk()
            states = {state.folder.resolve(): state for state in desk.states()}
            rows = []
            for place in desk.places():
                state = next((s for s in states.values() if s.drive == place.drive.name and s.shards), None)
                target = state.folder if state is not None else desk.target_on(place)
                rows.append(
                    _Row(
                        place=place,
                        target=target,
                        proposal=desk.propose(place, target=target),
                        state=state,
                        rate=desk.rate_of(place),
                    )
                )
        except Exception as error:
            self.app.call_from_thread(self._about, said(error))
            return
        self.app.call_from_thread(self._show, desk, rows)

    def _show(self, desk: MirrorDesk, rows: Sequence[_Row]) -> None:
        if not self.is_mounted:
            return
        self._desk, self._rows = desk, rows
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        options.clear_options()
        options.add_options([Option(_entry(row)) for row in rows])
        if rows:
            options.highlighted = min(at, len(rows) - 1)
        good = [row for row in rows if not row.place.obstacle and not row.place.shares_with]
        if good:
            # Moving is no work for here: whenever this chat opened its model again, it would miss what was moved.
            self._about(
                "A second drive is read at the same time as the first. Nothing is taken from the model's folder; to "
                "move part of it, close the chat: artesian mirror split."
            )
        else:
            self._about("No other drive is mounted. A copy on the model's own disk would give no more speed.")

    def _about(self, text: str) -> None:
        if self.is_mounted:
            self.query_one("#mirror-about", Static).update(visible(text))

    @on(OptionList.OptionHighlighted)
    def _marked(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        row = self._rows[event.option_index] if event.option_index < len(self._rows) else None
        if row is not None and self._desk is not None:
            text = "\n".join(f"{label:<9} {value}" for label, value in facts_of(row.proposal))
            self.query_one("#mirror-offer", Static).update(visible(text))

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_make_mirror()

    def action_make_mirror(self) -> None:
        """Copy to the marked place, after a question that says how much."""
        row, desk = self._row(), self._desk
        if row is None or desk is None or self._is_busy():
            return
        made = row.proposal
        if made.why_not:
            self.notify(f"{_capital(made.why_not)}.", severity="warning", markup=False)
            return

        def answered(yes: bool | None) -> None:
            if yes and not self._is_busy():
                self._begin(
                    f"copying to {one_line(str(row.target))}", copy_job(desk, row.place, row.target, made.shards)
                )

        n_shards = len(made.shards)
        question = f"Copy {n_shards} shard{'' if n_shards == 1 else 's'}, {format_bytes(made.copy_bytes)}?"
        details = f"To {row.target}. Each copy is read back before it counts. The chat goes on meanwhile."
        self.app.push_screen(ConfirmScreen(question, "copy", details=details), answered)

    def action_measure_place(self) -> None:
        """Measure the marked place."""
        row, desk = self._row(), self._desk
        if row is not None and desk is not None and not self._is_busy():
            self._begin(f"measuring {one_line(str(row.place.folder))}", measure_job(desk, row.place))

    def action_check_mirror(self) -> None:
        """Compare the copies on the marked place with what was copied, every byte."""
        row, desk = self._row(), self._desk
        if row is None or desk is None or self._is_busy():
            return
        if row.state is None:
            self.notify("There are no copies here.")
            return
        self._begin(f"checking {one_line(str(row.target))}", check_job(desk, row.target))

    def action_remove_mirror(self) -> None:
        """Take the copies on the marked place away, after a question."""
        row, desk = self._row(), self._desk
        if row is None or desk is None or self._is_busy():
            return
        if row.state is None:
            self.notify("There are no copies here.")
            return

        def answered(yes: bool | None) -> None:
            if yes and not self._is_busy():
                self._begin(f"removing {one_line(str(row.target))}", remove_job(desk, row.target))

        question = f"Remove {len(row.state.shards)} copies, {format_bytes(row.state.copied_bytes)}?"
        self.app.push_screen(ConfirmScreen(question, "remove", details="The model's own files stay."), answered)

    def action_pause_work(self) -> None:
        """Hold the copying up, or let it go on."""
        job = context(self.app).drive_job
        if job is None or not job.can_pause:
            self.notify("Nothing is being copied.")
        elif job.is_paused:
            job.go_on()
        else:
            job.pause()

    def action_stop_work(self) -> None:
        """Stop what is under way; a copy goes on where it was when it is begun again."""
        job = context(self.app).drive_job
        if job is None or not job.is_running:
            self.notify("Nothing is under way.")
        else:
            job.stop()

    def _begin(self, what: str, run: Callable[[DriveJob], str]) -> None:
        context(self.app).drive_job = DriveJob(what, run)
        self._follow()

    def _is_busy(self) -> bool:
        job = context(self.app).drive_job
        if job is not None and job.is_running:
            self.notify(f"Wait: {job.what}.", markup=False)
            return True
        return False

    def _follow(self) -> None:
        """Show how far the work is; look around again once it has ended."""
        job = context(self.app).drive_job
        if job is None:
            return
        self.query_one("#mirror-work", Static).update(visible(job_text(job)))
        if not job.is_running and job is not self._settled:  # it may end before it was ever seen running
            self._settled = job
            try:
                context(self.app).settings = load_settings(paths.settings_file())
            except AppError as error:
                self.notify(said(error), severity="warning", markup=False)
            self._look()

    def _row(self) -> _Row | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None or at >= len(self._rows) else self._rows[at]


def job_text(job: DriveJob) -> str:
    """Where a piece of work is, or what came of it."""
    if job.is_running:
        progress = f": {progress_text(job.progress)}" if job.progress is not None else "..."
        return f"{_capital(job.what)}{' (paused)' if job.is_paused else ''}{progress}"
    if job.error is not None:
        return said(job.error)
    return job.said


def _entry(row: _Row) -> Content:
    place = row.place
    drive = one_line(place.drive.name)
    kind = drive if drive == place.kind else f"{drive}, {place.kind}"
    name = Content.assemble((one_line(str(place.folder)), "bold"), (f"  {kind}", MUTED))
    figures = [f"{format_bytes(place.free_bytes)} of {format_bytes(place.total_bytes)} free"]
    figures.append("not measured" if row.rate is None else f"reads {format_bytes(row.rate)}/s")
    if row.state is None and row.proposal.gain is not None and not row.proposal.why_not:
        figures.append(f"with copies {row.proposal.gain:.2f} times as fast")
    elif row.state is None and (remark := place_remark(place)):
        figures.append(remark)
    lines = [name, Content.styled("  " + " | ".join(figures), MUTED)]
    if (state := row.state) is not None:
        used = "read from" if state.in_settings else "not in the settings"
        text = f"  holds {len(state.shards)} copies, {format_bytes(state.copied_bytes)}, {used}"
        lines.append(Content(f"{text}{'; ' + one_line(state.problem) if state.problem else ''}"))
    return Content("\n").join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
