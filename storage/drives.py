"""Which drive a folder is on: the file system, the disks behind it, their kind and block sizes.

The one thing a reader would get wrong: two folders, partitions, volumes or bind mounts of one disk are one drive. So
what identifies a drive is the set of physical disks under it, found by walking sysfs down from the mounted device
(partition to disk, device mapper and md to their members, a loop device to the disk of its file).

Sources: proc(5) for mountinfo; Documentation/ABI/{stable,testing}/sysfs-block and sysfs-fs-btrfs of the Linux kernel.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from storage.errors import DriveError

DriveKind = Literal["nvme", "ssd", "hdd", "usb", "virtual", "memory", "network", "overlay", "mixed", "unknown"]

_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "glusterfs", "lustre", "beegfs", "ocfs2", "gfs2"}
_NETWORK |= {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.curlftpfs"}
_HOST_SHARE = {"9p", "virtiofs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse", "fuse.portal"}
_DEEPEST = 12
"""Levels of devices on devices that are followed; real stacks have four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveFacts:
    """The drive under one path."""

    disks: frozenset[str]
    """What is physically read: disk names as the kernel has them ("nvme0n1"), or one made-up name such as "memory"."""
    kind: DriveKind
    fs_type: str
    """As the mount table spells it, or "" when that is not known."""
    mount_point: str
    source: str
    """What is mounted: "/dev/nvme0n1p2", "server:/export"."""
    model: str
    """The disk's own name, or ""."""
    logical_block_bytes: int | None
    """What direct reads must be a multiple of, as the device says; None when it says nothing."""
    physical_block_bytes: int | None

    @property
    def name(self) -> str:
        """The drive's name for people and for queues: its disks."""
        return "+".join(sorted(self.disks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the mount table."""

    device: str
    point: str
    fs_type: str
    source: str


def drive_of(path: Path) -> DriveFacts:
    """The drive that holds `path`, links followed. Raises: DriveError when the path cannot be looked at."""
    try:
        real = path.resolve(strict=True)
        device = real.stat().st_dev
    except OSError as error:
        raise DriveError.of(error, path, None) from error
    return describe(real, f"{os.major(device)}:{os.minor(device)}")


def describe(path: Path, device: str, *, root: Path = Path("/")) -> DriveFacts:
    """The drive of an absolute `path` without links, whose files are on `device` ("259:2"), as the trees below `root`
    say.

    Never raises: what the system does not tell stays unknown, and the device number alone tells drives apart.
    """
    mount = _mount_of(path, root)
    fs_type = mount.fs_type if mount is not None else ""
    source = mount.source if mount is not None else ""
    disks: dict[str, DriveKind] = {}
    top = _block_folder(device, root) or (mount and _block_folder(mount.device, root)) or None
    if top is not None:
        disks = _disks(top, root)
    elif fs_type in _MEMORY:
        disks = {"memory": "memory"}
    elif fs_type in ("btrfs", "bcachefs"):
        for member in _members(fs_type, source, root):
            top = top or member
            disks |= _disks(member, root)
    elif fs_type in _NETWORK:
        disks = {f"{fs_type} {source}": "network"}
    elif fs_type in _HOST_SHARE:
        disks = {f"{fs_type} {source}": "virtual"}
    elif fs_type == "zfs":
        disks = {f"zfs {source.split('/')[0]}": "unknown"}
    elif fs_type == "overlay":
        disks = {f"overlay {device}": "overlay"}
    if not disks:
        disks = {f"device {device}": "unknown"}
    kinds = set(disks.values())
    return DriveFacts(
        disks=frozenset(disks),
        kind=kinds.pop() if len(kinds) == 1 else "mixed",
        fs_type=fs_type,
        mount_point=mount.point if mount is not None else "",
        source=source,
        model=_text(_whole(top) / "device" / "model") if top is not None and len(disks) == 1 else "",
        logical_block_bytes=_number(_whole(top) / "queue" / "logical_block_size") if top is not None else None,
        physical_block_bytes=_number(_whole(top) / "queue" / "physical_block_size") if top is not None else None,
    )


def same_drive(one: DriveFacts, other: DriveFacts) -> bool:
    """Whether reading both at once is reading one disk twice."""
    return not one.disks.isdisjoint(other.disks)


def measure_rate(
    read: Callable[[int], int], *, limit_s: float = 1.0, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Bytes per second of `read`, called with 0, 1, 2, ... and returning the bytes it read, for at most about
    `limit_s`.

    What is measured is what `read` does: give it the engine's own pattern, on parts that are not in the page cache. A
    `read` that returns 0 has nothing left and ends the measurement.
    """
    start = clock()
    n_bytes = i = 0
    while True:
        got = read(i)
        n_bytes, i = n_bytes + got, i + 1
        elapsed_s = clock() - start
        if got == 0 or elapsed_s >= limit_s:
            return n_bytes / elapsed_s if elapsed_s > 0 else 0.0


def mounts(root: Path) -> Iterator[Mount]:
    """What is mounted, in the order of mounting; nothing where the system has no such table."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) >= 5 and len(kinds) >= 2:
            yield Mount(device=fields[2], point=unescaped(fields[4]), fs_type=kinds[0], source=unescaped(kinds[1]))


def _mount_of(path: Path, root: Path) -> Mount | None:
    """The mount that holds `path`: the deepest mount point above it, the last mounted of equals."""
    above = {str(folder) for folder in (path, *path.parents)}
    best: Mount | None = None
    for mount in mounts(root):
        if mount.point in above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def unescaped(field: str) -> str:
    """A mountinfo field: blanks and backslashes come as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _block_folder(device: str, root: Path) -> Path | None:
    link = root / "sys/dev/block" / device
    return link.resolve() if link.exists() else None


def _members(fs_type: str, source: str, root: Path) -> list[Path]:
    """The block devices of a file system that spans several: all that are listed beside the mounted one."""
    node = root / source.lstrip("/")
    name = node.resolve().name if node.exists() else PurePosixPath(source).name  # /dev/mapper/x is a link to dm-0
    for listed in sorted((root / "sys/fs" / fs_type).glob("*/devices")):
        devices = {path.name: path for path in _listed(listed)}
        if name in devices:
            return [devices[key].resolve() for key in sorted(devices)]
    direct = root / "sys/class/block" / name
    return [direct.resolve()] if direct.exists() else []


def _disks(block: Path, root: Path, depth: int = 0) -> dict[str, DriveKind]:
    """The disks under a block device's sysfs folder."""
    disk = _whole(block)
    if depth < _DEEPEST:
        below: dict[str, DriveKind] = {}
        for member in _listed(disk / "slaves"):
            below |= _disks(member.resolve(), root, depth + 1)
        backing = _text(disk / "loop" / "backing_file")
        mount = _mount_of(Path(backing), root) if backing else None
        held_by = _block_folder(mount.device, root) if mount is not None else None
        if held_by is not None:
            below |= _disks(held_by, root, depth + 1)
        if below:
            return below
    return {disk.name: _kind(disk)}


def _kind(disk: Path) -> DriveKind:
    name = disk.name
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith(("zram", "ram", "pmem")):
        return "memory"
    if name.startswith(("nbd", "rbd", "drbd")):
        return "network"
    if any(re.fullmatch(r"usb\d*", part) for part in disk.parts):
        return "usb"
    if name.startswith(("vd", "xvd")):  # what a virtual disk says of rotation is its host's default
        return "virtual"
    match _number(disk / "queue" / "rotational"):
        case 0:
            return "ssd"
        case 1:
            return "hdd"
    return "unknown"


def _whole(block: Path) -> Path:
    """The disk of a partition, or the device itself."""
    return block.parent if (block / "partition").exists() else block


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
