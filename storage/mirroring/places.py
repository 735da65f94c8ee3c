"""Where copies could go: every mounted file system that could serve a model, and why others could not.

The one thing a reader would get wrong: a mount point whose drive is not mounted is an ordinary empty folder of the
system drive, and writing into it fills that one. So a place is named by what is mounted, never by what a folder is
called, and `unmounted_above` tells a path that should be on another drive and is not.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.drives import DriveFacts, DriveKind, drive_of, mounts, same_drive, unescaped
from storage.errors import StorageError

_USELESS = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "securityfs", "cgroup", "cgroup2", "pstore", "efivarfs", "bpf"),
        *("autofs", "mqueue", "hugetlbfs", "debugfs", "tracefs", "fusectl", "configfs", "ramfs", "binfmt_misc"),
        *("rpc_pipefs", "nfsd", "overlay", "squashfs", "iso9660", "udf", "nsfs", "erofs", "selinuxfs", "swap"),
        *("fuse.portal", "fuse.gvfsd-fuse", "fuse.snapfuse", "fuse.lxcfs"),
    }
)
"""File systems that hold no files of one's own."""
_SYSTEM_FOLDERS = ("/boot", "/proc", "/sys", "/dev", "/run", "/snap", "/etc", "/var/lib/docker", "/nix/store")
_RAM_FOLDER = "/dev/shm"
"""Where every Linux has a tmpfs that all may write to."""
LEAST_BYTES = 1 << 30
"""Smaller file systems could not hold one shard of experts, 7.2 GB in the release; small models' shards are kilobytes,
but nobody needs a second drive for those.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One mounted file system."""

    folder: Path
    """A folder on it that this user may write to; the mount point when there is none."""
    drive: DriveFacts
    free_bytes: int
    total_bytes: int
    shares_with: tuple[str, ...]
    """Disks it has in common with the drives the model is on: copies there give no more speed."""
    obstacle: str
    """Why nothing can be copied there, or ""."""

    @property
    def kind(self) -> DriveKind:
        """Kind of its drive."""
        return self.drive.kind


def find_places(
    model_drives: Sequence[DriveFacts],
    *,
    least_bytes: int = LEAST_BYTES,
    root: Path = Path("/"),
    find_drive: Callable[[Path], DriveFacts] = drive_of,
    usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    home: Path | None = None,
) -> tuple[Place, ...]:
    """Every mounted file system that could hold copies, those that give speed first, larger ones before smaller.

    `model_drives` are those the model is read from. `root` is where /proc and /etc are looked for. A file system
    mounted twice is told once. Never raises for what the system does not tell.
    """
    found: dict[str, Place] = {}
    seen = {mount.point: mount for mount in mounts(root)}  # of several at one point the last hides the others
    for mount in seen.values():
        point = Path(mount.point)
        if mount.fs_type in _USELESS or _is_system(mount.point) or not point.is_dir():
            continue
        if mount.fs_type == "tmpfs" and mount.point != _RAM_FOLDER:
            continue
        try:
            drive = find_drive(point)
            total, _, free = usage(point)
        except (OSError, StorageError):
            continue
        if total < least_bytes:
            continue
        folder = _writable(point, home)
        place = Place(
            folder=folder or point,
            drive=drive,
            free_bytes=free,
            total_bytes=total,
            shares_with=tuple(sorted({disk for one in model_drives if same_drive(drive, one) for disk in drive.disks})),
            obstacle="" if folder is not None else "you may not write there",
        )
        known = found.get(mount.device)
        # A file system bound to several places is told once, where one may write to it, or else by the shorter name.
        if known is None or _rank(place) < _rank(known):
            found[mount.device] = place
    return tuple(sorted(found.values(), key=lambda one: (bool(one.obstacle), bool(one.shares_with), -one.free_bytes)))


def unmounted_above(path: Path, *, root: Path = Path("/")) -> Path | None:
    """The mount point that `path` lies under, listed in /etc/fstab and not mounted; None when there is none.

    What is written below it would go to the system drive and vanish from sight when the drive is mounted.
    """
    mounted = {mount.point for mount in mounts(root)}
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links stay: they may point to the drive that is missing
    listed = [point for point in _fstab(root) if point in (absolute, *absolute.parents)]
    deepest = max(listed, key=lambda point: len(point.parts), default=None)
    return deepest if deepest is not None and str(deepest) not in mounted else None


def _rank(place: Place) -> tuple[bool, int]:
    return (bool(place.obstacle), len(str(place.folder)))


def _is_system(point: str) -> bool:
    inside = point != _RAM_FOLDER and not point.startswith("/run/media/")  # where desktops mount what is plugged in
    return inside and any(point == folder or point.startswith(folder + "/") for folder in _SYSTEM_FOLDERS)


def _writable(point: Path, home: Path | None) -> Path | None:
    """A folder of this file system where the user may make another: the mount point, or else the home folder."""
    if os.access(point, os.W_OK | os.X_OK):
        return point
    own = home if home is not None else Path.home()
    try:
        if own.stat().st_dev == point.stat().st_dev and os.access(own, os.W_OK | os.X_OK):
            return own
    except OSError:
        return None
    return None


def _fstab(root: Path) -> Iterator[Path]:
    try:
        text = (root / "etc/fstab").read_text("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and not line.lstrip().startswith("#") and fields[1].startswith("/") and fields[1] != "/":
            yield Path(unescaped(fields[1]))
