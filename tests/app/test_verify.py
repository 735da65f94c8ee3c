"""`artesian verify`: the table, the JSON and the exit codes. What is compared, and how, is tests/engine's business."""

import json
from pathlib import Path

import pytest

import engine.golden
from app.cli import main
from engine.golden import GoldenReport, KindResult

Output = pytest.CaptureFixture[str]

_TINY_A = Path(__file__).parents[1] / "data" / "tiny-a"
_ARGUMENTS = ["verify", str(_TINY_A / "checkpoint"), "--golden", str(_TINY_A / "golden")]


def _answer_with(monkeypatch: pytest.MonkeyPatch, *, agrees: bool) -> list[str]:
    """Put a fixed report in the place of the comparison; gives the numeric modes it is asked for."""
    asked: list[str] = []
    kinds = (
        KindResult(kind="experts", rows=1_234, mismatches=0, worst=None, limit=None, agrees=True),
        KindResult(kind="logits", rows=466, mismatches=0, worst=0.000256, limit=0.0002, agrees=agrees),
    )

    def compare(checkpoint: Path, golden: Path, *, numerics: str, **options: object) -> GoldenReport:
        assert (checkpoint, golden) == (_TINY_A / "checkpoint", _TINY_A / "golden")
        asked.append(numerics)
        return GoldenReport(kinds=kinds, agrees=agrees)

    monkeypatch.setattr(engine.golden, "compare", compare)
    return asked


def test_the_table_has_the_worst_of_each_kind_and_the_verdict(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    _answer_with(monkeypatch, agrees=True)
    assert main(_ARGUMENTS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "kind      rows  differ     worst   limit",
        "experts  1,234       0                    agrees",
        "logits     466       0  0.000256  0.0002  agrees",
        "",
        "exact: everything agrees",
    ]


def test_disagreement_is_code_1_and_says_where(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    asked = _answer_with(monkeypatch, agrees=False)
    assert main([*_ARGUMENTS, "--numerics", "reference"]) == 1
    out = capsys.readouterr().out
    assert "0.0002  DISAGREES" in out and "reference: engine and golden results disagree" in out
    assert asked == ["reference"]


def test_json_carries_the_same(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    _answer_with(monkeypatch, agrees=False)
    assert main([*_ARGUMENTS, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "verify"
    assert (record["data"]["numerics"], record["data"]["agrees"]) == ("exact", False)
    assert record["data"]["kinds"][1] == {
        "kind": "logits",
        "rows": 466,
        "mismatches": 0,
        "worst": 0.000256,
        "limit": 0.0002,
        "agrees": False,
    }


def test_a_folder_without_golden_results_is_wrong_use(tmp_path: Path, capsys: Output) -> None:
    assert main(["verify", str(_TINY_A / "checkpoint"), "--golden", str(tmp_path)]) == 2
    assert "golden.json" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_a_missing_checkpoint(tmp_path: Path, capsys: Output) -> None:
    assert main(["verify", str(tmp_path / "none"), "--golden", str(_TINY_A / "golden")]) == 4
    assert "none" in capsys.readouterr().err
