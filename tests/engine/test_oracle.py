"""The oracle against the golden data: what judges the engine elsewhere is itself judged here."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.engine.oracle import Oracle, Row

TINY = Path(__file__).parents[1] / "data" / "tiny-a"
PROMPTS = json.loads((TINY / "golden" / "golden.json").read_text("utf-8"))["prompts"]
LIMIT = 1e-4
"""The golden reference's own float32-float64 distance is below 5e-5 on logits of standard deviation 4."""


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return load_file(TINY / "golden" / "exact.safetensors")


def differences(golden: dict[str, np.ndarray], prefix: str, i: int, row: Row) -> Counter[str]:
    """How many choices of one position differ from the golden ones, by kind."""
    wrong: Counter[str] = Counter()
    for layer, rows in row.hashes.items():
        wrong["hash"] += list(golden[f"{prefix}.hash.{layer}"][i]) != rows
    for layer, experts in row.experts.items():
        wrong["experts"] += set(golden[f"{prefix}.experts.{layer}"][i]) != set(experts)
    for layer, index in row.index.items():
        if f"{prefix}.index.{layer}" in golden:
            wrong["index"] += [g for g in golden[f"{prefix}.index.{layer}"][i] if g >= 0] != index
            wrong["owner"] += int(golden[f"{prefix}.index_owner.{layer}"][i, 0]) != row.owner[layer]
    wrong["logits"] += bool(np.abs(golden[f"{prefix}.logits"][i] - row.logits).max() > LIMIT)
    return +wrong


@pytest.mark.parametrize("number", range(len(PROMPTS)), ids=[p["name"] for p in PROMPTS])
def test_the_oracle_computes_the_golden_data(golden: dict[str, np.ndarray], number: int) -> None:
    prompt, oracle = PROMPTS[number], Oracle(TINY / "checkpoint")
    greedy, p = prompt["exact"]["greedy"], f"p{number}"
    rows = oracle.prefill(prompt["ids"])
    for i, row in enumerate(rows):
        assert not differences(golden, f"{p}.prefill", i, row)
    if f"{p}.prefill.last_stream" in golden:
        assert np.abs(golden[f"{p}.prefill.last_stream"] - np.array(rows[-1].streams)).max() < LIMIT
    if f"{p}.first_draft.ids" in golden:
        assert oracle.draft(greedy[0]).ids == list(golden[f"{p}.first_draft.ids"])
    for step in range(8):
        row = oracle.decode(greedy[step])
        assert not differences(golden, f"{p}.step", step, row)
        assert int(row.logits.argmax()) == greedy[step + 1]
        draft = oracle.draft(greedy[step + 1])
        assert draft.ids == list(golden[f"{p}.draft.ids"][step])
        assert np.abs(golden[f"{p}.draft.confidence"][step] - draft.confidence).max() < LIMIT
        assert np.abs(golden[f"{p}.draft.top_logit"][step] - draft.top_logit).max() < LIMIT
        for stage, experts in draft.experts.items():
            assert [set(e) for e in golden[f"{p}.draft.experts.{stage}"][step]] == [set(e) for e in experts]
