import json

import pytest

from app.cli import main
from app.commands import bench_kernels
from app.errors import UsageError
from app.exits import ExitCode
from engine import kernels
from engine.kernels import bench
from engine.kernels.native_path import library_file

Output = pytest.CaptureFixture[str]

SMALL = (
    bench.Shape(name="fp4 expert", kind="expert", n=64, k=96),
    bench.Shape(name="fp8 trunk", kind="fp8", n=40, k=64),
    bench.Shape(name="bf16 head", kind="bf16", n=8, k=32),
    bench.Shape(name="f32 mix", kind="f32", n=8, k=32),
)


def test_bytes_of_a_released_expert_are_those_of_its_tensors() -> None:
    """18.8 MB: three matrices of half a byte a weight and a byte every 32."""
    expert, fp8, head, _ = bench.RELEASED
    assert expert.stored_bytes == 3 * (2304 * 2560 + 2304 * 160)
    assert fp8.stored_bytes == 5120 * 8192 + 160 * 256
    assert head.stored_bytes == 2 * 8192 * 5120


@pytest.mark.skipif(library_file() is None, reason="the native kernels were not built: no C++ compiler")
@pytest.mark.parametrize("as_json", [True, False])
def test_every_kernel_is_measured_on_both_paths(monkeypatch: pytest.MonkeyPatch, capsys: Output, as_json: bool) -> None:
    if kernels.native() is None:
        pytest.skip("the torch path was asked for")
    monkeypatch.setattr(bench.KernelBench.__init__, "__kwdefaults__", {"shapes": SMALL, "cold_bytes": 1 << 16})
    assert bench_kernels.run(seconds=0, as_json=as_json) is ExitCode.DONE
    out = capsys.readouterr().out
    if not as_json:
        assert len(out.splitlines()) == 3 + len(SMALL) * len(bench.ROWS)
        return
    data = json.loads(out)["data"]
    found = {(result["kernel"], result["rows"], result["path"]) for result in data["results"]}
    assert found == {(s.name, rows, path) for s in SMALL for rows in bench.ROWS for path in ("native", "torch")}
    assert data["n_rounds"] == 3
    for result in data["results"]:
        assert result["rate_bytes_s"] == pytest.approx(result["stored_bytes"] / result["median_s"])
        assert result["of_memory"] == pytest.approx(result["rate_bytes_s"] / data["memory_read_bytes_s"])


@pytest.mark.parametrize("options", [{"seconds": -1.0}, {"threads": 0}, {"threads": 5000}])
def test_settings_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        bench_kernels.run(**options)  # type: ignore[arg-type]


def test_without_native_kernels_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(kernels, "native", lambda: None)
    assert main(["bench", "kernels"]) == ExitCode.USAGE
    assert "no native kernels" in capsys.readouterr().err
