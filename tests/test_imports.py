"""What an import costs: the static contracts cannot see imports inside functions, a fresh interpreter can."""

import subprocess
import sys

import pytest

_HEAVY = ("torch", "textual")


def _heavy_after(code: str) -> list[str]:
    probe = f"import sys\n{code}\nprint(*[m for m in {_HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "module",
    [
        "storage",
        "storage.checkpoint",
        "planner",
        "engine.config",
        "engine.inventory",
        "engine.hashing",
        "engine.sampler_settings",
        "engine.events",
        "app.cli",
        "app.commands.ask",
        "app.commands.audit",
        "app.commands.verify",
        "app.commands.doctor",
        "app.commands.plan",
        "app.commands.transcripts",
        "app.transcripts",
    ],
)
def test_importing_a_light_module_loads_neither_torch_nor_textual(module: str) -> None:
    assert _heavy_after(f"import {module}") == []


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["ask", "--help"], ["transcripts", "--help"], ["doctor", "--help"], ["ask"], ["aks"]],
)
def test_help_version_and_wrong_use_load_neither_torch_nor_textual(arguments: list[str]) -> None:
    assert _heavy_after(f"from app.cli import main\nmain({arguments!r})\nprint()") == []


def test_the_probe_sees_torch_when_it_is_loaded() -> None:
    assert _heavy_after("import torch") == ["torch"]
