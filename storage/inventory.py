"""What lies in a checkpoint folder, complete or not: the files, their headers, the index, and everything that is wrong.

`inspect` never raises for a bad or unfinished checkpoint; it is what the audit reads, and what `Checkpoint.open`
refuses by. No payload is read. Shards are known by name, and by their first bytes: header prefixes under any name are
understood.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.errors import (
    CheckpointError,
    DriveError,
    DuplicateShard,
    DuplicateTensor,
    ForeignTail,
    MissingFolder,
    MissingShard,
    MountError,
    NoIndex,
    NoShards,
    ShardNotInIndex,
    StorageError,
    TensorNotInIndex,
    TensorNotInShard,
    TotalBytesDiffer,
    TruncatedShard,
    joined,
    shown,
)
from storage.headers import HeaderScan, ShardHeader, TensorEntry, is_plausible_header, scan_header
from storage.index import ShardIndex, read_index

ShardStatus = Literal["complete", "cut", "tail", "refused", "unreadable", "missing"]
"""As it should be; ends early; goes on after its data; a header to refuse; the system cannot read it; not there."""

SHARD_SUFFIX = ".safetensors"
_UNFINISHED_SUFFIXES = (".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp")
_NUMBERED = re.compile(r"(.*-)(\d{1,5})(-of-)(\d{1,5})(\.safetensors)")
_AUDIT = "Run `artesian audit` for the whole list."


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, in a form a program can read."""

    error: StorageError
    """What would be raised for it."""
    blocks: bool
    """Whether the checkpoint cannot be run because of it."""

    @property
    def kind(self) -> str:
        """The error class in lower case with hyphens: "truncated-shard"."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self.error).__name__).lower()

    @property
    def message(self) -> str:
        """The sentence for a person."""
        return str(self.error)

    def as_json(self) -> dict[str, object]:
        """Kind, message, hint, and where they apply: shard, tensor, the two values that disagree."""
        made: dict[str, object] = {
            "kind": self.kind,
            "message": self.message,
            "hint": self.error.hint,
            "blocks": self.blocks,
        }
        if isinstance(self.error, CheckpointError):
            made |= {name: getattr(self.error, name) for name in ("shard", "tensor", "found", "expected")}
        if isinstance(self.error, DriveError):
            made |= {"file": str(self.error.file), "offset": self.error.offset, "errno": self.error.errno}
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One shard file, or the place where one should be."""

    shard: str
    """File name relative to the folder."""
    path: Path
    status: ShardStatus
    present_bytes: int
    """Size of the file; 0 when it is missing."""
    expected_bytes: int | None
    """Its size when complete; None as long as no header says so."""
    header: ShardHeader | None
    """Present too when the file is cut after its header, or the header has faults that leave entries readable."""
    faults: tuple[StorageError, ...]
    listed: bool
    """Whether the index names it (directly, or by the tensors it holds); False without an index."""
    stands_for: str
    """The shard name of the index whose tensors this file holds: `shard` itself, or another for a renamed file."""
    duplicate_of: str | None
    """An earlier shard whose header is byte-identical; such a file is counted once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A checkpoint folder as it is."""

    folder: Path
    index: ShardIndex | None
    index_error: StorageError | None
    """Why there is no `index`: NoIndex when the file is absent, another when it is unusable."""
    shards: Mapping[str, ShardRecord]
    """By file name, in order; missing ones included."""
    tensors: Mapping[str, TensorEntry]
    """Every tensor of a readable header, cut files included; duplicates from the first file that holds them."""
    unfinished: tuple[Path, ...]
    """Files a download tool has not finished, or left behind."""
    problems: tuple[Problem, ...]

    @property
    def complete(self) -> bool | None:
        """Whether every shard is there in full; None when no index says which there should be."""
        if any(record.status != "complete" for record in self.shards.values()) or not self.shards:
            return False
        return True if self.index is not None else None

    @property
    def present_bytes(self) -> int:
        """Bytes of all shard files, duplicates counted once."""
        return sum(r.present_bytes for r in self.shards.values() if r.duplicate_of is None)

    @property
    def expected_bytes(self) -> int | None:
        """Bytes of all shard files when complete; None while a missing header and no index total leave it open.

        With shards missing it is the index's total plus the headers that are known, so up to 0.1 % low.
        """
        records = [r for r in self.shards.values() if r.duplicate_of is None]
        known = [r.expected_bytes for r in records if r.expected_bytes is not None]
        if records and len(known) == len(records):
            return sum(known)
        if self.index is None or self.index.total_bytes is None:
            return None
        return self.index.total_bytes + sum(r.header.header_bytes + 8 for r in records if r.header is not None)

    def blocking(self) -> tuple[Problem, ...]:
        """What keeps the checkpoint from being run."""
        return tuple(problem for problem in self.problems if problem.blocks)


