"""The kernel for cards, in a process of its own: Triton is interpreted or not from its import on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernel_multiplies_as_the_slow_decoding() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.fused_check"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=Path(__file__).parents[2], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
