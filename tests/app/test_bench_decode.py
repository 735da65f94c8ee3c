import json
from pathlib import Path

import pytest

from app.cli import main
from app.commands import bench_decode
from app.errors import UsageError
from app.exits import ExitCode
from app.stopping import StopKey
from engine.experts import expert_bytes
from engine.phases import PHASES
from storage.errors import MissingFolder
from tests.app.small_slices import small_slice

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize("compare", [False, True])
def test_every_way_is_measured_beside_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, compare: bool
) -> None:
    from engine import measure

    monkeypatch.setattr(measure, "_MEMORY_BYTES", 1 << 20)
    config = small_slice(tmp_path / "slice")
    code = bench_decode.run(tmp_path / "slice", prompt_tokens=24, rounds=2, compare=compare, as_json=True)
    assert code is ExitCode.DONE
    data = json.loads(capsys.readouterr().out)["data"]
    works = [result["work"] for result in data["results"]]
    others = ("prefill in turn", "blocks of 32")
    assert works == [name for name in measure.ARMS if compare or name not in others]
    assert data["n_rounds"] == 2
    assert data["chunk_tokens"] == 24
    for result in data["results"]:
        assert [one["phase"] for one in result["phases"]] == list(PHASES)
        assert len(result["seconds"]) == 2
        rates = [result["n_tokens"] / seconds for seconds in result["seconds"]]
        assert min(rates) <= result["tokens_s"] <= max(rates)
        assert 0 <= result["outside_native_and_reads"] <= 1
        assert result["of_floor"] > 0
    by_work = {result["work"]: result for result in data["results"]}
    # What a step goes through: its k experts of each layer, none of them read when they are in memory.
    steps = by_work["decode in memory"]
    bytes_of = {one["phase"]: one["bytes"] for one in steps["phases"]}
    assert bytes_of["experts"] == steps["n_tokens"] * config.n_layers * config.n_activated_experts * expert_bytes(
        config
    )
    assert steps["read_bytes"] == 0
    assert steps["weights_bytes"] == sum(bytes_of.values())
    # A prompt from cold slots reads whole experts, some of every layer and no more than there are.
    n_read, rest = divmod(by_work["prefill"]["read_bytes"], expert_bytes(config))
    assert rest == 0
    assert config.n_layers * config.n_activated_experts <= n_read <= config.n_layers * config.n_routed_experts


def test_people_get_a_line_for_each_way_and_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    from engine import measure

    monkeypatch.setattr(measure, "_MEMORY_BYTES", 1 << 20)
    small_slice(tmp_path / "slice")
    assert bench_decode.run(tmp_path / "slice", prompt_tokens=8, rounds=1) is ExitCode.DONE
    out = capsys.readouterr().out
    for words in ("decode in memory", "of floor", "shared and dense", "expert reads", "indexer"):
        assert words in out


@pytest.mark.parametrize(
    "options", [{"prompt_tokens": 0}, {"rounds": 0}, {"chunk_tokens": 0}, {"prompt_tokens": 2_000_000}]
)
def test_settings_out_of_range_are_refused(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        bench_decode.run(tmp_path, **options)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: Output) -> None:
    with pytest.raises(MissingFolder):
        bench_decode.run(tmp_path / "nothing")
    assert main(["bench", "decode", str(tmp_path / "nothing")]) == ExitCode.CHECKPOINT
    assert "nothing" in capsys.readouterr().err


def test_a_stop_keeps_only_complete_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """The key is pressed in the second round, behind its first arm."""
    from engine import measure

    monkeypatch.setattr(measure, "_MEMORY_BYTES", 1 << 20)
    n_arms = 0

    class Bench(measure.ForwardBench):
        def _run(self, *arguments: object) -> measure.Run:  # type: ignore[override]
            nonlocal n_arms
            n_arms += 1
            return super()._run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(measure, "ForwardBench", Bench)
    monkeypatch.setattr(StopKey, "pressed", lambda self: n_arms > 3)
    small_slice(tmp_path / "slice")
    assert bench_decode.run(tmp_path / "slice", prompt_tokens=8, rounds=5, as_json=True) is ExitCode.STOPPED
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["n_rounds"] == 1
    assert {len(result["seconds"]) for result in data["results"]} == {1}
