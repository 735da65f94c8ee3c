"""A run stays under its ceiling, watched from beside; and fills what was planned."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_memory_budget import GEOMETRY, holes
from tests.maker import has_sparse_files, make

pytestmark = pytest.mark.slow

CEILING = 700_000_000
"""Of a model whose experts come to 2.6 GB; the program's own 500 MB included."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A prompt of some hundred tokens and eight more, under the ceiling, in a process of its own."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system has no /proc to watch a process by")
    folder = tmp_path_factory.mktemp("watched")
    if not has_sparse_files(folder):
        pytest.skip("the file system of the temporary folder has no sparse files")
    make(folder, replace(GEOMETRY, n_routed_experts=192), tweak=holes)
    command = [sys.executable, "-m", "tests.planner.watched_run", str(folder), f"{CEILING}B", "400", "4"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


def test_memory_never_goes_above_the_ceiling(watched: dict[str, Any]) -> None:
    assert watched["ceiling_bytes"] == CEILING
    assert watched["prompt_tokens"] > 100
    assert watched["resident_bytes"] <= CEILING, watched
    assert watched["anonymous_bytes"] <= 1.03 * watched["planned_bytes"], watched


def test_what_is_planned_is_used(watched: dict[str, Any]) -> None:
    """All slots are full after the prompt: at least four fifths of the plan are really held."""
    assert watched["resident_bytes"] >= 0.8 * watched["planned_bytes"], watched
