"""What the machine has, as numbers, and the one function that reads them.

The one thing a reader would get wrong: `available_bytes` is what this process may hold in all, with what it holds
already counted in, so that a dry run and the run that follows it start from one number.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from planner.cgroups import memory_room, quota_cores

Source = Literal["measured", "remembered", "assumed", "given"]
"""Measured in this run, measured on this machine before, a cautious figure for the kind, or said by the user."""

UNKNOWN_AVAILABLE_BYTES = 4_000_000_000
"""Taken for available where the system says nothing of its memory."""

ASSUMED_DRIVE_BYTES_S = {
    "nvme": 2.5e9, "ssd": 450e6, "hdd": 120e6, "usb": 300e6, "virtual": 500e6, "memory": 5e9, "network": 100e6,
}  # fmt: skip
"""By kind, of a drive nobody has measured yet: what the slower half of each kind gives."""
ASSUMED_OTHER_BYTES_S = 300e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device that torch can compute on."""

    name: str
    total_bytes: int
    free_bytes: int
    unified: bool = False
    """Whether its memory is the machine's own, which must not be counted twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One drive that shards are read from."""

    name: str
    """Its physical disks: `storage.drives.DriveFacts.name`."""
    kind: str
    rate_bytes_s: float
    """Whole experts in random order at the planned depth, all drives read at once."""
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast stored weights are consumed, in bytes a second on all planned threads, one row of activations."""

    memory_bytes_s: float
    """Plain reading."""
    fp4_bytes_s: float
    """Experts."""
    fp8_bytes_s: float
    """Dense quantised weights."""
    plain_bytes_s: float
    """bf16 and float32 weights."""
    multiply_adds_s: float
    """Of many rows, where arithmetic and not memory is the limit."""
    answer_factor: float = 1.0
    """Times the arithmetic of a decode forward took in the turns so far, over what these rates make of it."""
    prompt_factor: float = 1.0
    """Likewise of reading a prompt."""
    source: Source


def assumed_rates(n_cores: int) -> Rates:
    """Cautious figures for a machine nobody has measured: two memory channels and AVX2 without wider registers.

    Source: shares of the memory rate as in the prototype's table for AVX2, and 30 G multiply-adds a second and core.
    """
    memory = 20e9
    share = min(1.0, n_cores / 4)
    return Rates(
        memory_bytes_s=memory,
        fp4_bytes_s=0.6 * share * memory,
        fp8_bytes_s=0.7 * share * memory,
        plain_bytes_s=0.9 * share * memory,
        multiply_adds_s=30e9 * n_cores,
        source="assumed",
    )


def at_memory_rate(rates: Rates, memory_bytes_s: float) -> Rates:
    """The same kernels on a machine whose memory gives so much: each keeps its share of what is read."""
    scale = memory_bytes_s / rates.memory_bytes_s
    return replace(
        rates,
        memory_bytes_s=memory_bytes_s,
        fp4_bytes_s=rates.fp4_bytes_s * scale,
        fp8_bytes_s=rates.fp8_bytes_s * scale,
        plain_bytes_s=rates.plain_bytes_s * scale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What a plan is made from."""

    total_bytes: int
    """Memory of the machine, or the limit of the cgroup that rules if that is less."""
    available_bytes: int
    """What this process may hold, what it holds now included."""
    ruled_by: str
    """What says so: "system", a cgroup's folder, or "assumed"."""
    n_cores: int
    """Cores this process may keep busy; at least 1."""
    gpus: tuple[Gpu, ...] = ()
    drives: tuple[Drive, ...] = ()
    rates: Rates
    notes: tuple[str, ...] = ()
    """What was found and not understood, in sentences."""

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """GPUs with memory of their own."""
        return tuple(gpu for gpu in self.gpus if not gpu.unified)


def read_facts(
    *,
    root: Path = Path("/"),
    gpus: Sequence[Gpu] = (),
    drives: Sequence[Drive] = (),
    rates: Rates | None = None,
) -> MachineFacts:
    """What this machine has now. `root` holds the trees /proc and /sys.

    GPUs, drives and rates are found out elsewhere and only passed through: they need torch, folders or time.
    """
    notes: list[str] = []
    total, available = _memory(root, notes)
    ruled_by = "system" if available is not None else "assumed"
    if available is None:
        available = UNKNOWN_AVAILABLE_BYTES
        notes.append(f"The system does not say how much memory is available; {available / 1e9:.0f} GB are assumed.")
    room = memory_room(root, notes.append)
    if room is not None:
        total = min(total or room.limit_bytes, room.limit_bytes)
        if room.room_bytes < available:
            available, ruled_by = room.room_bytes, room.group
    n_cores = usable_cores(root, notes)
    return MachineFacts(
        total_bytes=max(total or available, available),
        available_bytes=available + own_bytes(root),
        ruled_by=ruled_by,
        n_cores=n_cores,
        gpus=tuple(gpus),
        drives=tuple(drives),
        rates=rates or assumed_rates(n_cores),
        notes=tuple(notes),
    )


def usable_cores(root: Path = Path("/"), notes: list[str] | None = None) -> int:
    """Cores of the affinity mask within the cgroups' quota, whole ones; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores(root, (notes if notes is not None else []).append)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def available_bytes(root: Path = Path("/")) -> int | None:
    """What can be taken now beyond what this process holds: the system's figure within the cgroups' limits.

    Page cache that can be given back counts as available. None when the system says nothing.
    """
    _, available = _memory(root, [])
    room = memory_room(root)
    if room is None or (available is not None and available <= room.room_bytes):
        return available
    return room.room_bytes


def peak_bytes(root: Path = Path("/")) -> int:
    """The most this process held so far, program files included; 0 where the system does not say."""
    return _fields(root / "proc/self/status").get("VmHWM", 0)


def own_bytes(root: Path = Path("/")) -> int:
    """Anonymous memory of this process: what it alone holds. Mapped files are not counted, for they can be dropped."""
    fields = _fields(root / "proc/self/status")
    return fields.get("RssAnon", 0)


def with_drives(facts: MachineFacts, n_drives: int) -> MachineFacts:
    """The same machine with so many drives; further ones are as fast as the first."""
    assert n_drives >= 1 and facts.drives
    first = facts.drives[0]
    more = [replace(first, name=f"another drive {i}", source="given") for i in range(1, n_drives)]
    return replace(facts, drives=(facts.drives + tuple(more))[:n_drives] if n_drives > 1 else facts.drives[:1])


def _memory(root: Path, notes: list[str]) -> tuple[int | None, int | None]:
    """Total and available memory, of /proc/meminfo or else of psutil."""
    file = root / "proc/meminfo"
    if not file.exists():
        if root != Path("/"):
            return None, None
        import psutil  # here saves every plan on Linux 20 ms

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    fields = _fields(file)
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    if available is None and "MemFree" in fields:  # kernels before 3.14
        available = fields["MemFree"] + fields.get("Cached", 0) // 2
        notes.append(f"{file} has no MemAvailable; what is free and half of the page cache are taken for it.")
    elif available is None:
        notes.append(f"{file} does not say how much memory is available.")
    return total, available


def _fields(file: Path) -> dict[str, int]:
    """Fields of a /proc file of lines like `MemTotal:  1234 kB`, in bytes."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB" and number.isdecimal():
            fields[name] = int(number) * 1024
    return fields
