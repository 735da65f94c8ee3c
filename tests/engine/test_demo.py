"""The bundled demo against the slow reference: every choice, and the text on both paths, drafted or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import kernels
from engine.draft.drafter import Drafter
from engine.draft.settings import DraftSettings
from engine.events import TokenDrawn
from engine.generate import generate
from engine.golden import compare
from engine.kernels.native_path import library_file
from tests.engine.drafting import GREEDY, opened

DEMO = Path(__file__).parents[2] / "assets" / "demo"
GOLDEN = Path(__file__).parents[1] / "data" / "demo" / "golden"
PROMPTS = json.loads((GOLDEN / "golden.json").read_text("utf-8"))["prompts"]
"""Written by `python -m tests.engine.write_golden assets/demo tests/data/demo/golden`."""


@pytest.fixture(params=["native", "torch"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to multiply, where the native one is there."""
    name = str(request.param)
    if name == "native" and library_file() is None:
        pytest.skip("the native kernels were not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kernels.VARIABLE, name)
        kernels.native.cache_clear()
        yield name
    kernels.native.cache_clear()


def test_the_demo_computes_what_the_reference_does() -> None:
    report = compare(DEMO, GOLDEN)
    assert [kind for kind in report.kinds if not kind.agrees] == []
    kinds = {kind.kind: kind.rows for kind in report.kinds}
    positions = sum(prompt["length"] + len(prompt["exact"]["greedy"]) - 1 for prompt in PROMPTS)
    assert kinds["logits"] == positions
    assert kinds["draft tokens"] == sum(len(prompt["exact"]["greedy"]) - 1 for prompt in PROMPTS)


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafted"])
def test_the_demo_writes_what_the_reference_writes(path: str, drafts: bool) -> None:
    with opened(DEMO, drafts=drafts) as model:
        drafter = None
        if drafts:
            assert model.head is not None
            drafter = Drafter(model.head, DraftSettings(mode="on"), block_size=model.config.dspark_block_size)
        for prompt in PROMPTS:
            wanted = prompt["exact"]["greedy"]
            if drafter is not None:
                drafter.begin_turn()
            events = generate(
                model, model.new_state(), prompt["ids"], sampler=GREEDY, max_tokens=len(wanted), stop_ids=(),
                drafter=drafter,
            )  # fmt: skip
            assert [event.token for event in events if isinstance(event, TokenDrawn)] == wanted
