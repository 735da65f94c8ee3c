"""What this machine has, for `artesian doctor`: asked of the system, never guessed. None or "" means: not known."""

import os
import platform
import sys
import threading
from pathlib import Path

from planner import facts

_CPU_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512F",
    "avx512bw": "AVX-512BW",
    "avx512vl": "AVX-512VL",
    "avx512_vnni": "AVX-512-VNNI",
    "avx512_vbmi": "AVX-512-VBMI",
    "avx512_bf16": "AVX-512-BF16",
    "amx_tile": "AMX",
    "asimd": "NEON",
    "asimddp": "NEON-DOTPROD",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
}
"""Name in /proc/cpuinfo -> the name people use, for the features a kernel could want."""

GPU_LIMIT_S = 10.0
"""For torch to load and the driver to answer."""


def cpu_name(cpuinfo: str) -> str:
    """The processor's name from the text of /proc/cpuinfo, or what Python knows."""
    for line in cpuinfo.splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """The features of `_CPU_FEATURES` that the first processor of /proc/cpuinfo's text has, in that order."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            present = set(value.split())
            return tuple(name for flag, name in _CPU_FEATURES.items() if flag in present)
    return ("NEON",) if platform.machine() in ("arm64", "aarch64") else ()


def read_cpuinfo() -> str:
    """/proc/cpuinfo, or "" where there is none (macOS)."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def affinity_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes() -> int:
    """Memory that can be taken now: what the system says is available, within the cgroup's limits."""
    available = facts.available_bytes()
    if available is None:
        import psutil  # here saves every command 20 ms

        return int(psutil.virtual_memory().available)
    return available


def may_have_gpu(root: Path = Path("/")) -> bool:
    """Whether it is worth a second to ask torch for GPUs: their drivers leave these in the device folder."""
    if sys.platform == "darwin":
        return True
    return any((root / "dev" / name).exists() for name in ("nvidiactl", "nvidia0", "kfd", "dxg"))


def find_gpus(limit_s: float = GPU_LIMIT_S) -> tuple[tuple[facts.Gpu, ...], str]:
    """The GPUs that torch can compute on, and a sentence about what went wrong, or "".

    A driver that hangs is not waited for.
    """
    found: list[tuple[facts.Gpu, ...]] = []
    fault: list[str] = []

    def look() -> None:
        try:
            from engine.device import gpus  # torch: only where there may be a GPU

            found.append(gpus())
        except Exception as error:  # whatever a broken driver makes of it
            fault.append(f"The GPUs cannot be asked: {type(error).__name__}: {error}")

    thread = threading.Thread(target=look, daemon=True, name="artesian-gpus")
    thread.start()
    thread.join(limit_s)
    if found:
        return found[0], ""
    return (), fault[0] if fault else f"The GPUs did not answer within {limit_s:.0f} s; they are left out."
