"""Find the copies of a checkpoint's shards in its own folders and in mirrors, and refuse what only looks like one.

A file is a copy only when its size and its header bytes are those of the shard, since offsets of one are then used on
the other. Equal headers do not prove equal payload: `storage.mirrorcheck` samples that. The folder a file is named in
says nothing of where it lies (hub caches are links), so its drive is that of the file itself.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from storage.drives import DriveFacts, drive_of, same_drive
from storage.errors import CopyDiffers, MissingShard, SameFile, StorageError, shown
from storage.headers import LENGTH_BYTES, ShardHeader
from storage.inspection import unusable_folder
from storage.inventory import Inventory
from storage.reader import open_shard
from storage.syscalls import SYSTEM, Syscalls

Role = Literal["primary", "split", "mirror"]
RefusedReason = Literal["size", "header", "content", "same file", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One file that holds a shard whole."""

    shard: str
    path: Path
    folder: Path
    role: Role
    """Whether that is the checkpoint's folder, a further folder of a split one, or a mirror."""
    drive: str
    """Name of the drive it is on; copies on one physical disk have the same."""
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCopy:
    """A file that has a shard's name and is no copy of it."""

    shard: str
    path: Path
    reason: RefusedReason
    error: StorageError
    """The same for a person, with the values that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReport:
    """What one folder contributes."""

    folder: Path
    role: Role
    accepted: tuple[str, ...]
    """Shards it holds a copy of."""
    accepted_bytes: int
    checkpoint_bytes: int
    """Bytes of all shards, to compare with."""
    refused: tuple[RefusedCopy, ...]
    error: StorageError | None
    """Why the folder as a whole is of no use: not there, or it cannot be read."""
    same_drive: bool
    """Whether all it accepted lies on drives that have those shards already: twice the space, no more speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCopies:
    """Every copy there is, and where the drives' names come from."""

    copies: Mapping[str, tuple[Copy, ...]]
    """By shard, the checkpoint's own first, then in the order the folders were given."""
    drives: Mapping[str, DriveFacts]
    """By drive name; `disks` are all disks of the drive's copies."""
    reports: tuple[FolderReport, ...]
    """One for each folder: the checkpoint's, the splits, the mirrors, in the order given."""


def find_copies(
    inventory: Inventory,
    mirrors: Sequence[Path] = (),
    *,
    find_drive: Callable[[Path], DriveFacts] = drive_of,
    system: Syscalls = SYSTEM,
) -> FoundCopies:
    """Look for every whole shard of `inventory` in its folders and in `mirrors`. Never raises for what lies there."""
    search = _Search(inventory, find_drive, system)
    for folder in (inventory.folder, *inventory.splits):
        role: Role = "primary" if folder == inventory.folder else "split"
        for shard, header in search.headers.items():
            record = inventory.shards[shard]
            if folder / shard in (record.path, *record.other_paths):
                search.consider(folder, role, shard, header)
    for folder in mirrors:
        for shard, header in search.headers.items():
            search.consider(folder, "mirror", shard, header)
    names = _drive_names(search.facts.values())
    copies = {
        shard: tuple(replace(copy, drive=names[search.facts[_home(copy.path)]]) for copy in some)
        for shard, some in search.found.items()
    }
    drives: dict[str, DriveFacts] = {}
    for facts in search.facts.values():
        known = drives.get(names[facts], facts)
        drives[names[facts]] = replace(known, disks=known.disks | facts.disks)
    roles: list[tuple[Path, Role]] = [(inventory.folder, "primary")]
    roles += [(folder, "split") for folder in inventory.splits]
    roles += [(folder, "mirror") for folder in mirrors]
    reports = tuple(_report(folder, role, copies, search) for folder, role in roles)
    return FoundCopies(copies=copies, drives=drives, reports=reports)


