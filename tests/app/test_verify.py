"""`artesian verify`: the table, the JSON and the exit codes. What is compared, and how, is tests/engine's business."""

from pathlib import Path

import pytest

Output = pytest.CaptureFixture[str]

_TINY_A = Path(__file__).parents[1] / "data" / "tiny-a"
