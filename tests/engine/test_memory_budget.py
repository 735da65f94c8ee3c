"""Answering from a checkpoint ten times larger than the memory it may use.

The checkpoint's experts, engram tables and dense fp8 weights are holes in sparse files: they are read like any others
and decode to zeros, which costs the same memory and no disk. Embedding, norms and routers are written, so tokens
choose experts.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.maker import Geometry, Weight, has_sparse_files, make

pytestmark = pytest.mark.slow

BUDGET_BYTES = 700_000_000
"""Everything, PyTorch's 240 MB of code included."""

SLOT_BYTES = 100_000_000
"""Of these, what experts may take: a handful of slots in each layer of 384."""

GEOMETRY = Geometry(
    dim=1024,
    n_layers=8,
    n_heads=8,
    head_dim=64,
    q_lora_rank=128,
    o_lora_rank=128,
    moe_inter_dim=1024,
    n_routed_experts=384,
    n_activated_experts=2,
    compress_ratios=(0, 2, 2, 2, 1, 1, 1, 1),
    kv_source_layers=(1, 4),
    index_source_layers=(1, 4, 6),
    candidate_source_layer=4,
    engram_vocab_size=10_000_000,
    n_mtp_layers=0,
)
"""3,072 experts of 1.7 MB and 60 million engram rows; the rest is under 80 MB."""


def holes(weight: Weight) -> Weight | None:
    """Leave every quantised weight unwritten."""
    return weight if weight.kind in ("bf16", "f32") else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    if not Path("/proc/self/status").exists():
        pytest.skip("the system has no /proc to read a process's peak memory from")
    if not has_sparse_files(folder):
        pytest.skip("the file system of the temporary folder has no sparse files")
    return make(folder, GEOMETRY, tweak=holes)


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    """What one answer of 4 tokens to a prompt of 16 took, measured by the process that gave it."""
    command = [sys.executable, "-m", "tests.engine.memory_probe", str(folder), "16", "4", str(SLOT_BYTES)]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


def checkpoint_bytes(folder: Path) -> int:
    """Bytes of all shards, holes counted."""
    return sum(shard.stat().st_size for shard in folder.glob("*.safetensors"))


def test_peak_memory_stays_under_a_tenth_of_the_checkpoint(folder: Path, answer: dict[str, Any]) -> None:
    assert checkpoint_bytes(folder) >= 10 * BUDGET_BYTES
    assert len(answer["tokens"]) == 4
    assert answer["peak_bytes"] <= BUDGET_BYTES, answer


def test_what_is_read_is_what_the_tokens_chose(folder: Path, answer: dict[str, Any]) -> None:
    assert answer["experts"] > 200 and answer["slots_per_layer"] < 20
    assert 0 < answer["read_bytes"] <= answer["needed_bytes"], answer
    assert answer["read_bytes"] + answer["opened_bytes"] < checkpoint_bytes(folder) / 10, answer
