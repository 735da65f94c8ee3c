"""Choosing a model, and the first thing a new user sees: what was found, whether it is whole, and how fast it will be.

Folders are looked through and headers read in a thread; what is found appears as it is judged.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from app import paths
from app.actions import Scope
from app.errors import AppError
from app.find_models import Found, find_checkpoints, judge, usual_places
from app.model_choice import ModelChoice
from app.report import said
from app.sanitize import one_line, visible
from app.settings_edit import Value, edit_settings
from app.tui.action_bindings import bindings_of
from app.tui.context import context
from app.tui.screens.confirm import AskScreen
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.marked_list import MarkedList
from app.tui.widgets.page import MUTED
from engine.errors import EngineError

_DEMO_SAID = "A tiny model that knows only Artesian's help, to try the chat with. It is not DeepSeek."


class ModelScreen(PanelScreen):
    """The checkpoints on this machine, and the demo."""

    HEADING = "Models"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "panel", "models")
    KEYS: ClassVar = (("use_model", "use it"), ("name_folder", "another folder"), ("close", "back"), ("help", "keys"))
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("models")
    AUTO_FOCUS = ".panel-list"

    def __init__(self, folder: str = "", *, places: list[Path] | None = None) -> None:
        """`folder` is judged as well; None for `places` looks in the usual ones."""
        super().__init__()
        self._folder = folder.strip()
        self._places = places
        self._found: list[Found] = []
        self._has_looked = False

    def body(self) -> Iterable[Widget]:
        """A word on what this is, and the list."""
        yield Static(classes="panel-note", markup=False)
        yield MarkedList(classes="panel-list wraps")

    def on_mount(self) -> None:
        """Look around."""
        self._show()
        if self._folder:
            self._judge(paths.as_named(self._folder).absolute())
        self._look()

    @work(thread=True, group="look", exclusive=True, exit_on_error=False)
    def _look(self) -> None:
        worker = get_current_worker()
        app = context(self.app)
        settings = app.settings
        places = self._places if self._places is not None else usual_places(settings, Path.home())
        for folder in find_checkpoints(places, lambda: worker.is_cancelled):
            if folder.resolve() == paths.demo_folder().resolve():
                continue
            found = judge(folder, settings, app.options)
            if worker.is_cancelled:
                return
            self.app.call_from_thread(self._add, found)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._looked)

    def _looked(self) -> None:
        self._has_looked = True
        self._show()

    def _add(self, found: Found) -> None:
        if all(found.folder.resolve() != other.folder.resolve() for other in self._found):
            self._found.append(found)
        self._show()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        choice = context(self.app).choice
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        entries = [_entry(one_line(str(f.folder)), [f.said, f.speed], _same(f.folder, choice)) for f in self._found]
        entries.append(_entry("The bundled demo", [_DEMO_SAID], choice.is_demo))
        options.clear_options()
        options.add_options([Option(entry) for entry in entries])
        options.highlighted = min(at, len(entries) - 1)
        n_found = sum(found.state != "none" for found in self._found)
        said = f"{n_found} checkpoint{'' if n_found == 1 else 's'} found."
        if not self._has_looked:
            said = "Looking for checkpoints..."
        elif not n_found:
            said = (
                "No checkpoint of DeepSeek-V4.1-Flash was found in the settings, the hub's cache, ~/models or on the "
                "drives. f names a folder that holds one; until then the demo answers."
            )
        self.query_one(".panel-note", Static).update(said)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_use_model()

    def action_use_model(self) -> None:
        """Use the marked one from now on, and remember it."""
        at = self.query_one(OptionList).highlighted
        if at is None:
            return
        folder = self._found[at].folder if at < len(self._found) else None
        if folder is not None and self._found[at].state == "none":
            # It would be remembered, and the next start would end with it.
            self.notify("There is no checkpoint in that folder.", severity="warning")
            return
        if _same(folder or paths.demo_folder(), context(self.app).choice):
            self.dismiss()  # it is loaded, and stays what it is named by
        else:
            self._use(folder)

    def action_name_folder(self) -> None:
        """Ask for a folder, and judge it."""

        def check(text: str) -> str:
            try:
                is_there = bool(text.strip()) and paths.as_named(text.strip()).is_dir()
            except OSError:  # no name of a file, or below a folder that is not ours to read
                is_there = False
            return "" if is_there else "There is no such folder."

        def answered(text: str | None) -> None:
            if text is not None:
                self._judge(paths.as_named(text.strip()).absolute())

        details = "The folder that holds config.json and the .safetensors files."
        self.app.push_screen(AskScreen("The model's folder", details=details, check=check), answered)

    @work(thread=True, exit_on_error=False)
    def _judge(self, folder: Path) -> None:
        app = context(self.app)
        found = judge(folder, app.settings, app.options)
        self.app.call_from_thread(self._add, found)

    def _use(self, folder: Path | None) -> None:
        app = context(self.app)
        if folder is None:
            choice = ModelChoice(folder=paths.demo_folder(), origin="demo", is_demo=True)
        else:
            choice = ModelChoice(folder=folder, origin="settings", is_demo=False)
        try:
            app.reopen(choice)
        except (AppError, EngineError) as error:
            self.notify(visible(f"It cannot be used: {said(error)}"), severity="error", markup=False)
            return
        changes: dict[str, Value] = {"model": None if folder is None else str(folder)}
        others = self._others_places(folder)
        try:
            app.settings = edit_settings(paths.settings_file(), changes | dict.fromkeys(others))
        except (AppError, OSError) as error:
            self.notify(visible(f"It is used, but not remembered: {error}"), severity="warning", markup=False)
        else:
            if others:
                text = f"{' and '.join(others)} in the settings were for the other model, and are taken out."
                self.notify(text, timeout=12)
        self.dismiss()

    def _others_places(self, folder: Path | None) -> list[str]:
        """Settings that are about the drives of the model so far. The demo leaves them for when that comes back."""
        settings = context(self.app).settings
        before = settings.model
        if folder is None or before is None or paths.as_named(before).resolve() == folder.resolve():
            return []
        return [key for key in ("mirror", "split", "drive_weight") if getattr(settings, key) is not None]


def _same(folder: Path, choice: ModelChoice) -> bool:
    return folder.resolve() == choice.folder.resolve()


def _entry(name: str, said: list[str], in_use: bool) -> Content:
    lines = [Content.assemble((name, "bold"), "  (in use)" if in_use else "")]
    lines += [Content.styled(line, MUTED) for line in said if line]
    return Content("\n").join(lines)
