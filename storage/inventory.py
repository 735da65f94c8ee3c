"""What lies in a checkpoint's folders, complete or not: records of the files, their headers, and what is wrong.

The records are filled by `storage.inspection`; the audit reads them, and `Checkpoint.open` refuses by them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.errors import CheckpointError, DriveError, ForeignTail, MissingShard, StorageError, TruncatedShard
from storage.headers import LENGTH_BYTES, HeaderScan, ShardHeader, TensorEntry
from storage.index import ShardIndex

ShardStatus = Literal["complete", "cut", "tail", "refused", "unreadable", "missing"]
"""As it should be; ends early; goes on after its data; a header to refuse; the system cannot read it; not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, in a form a program can read."""

    error: StorageError
    """What is raised for it when the checkpoint is opened."""
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
        """Kind, message, hint, and what else applies: shard, tensor, the two values; or file, offset, errno."""
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
    """File name relative to its folder."""
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
    """The index's name for the shard whose tensors this file holds: `shard`, or another when the file is renamed."""
    duplicate_of: str | None
    """An earlier shard whose header is byte-identical; such a file is counted once."""
    other_paths: tuple[Path, ...]
    """Files of the same name in the other folders of a split checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A checkpoint as its folders hold it."""

    folder: Path
    splits: tuple[Path, ...]
    """Further folders that hold shards of the same checkpoint."""
    index: ShardIndex | None
    index_error: StorageError | None
    """Why there is no `index`: NoIndex when the file is absent, another when it is unusable."""
    shards: Mapping[str, ShardRecord]
    """By file name: those of the index in its order, then the others; missing ones included."""
    tensors: Mapping[str, TensorEntry]
    """Every tensor of a readable header, cut files included; of a name held twice, the first."""
    unfinished: tuple[Path, ...]
    """Files a download tool has not finished, or left behind."""
    problems: tuple[Problem, ...]

    @property
    def complete(self) -> bool | None:
        """Whether every shard is there in full; None when no index says which there should be."""
        if not self.shards or any(record.status != "complete" for record in self.shards.values()):
            return False
        return None if self.index is None else True

    @property
    def present_bytes(self) -> int:
        """Bytes of all shard files, duplicates counted once."""
        return sum(record.present_bytes for record in self._counted())

    @property
    def expected_bytes(self) -> int | None:
        """Bytes of all shard files when complete; None while a missing header and no index total leave it open.

        With headers missing it is the index's total plus the headers that are known: low by the unknown headers, which
        are under 0.1 % of the release.
        """
        records = self._counted()
        known = [record.expected_bytes for record in records if record.expected_bytes is not None]
        if records and len(known) == len(records):
            return sum(known)
        if self.index is None or self.index.total_bytes is None:
            return None
        headers = [record.header for record in records if record.header is not None]
        return self.index.total_bytes + sum(LENGTH_BYTES + header.header_bytes for header in headers)

    def blocking(self) -> tuple[Problem, ...]:
        """What keeps the checkpoint from being run."""
        return tuple(problem for problem in self.problems if problem.blocks)

    def _counted(self) -> list[ShardRecord]:
        return [record for record in self.shards.values() if record.duplicate_of is None]


def status_of(scan: HeaderScan) -> ShardStatus:
    """The status that a scan's most severe fault gives its file."""
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
