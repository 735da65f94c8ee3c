"""Tokens a second against memory, drawn in the terminal and as a file. Draws what it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal

from app.errors import UsageError
from app.whole_files import replace_file

Points = Sequence[tuple[int, float]]
"""Ceiling in bytes and tokens a second, in rising order of bytes; at least two."""

COLUMNS, ROWS = 60, 12


def text_plot(points: Points, here_bytes: int) -> list[str]:
    """The curve in characters, with a bar under the plan's own ceiling."""
    top, first, last = max(speed for _, speed in points), points[0][0], points[-1][0]
    grid = [[" "] * COLUMNS for _ in range(ROWS)]
    here = _column(here_bytes, first, last) if first <= here_bytes <= last else None
    for column in range(COLUMNS):
        speed = _at(points, first + column * (last - first) / (COLUMNS - 1))
        row = ROWS - 1 - round((ROWS - 1) * speed / top) if top > 0 else ROWS - 1
        grid[row][column] = "*"
        if column == here:
            for below in range(row + 1, ROWS):
                grid[below][column] = "|"
    lines = ["tokens/s"]
    for i, cells in enumerate(grid):
        label = f"{top * (ROWS - 1 - i) / (ROWS - 1):.2g}" if i % 4 == 0 or i == ROWS - 1 else ""
        lines.append(f"{label:>8} |{''.join(cells)}".rstrip())
    lines.append(" " * 9 + "+" + "-" * COLUMNS)
    left, right = f"{first / 1e9:.0f} GB", f"{last / 1e9:.0f} GB of memory"
    lines.append(" " * 10 + left + right.rjust(COLUMNS - len(left)))
    if here is not None:
        lines.append(" " * 10 + " " * here + "^ this plan")
    return lines


def write_plot(path: Path, points: Points, here_bytes: int, title: str) -> None:
    """The curve as a file of the kind its name says; a file that is there is replaced, or stays as it was.

    Raises: UsageError; OSError with the file and what is left of it.
    """
    drawing = _drawing(points, here_bytes, title)
    match path.suffix.lower():
        case ".svg":
            content = svg(drawing).encode()
        case ".png":
            from app.plan_png import png  # Pillow, which need not be there

            content = png(drawing)
        case suffix:
            raise UsageError(f"--plot writes .svg and .png files, not {suffix or 'files without a suffix'}")
    replace_file(path, content)


WIDTH, HEIGHT = 640, 360
_LEFT, _BELOW, _ABOVE = 64, 48, 40
INK, GRID, CURVE, HERE = "#777777", "#cccccc", "#2878c8", "#c85028"
"""Readable on light and dark ground."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text on a base line."""

    x: float
    y: float
    text: str
    size: int = 13
    anchor: Literal["start", "middle", "end"] = "start"


Drawing = Sequence[Stroke | Label]
"""What is drawn, the lower first, on `WIDTH` by `HEIGHT`."""


def _drawing(points: Points, here_bytes: int, title: str) -> Drawing:
    top, first, last = max(speed for _, speed in points) or 1.0, points[0][0], points[-1][0]
    right, bottom = WIDTH - 24, HEIGHT - _BELOW

    def x(n_bytes: float) -> float:
        return _LEFT + (right - _LEFT) * (n_bytes - first) / max(1, last - first)

    def y(speed: float) -> float:
        return bottom - (bottom - _ABOVE) * speed / (1.05 * top)

    parts: list[Stroke | Label] = [Label(x=_LEFT, y=22, text=title, size=15)]
    for i in range(5):
        speed, n_bytes = top * i / 4, first + (last - first) * i / 4
        parts.append(Stroke(points=((_LEFT, y(speed)), (right, y(speed))), colour=GRID))
        parts.append(Label(x=_LEFT - 8, y=y(speed) + 4, text=f"{speed:.2g}", anchor="end"))
        parts.append(Label(x=x(n_bytes), y=bottom + 18, text=f"{n_bytes / 1e9:.0f} GB", anchor="middle"))
    parts.append(Label(x=_LEFT, y=HEIGHT - 8, text="tokens a second of an answer, by memory"))
    parts.append(Stroke(points=tuple((x(n), y(speed)) for n, speed in points), colour=CURVE, width=2.5))
    if first <= here_bytes <= last:
        at = x(here_bytes)
        parts.append(Stroke(points=((at, _ABOVE), (at, bottom)), colour=HERE))
        parts.append(Label(x=at + 6, y=_ABOVE + 12, text="this plan"))
    return parts


def svg(drawing: Drawing) -> str:
    """A drawing as an SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'fill="{INK}" stroke="none">'
    ]
    for part in drawing:
        if isinstance(part, Stroke):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in part.points)
            style = f'fill="none" stroke="{part.colour}" stroke-width="{part.width:g}"'
            lines.append(f'<polyline points="{path}" {style}/>')
        else:
            style = f'font-size="{part.size}" text-anchor="{part.anchor}"'
            lines.append(f'<text x="{part.x:.1f}" y="{part.y:.1f}" {style}>{escape(part.text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _column(n_bytes: int, first: int, last: int) -> int:
    return round((COLUMNS - 1) * (n_bytes - first) / max(1, last - first))


def _at(points: Points, n_bytes: float) -> float:
    """The curve between its points."""
    for (before, slow), (after, fast) in pairwise(points):
        if n_bytes <= after:
            return slow + (fast - slow) * (n_bytes - before) / max(1, after - before)
    return points[-1][1]
