"""What the cgroups of this process let it take: memory and processor time, of both cgroup versions.

The one thing a reader would get wrong: the limit that rules may be any ancestor's, and what a group has used includes
file cache that the kernel gives back when memory is short.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""From here on a v1 limit means that there is none (it is 2^63 less a page)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """What the tightest of the groups leaves."""

    group: str
    """The group's folder."""
    limit_bytes: int
    room_bytes: int
    """The limit less what the group holds, file cache that can be given back not counted; at least 0."""


def memory_room(root: Path = Path("/"), note: Callable[[str], None] = lambda _: None) -> MemoryRoom | None:
    """The group of this process or above it that leaves least memory; None when none has a limit.

    Reads v2 (`memory.max`, `memory.current`) and v1 (`memory.limit_in_bytes`, `memory.usage_in_bytes`) below `root`.
    `note` is told of a file whose content makes no sense; that file is then no limit.
    """
    tightest: MemoryRoom | None = None
    for folder in _folders("memory", root):
        limit = _number(folder / "memory.max", note) or _number(folder / "memory.limit_in_bytes", note)
        used = _number(folder / "memory.current", note) or _number(folder / "memory.usage_in_bytes", note)
        if limit is None or used is None or limit.value >= NO_LIMIT_BYTES:
            continue
        room = max(limit.value - used.value + _inactive_file_bytes(folder / "memory.stat"), 0)
        if tightest is None or room < tightest.room_bytes:
            tightest = MemoryRoom(group=str(folder), limit_bytes=limit.value, room_bytes=room)
    return tightest


def quota_cores(root: Path = Path("/"), note: Callable[[str], None] = lambda _: None) -> float | None:
    """The tightest CPU quota, in cores, of this process's cgroup and those above it; None when there is none.

    Reads v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`, `cpu.cfs_period_us`).
    """
    quotas = []
    for folder in _folders("cpu", root):
        quota = _quota_v2(folder / "cpu.max", note) or _quota_v1(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """This process's cgroup and all above it: v2 (also where it is mounted beside v1), and v1's for `controller`."""
    mounted = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        parts = Path(path.lstrip("/")).parts
        if not controllers:
            bases = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            bases = list(dict.fromkeys([mounted / controllers, mounted / controller]))
        else:
            continue
        yield from (base.joinpath(*parts[:n]) for base in bases for n in range(len(parts) + 1))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that was found, which may be 0; its absence is None."""

    value: int


def _number(file: Path, note: Callable[[str], None]) -> _Number | None:
    text = _text(file)
    if text is None or text.strip() == "max":
        return None
    try:
        return _Number(int(text))
    except ValueError:
        note(f"{file} holds {text.strip()[:40]!r}, which is no number of bytes; it is left out.")
        return None


def _quota_v2(file: Path, note: Callable[[str], None]) -> float | None:
    text = _text(file)
    if text is None or text.startswith("max"):
        return None
    try:
        quota, period = text.split()
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        note(f"{file} holds {text.strip()[:40]!r}, which is no quota; it is left out.")
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int(_text(folder / "cpu.cfs_quota_us") or "")
        period = int(_text(folder / "cpu.cfs_period_us") or "")
        return None if quota <= 0 else quota / period
    except (ValueError, ZeroDivisionError):
        return None


def _inactive_file_bytes(stat: Path) -> int:
    """File cache the kernel would give back, of v2's `inactive_file` or v1's `total_inactive_file`."""
    try:
        fields = dict(line.split(None, 1) for line in (_text(stat) or "").splitlines() if " " in line)
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    except ValueError:
        return 0
