"""The settings: every one with the value in force and where it comes from, changed in the file and nowhere else."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import paths
from app.actions import Scope
from app.errors import AppError, SettingsError
from app.report import said
from app.sanitize import one_line, visible
from app.setting_text import require_known, value_of
from app.settings_edit import Value, edit_settings
from app.settings_view import Effective, effective
from app.tui.action_bindings import bindings_of
from app.tui.context import context
from app.tui.screens.confirm import AskScreen
from app.tui.screens.panel import PanelScreen
from app.tui.widgets.marked_list import MarkedList
from app.tui.widgets.page import MUTED
from app.values import RULES

_AT_ONCE = frozenset({"theme", "keymap"})
"""What changes on the screen at once; everything else with the next start."""


class SettingsScreen(PanelScreen):
    """The list."""

    HEADING = "Settings"
    ACTION_SCOPES: ClassVar[tuple[Scope, ...]] = ("global", "panel", "settings")
    KEYS: ClassVar = (("edit_setting", "change"), ("unset_setting", "unset"), ("close", "back"), ("help", "keys"))
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("settings")
    AUTO_FOCUS = ".panel-list"

    def __init__(self, argument: str = "") -> None:
        """`argument` is the setting to begin on, and a value to ask for it."""
        super().__init__()
        self._begin, _, self._offered = argument.partition(" ")
        self._shown: Sequence[Effective] = ()

    def body(self) -> Iterable[Widget]:
        """The list, and what the marked one is."""
        yield MarkedList(classes="panel-list")
        yield Static(classes="panel-note", markup=False)

    def on_mount(self) -> None:
        """Show them."""
        self.say_beside_heading(str(paths.settings_file()))
        self._show()
        if self._begin:
            try:
                require_known(self._begin)
            except SettingsError as error:
                self.notify(visible(f"{error}. {error.hint}"), severity="warning", markup=False)
                return
            at = [one.key for one in self._shown].index(self._begin)
            self.query_one(OptionList).highlighted = at
            if self._offered.strip():
                self._ask(self._shown[at], self._offered.strip())

    def _show(self) -> None:
        app = context(self.app)
        self._shown = effective(app.settings, app.choice)
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        column = max(len(one.key) for one in self._shown) + 2
        options.clear_options()
        options.add_options([Option(_entry(one, column)) for one in self._shown])
        options.highlighted = at

    @on(OptionList.OptionHighlighted)
    def _marked(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        one = self._shown[event.option_index]
        text = f"{one.about} Now {one.value}, from {one.origin}. It must be {RULES[one.key].wanted}."
        self.query_one(".panel-note", Static).update(text)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_edit_setting()

    def action_edit_setting(self) -> None:
        """Ask for another value of the marked setting."""
        one = self._marked_one()
        if one is not None:
            self._ask(one, one.value if one.is_set else "")

    def _ask(self, one: Effective, value: str) -> None:
        def check(text: str) -> str:
            try:
                value_of(one.key, text)
            except SettingsError as error:
                return f"{error}. {error.hint}"
            return ""

        def answered(text: str | None) -> None:
            if text is not None:
                self._change(one.key, value_of(one.key, text))

        details = f"{one.about} It must be {RULES[one.key].wanted}."
        self.app.push_screen(AskScreen(one.key, value, details=details, check=check), answered)

    def action_unset_setting(self) -> None:
        """Take the marked setting out of the file."""
        one = self._marked_one()
        if one is None:
            return
        if one.is_set:
            self._change(one.key, None)
        else:
            self.notify(f"{one.key} is not set.")

    def _change(self, key: str, value: object) -> None:
        app = context(self.app)
        try:
            app.settings = edit_settings(paths.settings_file(), {key: _as_value(value)})
        except (AppError, OSError) as error:
            self.notify(said(error), severity="error", markup=False)
            return
        if key == "theme":
            app.take_theme(app.settings.theme)
        elif key == "keymap":
            self.app.set_keymap(dict(app.settings.keymap or {}))
        if key not in _AT_ONCE:
            self.notify(f"{key} is saved. It takes effect with the next start.")
        self._show()

    def _marked_one(self) -> Effective | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None else self._shown[at]


def _as_value(value: object) -> Value:
    """What `value_of` gave, as what the file takes: the rules let nothing else through."""
    assert value is None or isinstance(value, str | int | float | bool | list | dict)
    return value


def _entry(one: Effective, column: int) -> Content:
    origin = "" if one.origin == "default" else f"  ({one_line(one.origin)})"
    style = "bold" if one.is_set else MUTED
    return Content.assemble(one.key.ljust(column), (one.value, style), (origin, MUTED))
