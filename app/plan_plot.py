"""Tokens a second against memory, drawn in the terminal and as an SVG file. Draws what it is given."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from app.errors import UsageError

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
    """The curve as an SVG file; a file that is there is replaced. Raises: UsageError; OSError."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--plot writes .svg files, not {path.suffix or 'files without a suffix'}")
    path.write_text(svg_plot(points, here_bytes, title), encoding="utf-8")


_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE = 640, 360, 64, 48, 40


def svg_plot(points: Points, here_bytes: int, title: str) -> str:
    """The curve as an SVG document, readable on light and dark ground."""
    top, first, last = max(speed for _, speed in points) or 1.0, points[0][0], points[-1][0]
    right, bottom = _WIDTH - 24, _HEIGHT - _BELOW

    def x(n_bytes: float) -> float:
        return _LEFT + (right - _LEFT) * (n_bytes - first) / max(1, last - first)

    def y(speed: float) -> float:
        return bottom - (bottom - _ABOVE) * speed / (1.05 * top)

    path = " ".join(f"{x(n):.1f},{y(speed):.1f}" for n, speed in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#777" stroke="none">',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for i in range(5):
        speed, n_bytes = top * i / 4, first + (last - first) * i / 4
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(speed):.1f}" y2="{y(speed):.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(speed) + 4:.1f}" text-anchor="end">{speed:.2g}</text>')
        parts.append(f'<text x="{x(n_bytes):.1f}" y="{bottom + 18}" text-anchor="middle">{n_bytes / 1e9:.0f} GB</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">tokens a second of an answer, by memory</text>')
    parts.append(f'<polyline points="{path}" fill="none" stroke="#2878c8" stroke-width="2.5"/>')
    if first <= here_bytes <= last:
        at = x(here_bytes)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_ABOVE}" y2="{bottom}" stroke="#c85028"/>')
        parts.append(f'<text x="{at + 6:.1f}" y="{_ABOVE + 12}">this plan</text>')
    return "\n".join([*parts, "</svg>", ""])


def _column(n_bytes: int, first: int, last: int) -> int:
    return round((COLUMNS - 1) * (n_bytes - first) / max(1, last - first))


def _at(points: Points, n_bytes: float) -> float:
    """The curve between its points."""
    for (before, slow), (after, fast) in pairwise(points):
        if n_bytes <= after:
            return slow + (fast - slow) * (n_bytes - before) / max(1, after - before)
    return points[-1][1]
