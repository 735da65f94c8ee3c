"""What this machine has, for `artesian doctor`: asked of the system, never guessed. None or "" means: not known."""

import os
import platform
from pathlib import Path

import psutil

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

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""From here on a v1 limit means that there is none (it is 2^63 less a page)."""


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


def cgroup_quota_cores(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float | None:
    """The tightest CPU quota, in cores, of this process's cgroup and those above it; None when there is none.

    Reads v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`, `cpu.cfs_period_us`).
    """
    folders = _cgroup_folders("cpu", root, membership)
    quotas = [quota for folder in folders if (quota := _quota_v2(folder / "cpu.max") or _quota_v1(folder)) is not None]
    return min(quotas, default=None)


def cgroup_room_bytes(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int | None:
    """What this process's cgroup and those above it still let it take, file cache counted as free; None for no limit.

    Reads v2 (`memory.max`, `memory.current`) and v1 (`memory.limit_in_bytes`, `memory.usage_in_bytes`).
    """
    room = []
    for folder in _cgroup_folders("memory", root, membership):
        limit = _whole(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _whole(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and limit < _NO_LIMIT_BYTES and used is not None:
            room.append(max(limit - used + _inactive_file_bytes(folder / "memory.stat"), 0))
    return min(room, default=None)


def available_bytes() -> int:
    """Memory that can be taken now: what the system says is available, within the cgroup's limits."""
    room = cgroup_room_bytes()
    available = int(psutil.virtual_memory().available)
    return available if room is None else min(available, room)


def _cgroup_folders(controller: str, root: Path, membership: Path) -> list[Path]:
    """This process's cgroup and all above it: v2 (also where it is mounted beside v1), and v1's for `controller`."""
    try:
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        parts = Path(path.lstrip("/")).parts
        bases = [root, root / "unified"] if not controllers else [root / controllers, root / controller]
        if not controllers or controller in controllers.split(","):
            folders += [base.joinpath(*parts[:n]) for base in bases for n in range(len(parts) + 1)]
    return folders


def _quota_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return None if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _whole(*files: Path) -> int | None:
    """The number in the first of `files` that holds one."""
    for file in files:
        try:
            return int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return None


def _inactive_file_bytes(stat: Path) -> int:
    """File cache the kernel would give back, of v2's `inactive_file` or v1's `total_inactive_file`."""
    try:
        fields = dict(line.split(None, 1) for line in stat.read_text(encoding="ascii").splitlines() if " " in line)
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
