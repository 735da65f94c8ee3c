"""The judge itself: it agrees on the fixture, and disagrees by name when a recorded number is changed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import GoldenError
from engine.golden import GoldenReport, compare
from tests.engine.conftest import TINY


@pytest.fixture(scope="module")
def exact() -> GoldenReport:
    """The whole comparison of the fixture in `exact`."""
    return compare(TINY / "checkpoint", TINY / "golden")


def test_exact_mode_reproduces_the_fixture(exact: GoldenReport) -> None:
    # 130 prompt positions and 7 x 48 steps; 8 layers, 2 engram layers, 4 index sources (fixture README). A draft round
    # after each step, and one after each prompt of more than one token; 3 stages of 5 rows.
    rows = {kind.kind: kind.rows for kind in exact.kinds}
    assert rows == {
        "best token": 466, "next token": 343, "engram rows": 932, "experts": 3728, "selections": 1864,
        "key owners": 1864, "logits": 466, "residual stream": 16,
        "draft tokens": 342, "draft experts": 5040, "draft logits": 336, "draft confidence": 342,
    }  # fmt: skip
    assert all(kind.mismatches == 0 for kind in exact.kinds)
    for name in ("logits", "draft logits", "draft confidence"):
        worst = next(kind.worst for kind in exact.kinds if kind.kind == name)
        assert worst is not None and worst <= 2e-4
    assert exact.agrees


def cut(out: Path, file: str, mode: str, prompts: slice, n_steps: int) -> Path:
    """Write golden data of some prompts with their first steps; those kept are counted from 0."""
    meta = json.loads((TINY / "golden" / "golden.json").read_text())
    keys = {f"p{number}.": f"p{i}." for i, number in enumerate(range(len(meta["prompts"]))[prompts])}
    meta["prompts"] = meta["prompts"][prompts]
    for prompt in meta["prompts"]:
        prompt[mode]["greedy"] = prompt[mode]["greedy"][: n_steps + 1]
    arrays = {}
    for name, array in load_file(TINY / "golden" / file).items():
        key, rest = name[: name.index(".") + 1], name[name.index(".") + 1 :]
        if key in keys:
            rows = array[:n_steps] if rest.startswith(("step.", "draft.")) else array
            arrays[keys[key] + rest] = rows.contiguous()
    (out / "golden.json").write_text(json.dumps(meta))
    save_file(arrays, out / file)
    return out


def test_reference_mode_is_a_faithful_imitation(tmp_path: Path) -> None:
    # Limits of the fixture README (median 0.05, root mean square 0.8), and 95 % equal next tokens. All 130 positions of
    # the prompts and 7 x 8 steps; `artesian verify --numerics reference` compares 7 x 48.
    golden = cut(tmp_path, "vendor.safetensors", "vendor", slice(None), 8)
    report = compare(TINY / "checkpoint", golden, numerics="reference")
    kinds = {kind.kind: kind for kind in report.kinds}
    assert report.agrees
    assert kinds["best token"].rows == 130 + 7 * 8 and kinds["best token"].mismatches <= (130 + 7 * 8) * 0.05
    # The fixture README: with double-precision sums alone, 279 of 336 draft blocks are identical. A quarter of the
    # rounds is compared: 2 of 8 steps of 7 prompts, and the 6 first ones.
    assert kinds["draft tokens"].rows == 20 and kinds["draft tokens"].mismatches <= 20 * (336 - 279) / 336
    assert kinds["engram rows"].mismatches == kinds["key owners"].mismatches == 0
    for name, limit in (("logits, median", 0.05), ("logits, root mean square", 0.8)):
        worst = kinds[name].worst
        assert worst is not None and worst <= limit


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden folder of prompt p1 and 8 steps, which agrees."""
    golden = cut(tmp_path_factory.mktemp("sound"), "exact.safetensors", "exact", slice(1, 2), 8)
    assert compare(TINY / "checkpoint", golden).agrees
    return golden


@pytest.fixture
def one_prompt(sound: Path, tmp_path: Path) -> Path:
    """A copy of `sound`, to be tampered with."""
    for name in ("golden.json", "exact.safetensors"):
        shutil.copy(sound / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        ("p0.step.experts.3", "experts"), ("p0.prefill.index.5", "selections"), ("p0.step.hash.4", "engram rows"),
        ("p0.step.index_owner.2", "key owners"), ("p0.step.logits", "logits"),
        ("p0.prefill.last_stream", "residual stream"), ("p0.draft.ids", "draft tokens"),
        ("p0.draft.confidence", "draft confidence"), ("p0.draft.top_logit", "draft logits"),
        ("p0.draft.experts.1", "draft experts"), ("p0.first_draft.ids", "draft tokens"),
    ],
)  # fmt: skip
def test_one_changed_number_is_found_and_named(one_prompt: Path, array: str, kind: str) -> None:
    arrays = load_file(one_prompt / "exact.safetensors")
    arrays[array].view(-1)[0] += 7 if arrays[array].dtype == torch.int32 else 0.01
    save_file(arrays, one_prompt / "exact.safetensors")
    report = compare(TINY / "checkpoint", one_prompt)
    assert {k.kind for k in report.kinds if not k.agrees} == {kind}
    assert not report.agrees


def test_golden_folders_that_do_not_fit_are_refused_by_name(one_prompt: Path, tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match=r"golden\.json"):
        compare(TINY / "checkpoint", tmp_path / "nowhere")
    with pytest.raises(GoldenError, match=r"vendor\.safetensors"):
        compare(TINY / "checkpoint", one_prompt, numerics="reference")
    arrays = load_file(one_prompt / "exact.safetensors")
    missing = {k: v for k, v in arrays.items() if k != "p0.step.experts.6"}
    save_file(missing, one_prompt / "exact.safetensors")
    with pytest.raises(GoldenError, match=r"no array 'p0\.step\.experts\.6'"):
        compare(TINY / "checkpoint", one_prompt)
    save_file(arrays | {"p0.step.logits": arrays["p0.step.logits"][:3].contiguous()}, one_prompt / "exact.safetensors")
    with pytest.raises(GoldenError, match=r"'p0\.step\.logits' has shape \[3, 512\], expected 8 rows"):
        compare(TINY / "checkpoint", one_prompt)
    save_file(arrays | {"p0.draft.ids": arrays["p0.draft.ids"][:, :4].contiguous()}, one_prompt / "exact.safetensors")
    with pytest.raises(GoldenError, match=r"'p0\.draft\.ids' is of shape \[4\], expected \[6\] a round"):
        compare(TINY / "checkpoint", one_prompt)
    meta = json.loads((one_prompt / "golden.json").read_text())
    for broken in (
        "{",
        "[]",
        json.dumps({"prompts": [{"ids": [1]}]}),
        json.dumps({"prompts": [{**meta["prompts"][0], "ids": [9999]}]}),
    ):
        (one_prompt / "golden.json").write_text(broken)
        with pytest.raises(GoldenError):
            compare(TINY / "checkpoint", one_prompt)


def test_a_damaged_weight_is_found(one_prompt: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(TINY / "checkpoint", copy)
    shard = copy / "model-00005-of-00016.safetensors"
    data = bytearray(shard.read_bytes())
    data[-40_000] ^= 0x28
    shard.write_bytes(data)
    assert not compare(copy, one_prompt).agrees