class _Search:
    """What was found so far. A shard's first file is what the others are compared with."""

    def __init__(self, inventory: Inventory, find_drive: Callable[[Path], DriveFacts], system: Syscalls) -> None:
        self.headers = {
            record.shard: record.header
            for record in inventory.shards.values()
            if record.header is not None and record.status == "complete" and record.duplicate_of is None
        }
        self.found: dict[str, list[Copy]] = {}
        self.refused: dict[Path, list[RefusedCopy]] = {}
        self.facts: dict[Path, DriveFacts] = {}
        self._inventory = inventory
        self._find_drive = find_drive
        self._system = system

    def consider(self, folder: Path, role: Role, shard: str, header: ShardHeader) -> None:
        """Take the shard's file in `folder` if it is a copy, note why if it is not, and pass over a shard not there."""
        path = folder / shard
        record = self._inventory.shards[shard]
        try:
            if path != record.path:
                _compare(path, header, record.path, self._system)
            home = _home(path)
            if home not in self.facts:
                self.facts[home] = self._find_drive(home)
        except StorageError as error:
            if type(error) is not MissingShard:  # a broken link is worth a word, an absent file is not
                self.refused.setdefault(folder, []).append(_refusal(shard, path, error))
            return
        copy = Copy(shard=shard, path=path, folder=folder, role=role, drive="", file_bytes=header.file_bytes)
        if path == record.path:
            self.found.setdefault(shard, []).insert(0, copy)
        else:
            self.found.setdefault(shard, []).append(copy)


def _home(path: Path) -> Path:
    """The folder the file itself lies in, links followed."""
    return path.resolve().parent


def _compare(path: Path, header: ShardHeader, original: Path, system: Syscalls) -> None:
    """Check that `path` is a copy of the shard at `original` as far as its header tells.

    Raises: SameFile, CopyDiffers; MissingShard, BrokenLink, DriveError and what reading raises.
    """
    shard = header.shard
    file = open_shard(path, shard, system)
    try:
        if original.exists() and path.samefile(original):
            raise SameFile(
                f"{shown(str(path))} is {shown(str(original))} itself, not a copy of it",
                shard=shard,
                hint="A link or a second mount adds no drive. Copy the file to another drive.",
            )
        if file.file_bytes != header.file_bytes:
            raise CopyDiffers(
                f"{shown(str(path))} has {file.file_bytes:,} bytes, the shard {header.file_bytes:,}",
                shard=shard,
                found=file.file_bytes,
                expected=header.file_bytes,
                hint="It is of another revision, or its copying was interrupted: copy it again.",
            )
        front = bytearray(LENGTH_BYTES + header.header_bytes)
        file.read_exactly(memoryview(front), 0)
        if hashlib.sha256(front).digest() != header.digest:
            where = _first_difference(front, original, shard, system)
            raise CopyDiffers(
                f"{shown(str(path))} has another header than the shard{where}",
                shard=shard,
                found=hashlib.sha256(front).hexdigest(),
                expected=header.digest.hex(),
                hint="It is of another revision: its offsets are not the shard's. Copy the shard again.",
            )
    finally:
        file.close()


def _first_difference(front: bytearray, original: Path, shard: str, system: Syscalls) -> str:
    """`, first at byte 17`; nothing when the original cannot be read just now."""
    right = bytearray(len(front))
    try:
        file = open_shard(original, shard, system)
        try:
            file.read_exactly(memoryview(right), 0)
        finally:
            file.close()
    except StorageError:
        return ""
    place = next((i for i, (a, b) in enumerate(zip(front, right, strict=True)) if a != b), None)
    return "" if place is None else f", first at byte {place:,}"


def _refusal(shard: str, path: Path, error: StorageError) -> RefusedCopy:
    reason: RefusedReason = "unreadable"
    if isinstance(error, SameFile):
        reason = "same file"
    elif isinstance(error, CopyDiffers):
        reason = "size" if isinstance(error.found, int) else "header"
    return RefusedCopy(shard=shard, path=path, reason=reason, error=error)


def _drive_names(all_facts: Collection[DriveFacts]) -> dict[DriveFacts, str]:
    """The name of each one's drive: facts that share a disk, directly or through others, are one drive."""
    groups: list[set[DriveFacts]] = []
    for facts in all_facts:
        touching = [group for group in groups if any(same_drive(facts, other) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append({facts}.union(*touching))
    return {facts: "+".join(sorted({d for f in group for d in f.disks})) for group in groups for facts in group}


def _report(folder: Path, role: Role, copies: Mapping[str, tuple[Copy, ...]], search: _Search) -> FolderReport:
    mine = [copy for some in copies.values() for copy in some if copy.folder == folder]
    before = {
        copy.shard: {other.drive for other in copies[copy.shard][: copies[copy.shard].index(copy)]} for copy in mine
    }
    return FolderReport(
        folder=folder,
        role=role,
        accepted=tuple(copy.shard for copy in mine),
        accepted_bytes=sum(copy.file_bytes for copy in mine),
        checkpoint_bytes=sum(header.file_bytes for header in search.headers.values()),
        refused=tuple(search.refused.get(folder, ())),
        error=unusable_folder(folder),
        same_drive=bool(mine) and all(copy.drive in before[copy.shard] for copy in mine),
    )
