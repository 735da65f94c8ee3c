import json
from pathlib import Path

import pytest

from app.cli import main
from app.commands.bench_cache import run
from app.errors import UsageError
from app.exits import ExitCode
from storage.errors import TraceError
from storage.policy import DEFAULT_POLICY, POLICIES
from storage.trace import TraceWriter

Output = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two layers; layer 0 asks for 0 1 | 2 | 0 | 3 | 1 after a prefill of everything in layer 1."""
    path = tmp_path / "t"
    with TraceWriter(path, {0: 8, 1: 4}) as writer:
        writer.next_step()
        writer.record(1, range(4), "prefill")
        for experts in ([0, 1], [2], [0], [3], [1]):
            writer.next_step()
            writer.record(0, experts, "decode")
            writer.record(1, [0], "decode")
    return path


def test_json_has_every_policy_at_every_size_and_the_counts_worked_out_by_hand(trace: Path, capsys: Output) -> None:
    assert run(trace=trace, slots=(3, 8), spare_slots=0, as_json=True) is ExitCode.DONE
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "bench_cache"
    data = record["data"]
    assert data["n_experts_by_layer"] == {"0": 8, "1": 4}
    assert {entry["policy"] for entry in data["policies"]} == set(POLICIES)
    assert data["policies"][0]["policy"] == data["best"]
    assert data["default"] == DEFAULT_POLICY
    (lru,) = [entry for entry in data["policies"] if entry["policy"] == "lru"]
    small, large = lru["sizes"]
    # Layer 0 misses 0 1 2 3 1 in three slots (tests/storage/test_replay.py) and 0 1 2 3 in eight; layer 1 never.
    assert (small["slots_per_layer"], small["decode"]["n_misses"]) == (3, 5)
    assert (large["decode"]["n_misses"], large["decode"]["n_requests"], large["decode"]["n_steps"]) == (4, 11, 5)
    assert large["decode"]["misses_per_step"] == 0.8
    assert large["prefill"]["n_misses"] == 4
    assert [size["decode"]["n_misses"] for size in data["fewest_possible"]] == [5, 5]  # without the prefill


def test_the_table_names_the_best_and_the_default(trace: Path, capsys: Output) -> None:
    assert run(trace=trace) is ExitCode.DONE
    out = capsys.readouterr().out
    for policy in POLICIES:
        assert policy in out
    assert "5 decode, 1 prefill" in out
    assert "Best here: " in out.splitlines()[-1] and DEFAULT_POLICY in out.splitlines()[-1]


def test_a_made_up_trace_repeats_by_its_seed(capsys: Output) -> None:
    outputs = []
    for seed in (3, 3, 4):
        assert run(synthetic=seed, slots=(24,), most_requests=400, as_json=True) is ExitCode.DONE
        captured = capsys.readouterr()
        assert "only the first 400 requests" in captured.err
        outputs.append(captured.out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_the_command_line_takes_several_sizes_and_answers_in_exit_codes(trace: Path, capsys: Output) -> None:
    assert main(["bench", "cache", "--trace", str(trace), "--slots", "3", "8"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("policy"))
    assert head.split() == ["policy", "3", "8", "to", "the", "best"]
    assert main(["bench", "cache"]) == 2
    trace.write_bytes(b"junk")
    assert main(["bench", "cache", "--trace", str(trace)]) == 1
    assert "trace" in capsys.readouterr().err


def test_wrong_use_names_the_option(trace: Path) -> None:
    with pytest.raises(UsageError, match="--trace FILE or --synthetic SEED"):
        run()
    with pytest.raises(UsageError, match="--trace FILE or --synthetic SEED"):
        run(trace=trace, synthetic=1)
    for options in ({"slots": (0,)}, {"spare_slots": -1}, {"most_requests": 0}):
        with pytest.raises(UsageError, match="--"):
            run(trace=trace, **options)  # type: ignore[arg-type]


def test_a_trace_without_decoding_or_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, {0: 8}) as writer:
        writer.record(0, range(8), "prefill")
    with pytest.raises(UsageError, match="no decode request"):
        run(trace=path)
    path.write_bytes(b"junk")
    with pytest.raises(TraceError):
        run(trace=path)
