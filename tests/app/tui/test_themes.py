import re
from pathlib import Path

import pytest
from textual.widgets import Static

from app.tui.themes import ThemedApp, no_color_wanted
from app.values import THEMES
from tests.app.tui.snapshot import picture

pytestmark = pytest.mark.tui


def _app(theme: str | None) -> ThemedApp:
    class Coloured(ThemedApp):
        CSS = "Static { color: $primary; background: $panel; }"

        def compose(self) -> "list[Static]":
            return [Static("text")]

    return Coloured(theme)


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("1", True), ("0", True)])
def test_no_color_counts_unless_it_is_empty(value: str | None, wanted: bool) -> None:
    assert no_color_wanted({} if value is None else {"NO_COLOR": value}) is wanted


async def test_no_color_is_heeded_at_start_and_a_theme_of_the_settings_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert ThemedApp().theme_name == "none"
    assert ThemedApp("artesian-light").theme_name == "artesian-light"
    monkeypatch.setenv("NO_COLOR", "")
    assert ThemedApp().theme_name == "artesian-dark"


async def test_no_colour_reaches_the_terminal_without_one() -> None:
    app = _app("none")
    async with app.run_test():
        strips = app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip if segment.style is not None]
        filtered = [f for f in app.get_line_filters() if type(f).__name__ == "NoColor"]
        assert styles and len(filtered) == 1
        for style in styles:
            assert style.color is None or style.color.is_default, style
            assert style.bgcolor is None or style.bgcolor.is_default, style


async def test_every_theme_can_be_taken_and_left() -> None:
    app = _app(None)
    async with app.run_test() as pilot:
        seen = {}
        for _ in THEMES:
            await pilot.pause()
            seen[app.theme_name] = picture(app)
            app.take_theme(app.next_theme())
        await pilot.pause()
        assert tuple(seen) == THEMES and app.theme_name == THEMES[0]
        assert picture(app) == seen[THEMES[0]]
        assert len(set(seen.values())) == len(THEMES)


def test_no_style_sheet_names_a_colour() -> None:
    """Theme variables only, so that every theme reaches everything."""
    names = "black|white|red|green|blue|yellow|cyan|magenta"
    colour = re.compile(rf"#[0-9a-fA-F]{{3,8}}\b|\b(?:rgb|hsl)a?\(|:\s*(?:{names})\b")
    named = re.compile(r"(?:color|background|border[a-z-]*|tint)\s*:[^;]*")
    folder = Path(__file__).parents[3] / "app" / "tui"
    for path in [*folder.rglob("*.tcss"), *folder.rglob("*.py")]:
        if path.name != "themes.py":
            rules = named.findall(path.read_text())
            assert not [rule for rule in rules if colour.search(rule)], path
