"""Our themes: dark, light, one in the terminal's own sixteen colours, and none at all.

The one thing a reader would get wrong: "none" is the sixteen-colour theme with every colour filtered out on the way to
the terminal. What is marked must therefore differ by more than colour: by bold, underline, or a sign.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import App
from textual.filter import LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from app.tui.widgets.scroll_bar import use_plain_scroll_bars
from app.values import THEMES

_DARK = Theme(
    name="artesian-dark",
    dark=True,
    primary="#6cb6cc",
    secondary="#8ea9ba",
    accent="#d8b26a",
    success="#86b98d",
    warning="#d8b26a",
    error="#dd7d84",
    foreground="#d6dde3",
    background="#11161b",
    surface="#161c22",
    panel="#1d252d",
    variables={
        "block-cursor-background": "#2c4a57",
        "block-cursor-foreground": "#f0f4f6",
        "block-cursor-text-style": "none",
        "border": "#6cb6cc",
        "border-blurred": "#2a343d",
        "footer-key-foreground": "#6cb6cc",
        "input-selection-background": "#6cb6cc 35%",
    },
)

_LIGHT = Theme(
    name="artesian-light",
    dark=False,
    primary="#1b6a86",
    secondary="#4f6b7a",
    accent="#855f10",
    success="#33713d",
    warning="#855f10",
    error="#ab2f3a",
    foreground="#22303a",
    background="#f8f9f7",
    surface="#f0f2f1",
    panel="#e5eaea",
    variables={
        "block-cursor-background": "#bfdbe4",
        "block-cursor-foreground": "#10202a",
        "block-cursor-text-style": "none",
        "border": "#1b6a86",
        "border-blurred": "#c4cccf",
        "footer-key-foreground": "#1b6a86",
        "input-selection-background": "#1b6a86 30%",
    },
)

_ANSI = Theme(
    name="ansi",
    ansi=True,
    dark=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    accent="ansi_yellow",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables=BUILTIN_THEMES["ansi-dark"].variables
    | {
        # Legible whatever the terminal's background is. Textual has no reverse video for what lies in a list.
        "block-cursor-background": "ansi_cyan",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-text-style": "none",
        "border": "ansi_cyan",
        "border-blurred": "ansi_bright_black",
        "footer-key-foreground": "ansi_cyan",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_cyan",
        "input-selection-foreground": "ansi_black",
    },
)

_NO_COLOR = NoColor()
_BY_NAME: Mapping[str, Theme] = {"artesian-dark": _DARK, "artesian-light": _LIGHT, "ansi": _ANSI, "none": _ANSI}
assert tuple(_BY_NAME) == THEMES  # the settings know the names without loading Textual


def no_color_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether NO_COLOR is set to anything but nothing. To be asked before an App is made: Textual reads it too."""
    return bool(environ.get("NO_COLOR"))


class ThemedApp(App[int]):
    """An app with our themes."""

    def __init__(self, theme: str | None = None, *, mouse: bool = True) -> None:
        """`theme` names one of `THEMES`; None is the dark one, or none where NO_COLOR is set. `mouse` is what the app
        will be run with.
        """
        self._default_theme = "none" if no_color_wanted() else THEMES[0]
        # Kept apart from the theme's own name, as two of ours are one of Textual's.
        self.theme_name = theme or self._default_theme
        super().__init__()
        use_plain_scroll_bars()
        self._has_mouse = mouse
        for ours in (_DARK, _LIGHT, _ANSI):
            self.register_theme(ours)
        self.take_theme(theme)

    def take_theme(self, theme: str | None) -> None:
        """Change to the theme of this name, one of `THEMES`; to the one there is without a name with None."""
        self.theme_name = name = theme or self._default_theme
        self.no_color = name == "none"
        if self.theme == _BY_NAME[name].name:  # from "ansi" to "none" Textual sees no change
            self.refresh_css(animate=False)
        self.theme = _BY_NAME[name].name

    @property
    def has_mouse(self) -> bool:
        """Whether the mouse is ours; if not, the terminal selects text with it."""
        return self._has_mouse

    @has_mouse.setter
    def has_mouse(self, takes: bool) -> None:
        self._has_mouse = takes
        driver: Any = self._driver  # Textual has no public way, and some drivers have none at all
        if driver is not None and hasattr(driver, "_disable_mouse_support"):
            driver._mouse = True  # both calls do nothing without it
            (driver._enable_mouse_support if takes else driver._disable_mouse_support)()
            driver._mouse = takes  # what it does after the shell or an editor had the terminal
            driver.flush()

    def next_theme(self) -> str:
        """The name after the one in force."""
        return THEMES[(THEMES.index(self.theme_name) + 1) % len(THEMES)]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, but for its own idea of NO_COLOR: shades of grey are colours to a terminal."""
        filters = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return [*filters, _NO_COLOR] if self.no_color else filters
