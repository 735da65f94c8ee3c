"""Pictures of screens, compared with those kept in `snapshots/`, and pilots that wait for a condition.

A picture that changed on purpose is written anew with `ARTESIAN_SNAPSHOTS=write pytest tests/app/tui`, and looked at.
"""

import asyncio
import os
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

FOLDER = Path(__file__).parent / "snapshots"

NARROW, NORMAL, WIDE = (50, 15), (80, 24), (200, 60)
"""The sizes that every screen is looked at in."""


async def wait_until(pilot: Pilot[object], ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Let the app run until `ready()`. The time is that of a hang, not of a slow machine."""
    async with asyncio.timeout(timeout_s):
        while not ready():
            await pilot.pause(0.02)


def picture(app: App[object]) -> str:
    """The screen as SVG, the same whenever the screen is the same: no blinking, no random names."""
    for widget in app.screen.query("Input, TextArea").results():
        if isinstance(widget, Input | TextArea):
            widget.cursor_blink = False
    svg = app.export_screenshot(title="Artesian", simplify=True)
    return re.sub(r"terminal-\d+", "terminal", svg)


def lines(svg: str) -> list[str]:
    """The text in a picture, row by row."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="terminal-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows.setdefault(float(y), []).append((float(x), unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(rows[y])).rstrip() for y in sorted(rows)]


def check(app: App[object], name: str) -> None:
    """Assert that the screen looks as it did when `snapshots/NAME.svg` was last looked at."""
    svg, path = picture(app), FOLDER / f"{name}.svg"
    if os.environ.get("ARTESIAN_SNAPSHOTS") == "write":
        path.write_text(svg, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8")
    if kept != svg:
        # The text first: a difference there is readable. Otherwise it is colour or style alone.
        assert lines(svg) == lines(kept), f"{name} reads differently"
        raise AssertionError(f"{name} has other colours or styles")