def inspect(folder: Path) -> Inventory:
    """Look at everything in `folder` but payload. Never raises for what the folder holds.

    Time: one small read per shard; a full release (48 shards, 96,085 tensors) takes about a second.
    """
    problems: list[Problem] = []
    if not folder.is_dir():
        error = MissingFolder(
            f"{shown(str(folder))} is {'not a folder' if folder.exists() else 'not there'}",
            shard="",
            hint="Give the folder that holds the model's .safetensors files.",
        )
        return Inventory(
            folder=folder,
            index=None,
            index_error=error,
            shards={},
            tensors={},
            unfinished=(),
            problems=(Problem(error=error, blocks=True),),
        )
    index, index_error = _try_index(folder)
    if index_error is not None:
        problems.append(Problem(error=index_error, blocks=not isinstance(index_error, NoIndex)))
    files, listing_error = _shard_files(folder)
    if listing_error is not None:
        problems.append(Problem(error=listing_error, blocks=True))
    scans = {name: scan_header(folder / name, name) for name in sorted({*files, *_named(folder, index)})}
    records = _records(folder, scans, index)
    problems += _shard_problems(folder, records)
    problems += _duplicates(records)
    if index is not None:
        problems += _disagreements(index, records)
    tensors: dict[str, TensorEntry] = {}
    for record in records.values():
        if record.header is not None:
            for name, entry in record.header.tensors.items():
                tensors.setdefault(name, entry)
    return Inventory(
        folder=folder,
        index=index,
        index_error=index_error,
        shards=records,
        tensors=tensors,
        unfinished=_unfinished(folder),
        problems=tuple(problems),
    )


def _try_index(folder: Path) -> tuple[ShardIndex | None, StorageError | None]:
    try:
        return read_index(folder), None
    except StorageError as error:
        return None, error


def _shard_files(folder: Path) -> tuple[list[str], StorageError | None]:
    """Names of the files that are shards by their suffix, or by their first bytes."""
    names: list[str] = []
    try:
        for path in folder.iterdir():
            if path.name.endswith(SHARD_SUFFIX) or (path.is_file() and _looks_like_shard(path)):
                names.append(path.name)
    except OSError as error:
        return names, DriveError.of(error, folder, None)
    return names, None


def _looks_like_shard(path: Path) -> bool:
    if path.suffix in _UNFINISHED_SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return is_plausible_header(file.read(9))
    except OSError:
        return False


def _named(folder: Path, index: ShardIndex | None) -> list[str]:
    """Shard names that should be there: the index's, or else the holes in a numbered series (00002 of 00016)."""
    if index is not None:
        return list(index.shards)
    names: list[str] = []
    series = {m.group(1, 3, 4, 5) for p in folder.glob("*" + SHARD_SUFFIX) if (m := _NUMBERED.fullmatch(p.name))}
    if len(series) == 1:  # two series are two checkpoints; which is meant is not for us to say
        (before, of, last, suffix) = series.pop()
        names = [f"{before}{n:0{len(last)}}{of}{last}{suffix}" for n in range(1, int(last) + 1)]
    return names


def _records(folder: Path, scans: Mapping[str, HeaderScan], index: ShardIndex | None) -> dict[str, ShardRecord]:
    records: dict[str, ShardRecord] = {}
    first_with: dict[bytes, str] = {}
    for name, scan in scans.items():
        header = scan.header
        stands_for = _stands_for(name, header, index)
        status = _status(scan)
        if status == "missing" and any(r.stands_for == name for r in records.values()):
            continue
        duplicate_of = first_with.setdefault(header.digest, name) if header is not None else name
        records[name] = ShardRecord(
            shard=name,
            path=folder / name,
            status=status,
            present_bytes=header.file_bytes if header is not None else _size(folder / name),
            expected_bytes=header.expected_bytes if header is not None else None,
            header=header,
            faults=scan.faults,
            listed=index is not None and stands_for in index.shards,
            stands_for=stands_for,
            duplicate_of=duplicate_of if duplicate_of != name else None,
        )
    standing_in = {r.stands_for for r in records.values() if r.status != "missing"}
    return {name: r for name, r in records.items() if r.status != "missing" or name not in standing_in}


def _stands_for(name: str, header: ShardHeader | None, index: ShardIndex | None) -> str:
    if index is None or header is None or name in index.shards:
        return name
    return next((index.weight_map[tensor] for tensor in header.tensors if tensor in index.weight_map), name)


