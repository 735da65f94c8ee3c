import threading
from pathlib import Path

import pytest

from app import machine
from app.machine import cpu_features, cpu_name, find_gpus, may_have_gpu
from planner.facts import Gpu

_X86 = (
    "processor\t: 0\nmodel name\t: AMD EPYC 9575F\nflags\t\t: fpu sse2 avx2 fma f16c avx512f avx512_vnni bogus\n\n"
    "processor\t: 1\n"
)
_ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n"


def test_features_are_those_of_cpuinfo_in_one_order() -> None:
    assert cpu_features(_X86) == ("AVX2", "FMA", "F16C", "AVX-512F", "AVX-512-VNNI")
    assert cpu_features(_ARM) == ("NEON", "NEON-DOTPROD", "I8MM", "BF16", "SVE")
    assert cpu_name(_X86) == "AMD EPYC 9575F"


def test_torch_is_asked_only_where_a_driver_left_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert not may_have_gpu(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert may_have_gpu(tmp_path)


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("engine.device.gpus", never.wait)
    gpus, fault = find_gpus(limit_s=0.01)
    assert gpus == () and "did not answer" in fault
    never.set()


def test_a_driver_that_fails_is_left_out_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[Gpu, ...]:
        raise RuntimeError("CUDA driver version is insufficient")

    monkeypatch.setattr("engine.device.gpus", broken)
    gpus, fault = find_gpus()
    assert gpus == () and "CUDA driver version is insufficient" in fault


def test_gpus_are_those_torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(name="card", total_bytes=8, free_bytes=7)
    monkeypatch.setattr("engine.device.gpus", lambda: (gpu,))
    assert find_gpus() == ((gpu,), "")
    assert machine.available_bytes() > 0
