"""A drawing as a PNG file, by Pillow, which only this needs and which need not be installed."""

from importlib import import_module
from io import BytesIO
from typing import Any

from app.errors import UsageError
from app.plan_plot import HEIGHT, INK, WIDTH, Drawing, Stroke

_SCALE = 2
"""Pixels for each unit of the drawing: sharp on today's screens."""
_GROUND = "#ffffff"
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
"""Where a label hangs, in Pillow's letters: left, middle or right of its base line."""


def png(drawing: Drawing) -> bytes:
    """The file's content. Raises: UsageError without Pillow."""
    image, draw, font = _pillow("Image"), _pillow("ImageDraw"), _pillow("ImageFont")
    canvas = image.new("RGB", (_SCALE * WIDTH, _SCALE * HEIGHT), _GROUND)
    pen = draw.Draw(canvas)
    for part in drawing:
        if isinstance(part, Stroke):
            points = [(_SCALE * x, _SCALE * y) for x, y in part.points]
            pen.line(points, fill=part.colour, width=round(_SCALE * part.width), joint="curve")
        else:
            at, letters = (_SCALE * part.x, _SCALE * part.y), font.load_default(_SCALE * part.size)
            pen.text(at, part.text, fill=INK, font=letters, anchor=_ANCHORS[part.anchor])
    file = BytesIO()
    canvas.save(file, format="PNG")
    return file.getvalue()


def _pillow(module: str) -> Any:
    try:
        return import_module(f"PIL.{module}")
    except ImportError as error:
        raise UsageError(
            "--plot needs Pillow for a .png file, and it is not installed",
            hint="Install it with `pip install 'pillow>=10.1'`, or name an .svg file, which needs nothing.",
        ) from error