def _status(scan: HeaderScan) -> ShardStatus:
    if not scan.faults:
        return "complete"
    match scan.faults[0]:
        case MissingShard():
            return "missing"
        case DriveError():
            return "unreadable"
        case TruncatedShard():
            return "cut"
        case ForeignTail():
            return "tail"
    return "refused"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _shard_problems(folder: Path, records: Mapping[str, ShardRecord]) -> list[Problem]:
    if not any(record.status != "missing" for record in records.values()):
        names = joined([record.shard for record in records.values()])
        what = f"none of its shards ({names})" if names else "no .safetensors file"
        error = NoShards(
            f"{shown(str(folder))} holds {what}",
            found=0,
            expected=len(records) or None,
            hint="The download brought nothing, or this is not the checkpoint's folder.",
        )
        links = [Problem(error=fault, blocks=True) for record in records.values() for fault in record.faults]
        return [Problem(error=error, blocks=True), *links]
    unreadable = [r.faults[0] for r in records.values() if r.status == "unreadable"]
    present = [r for r in records.values() if r.status != "missing"]
    first = unreadable[0] if unreadable else None
    if isinstance(first, DriveError) and len(unreadable) == len(present) > 1:
        return [Problem(error=MountError.over(folder, first, len(present)), blocks=True)]
    return [Problem(error=fault, blocks=True) for record in records.values() for fault in record.faults]


def _duplicates(records: Mapping[str, ShardRecord]) -> list[Problem]:
    problems: list[Problem] = []
    for record in records.values():
        if record.duplicate_of is not None:
            error: CheckpointError = DuplicateShard(
                f"{shown(record.shard)} is a duplicate of {shown(record.duplicate_of)}: "
                "their headers are byte-identical",
                shard=record.shard,
                found=record.shard,
                expected=record.duplicate_of,
                hint="Move one of the two out of the folder; a copy on another drive belongs in a mirror folder.",
            )
            problems.append(Problem(error=error, blocks=True))
    holder: dict[str, str] = {}
    clashes: dict[tuple[str, str], list[str]] = {}
    for record in records.values():
        if record.header is None or record.duplicate_of is not None:
            continue
        for tensor in record.header.tensors:
            first = holder.setdefault(tensor, record.shard)
            if first != record.shard:
                clashes.setdefault((first, record.shard), []).append(tensor)
    for (first, second), tensors in clashes.items():
        error = DuplicateTensor(
            f"{shown(first)} and {shown(second)} both hold {joined(tensors, 3)}, and their headers differ",
            shard=second,
            tensor=tensors[0],
            found=second,
            expected=first,
            hint="One of the two is left over from another download or conversion: move it out of the folder.",
        )
        problems.append(Problem(error=error, blocks=True))
    return problems


def _disagreements(index: ShardIndex, records: Mapping[str, ShardRecord]) -> list[Problem]:
    problems: list[Problem] = []
    for record in records.values():
        # A header with entries left out is already refused; what it then seems to lack is not the index's fault.
        if record.header is None or record.duplicate_of is not None or record.status == "refused":
            continue
        held = record.header.tensors.keys()
        if not record.listed:
            error: CheckpointError = ShardNotInIndex(
                f"{shown(record.shard)} is a shard of {len(held):,} tensors, and the index does not name it",
                shard=record.shard,
                found=len(held),
                expected=0,
                hint="It is ignored. If it belongs to the model, the index is of another download: fetch it again.",
            )
            problems.append(Problem(error=error, blocks=False))
            continue
        assigned = index.shards[record.stands_for]
        absent, extra = sorted(assigned - held), sorted(held - assigned)
        if absent:
            error = TensorNotInShard(
                f"the index assigns {joined(absent, 3)} to {shown(record.shard)}, which does not hold "
                f"{'it' if len(absent) == 1 else 'them'} ({len(assigned):,} assigned, {len(held):,} held)",
                shard=record.shard,
                tensor=absent[0],
                found=len(held),
                expected=len(assigned),
                hint="Index and shard are of different downloads: fetch both again.",
            )
            problems.append(Problem(error=error, blocks=True))
        if extra:
            error = TensorNotInIndex(
                f"{shown(record.shard)} holds {joined(extra, 3)}, which the index does not assign to it "
                f"({len(assigned):,} assigned, {len(held):,} held)",
                shard=record.shard,
                tensor=extra[0],
                found=len(held),
                expected=len(assigned),
                hint="Index and shard are of different downloads: fetch both again.",
            )
            problems.append(Problem(error=error, blocks=True))
    headers = [r.header for r in records.values() if r.listed and r.duplicate_of is None]
    total = sum(header.data_bytes for header in headers if header is not None)
    if None not in headers and headers and index.total_bytes not in (None, total):
        error = TotalBytesDiffer(
            f"the index states {index.total_bytes:,} bytes of tensors, the headers {total:,}",
            found=total,
            expected=index.total_bytes,
            hint="Index and shards may be of different downloads. " + _AUDIT,
        )
        problems.append(Problem(error=error, blocks=False))
    return problems


def _unfinished(folder: Path) -> tuple[Path, ...]:
    """What download tools leave while they work, beside the shards and where the hub's tool keeps them."""
    places = [folder, folder / ".cache" / "huggingface" / "download"]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    found: list[Path] = []
    for place in places:
        try:
            found += [path for path in place.iterdir() if path.suffix in _UNFINISHED_SUFFIXES and path.is_file()]
        except OSError:
            continue  # the place does not exist, which is the ordinary case
    return tuple(sorted(found))
