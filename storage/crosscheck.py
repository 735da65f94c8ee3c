"""What is wrong between the files of a checkpoint: shards against each other, and against the index.

One shard's own faults come with its scan; here they are gathered, and told apart when they have one cause.
"""

from collections.abc import Mapping, Set
from pathlib import Path

from storage.errors import (
    CheckpointError,
    DriveError,
    DuplicateShard,
    DuplicateTensor,
    MountError,
    NoShards,
    RenamedShard,
    ShardNotInIndex,
    TensorNotInIndex,
    TensorNotInShard,
    TotalBytesDiffer,
    joined,
    shown,
)
from storage.index import INDEX_NAME, ShardIndex
from storage.inventory import Problem, ShardRecord

_BOTH_AGAIN = "Index and shard are of different downloads: fetch both again."


def shard_problems(folder: Path, records: Mapping[str, ShardRecord]) -> list[Problem]:
    """The faults of each shard; one error instead of many when nothing is there or the whole mount fails."""
    faults = [Problem(error=fault, blocks=True) for record in records.values() for fault in record.faults]
    present = [record for record in records.values() if record.status != "missing"]
    if not present:
        what = f"none of its shards ({joined(list(records))})" if records else "no shard"
        error = NoShards(
            f"{shown(str(folder))} holds {what}",
            found=0,
            expected=len(records) or None,
            hint="The download brought nothing, or this is not the model's folder.",
        )
        return [Problem(error=error, blocks=True), *faults]
    refusals = [record.faults[0] for record in present if record.status == "unreadable"]
    first = refusals[0] if refusals else None
    if isinstance(first, DriveError) and first.of_the_drive and len(refusals) == len(present) > 1:
        return [Problem(error=MountError.over(folder, first, len(present)), blocks=True)]
    return faults


def duplicate_problems(records: Mapping[str, ShardRecord]) -> list[Problem]:
    """Shards with byte-identical headers, and tensors that two different shards hold."""
    problems: list[Problem] = []
    holder: dict[str, str] = {}
    clashes: dict[tuple[str, str], list[str]] = {}
    for record in records.values():
        if record.duplicate_of is not None:
            problems.append(_blocking(_duplicate(record, record.duplicate_of)))
            continue
        for tensor in record.header.tensors if record.header is not None else ():
            first = holder.setdefault(tensor, record.shard)
            if first != record.shard:
                clashes.setdefault((first, record.shard), []).append(tensor)
    for (first, second), tensors in clashes.items():
        clash = DuplicateTensor(
            f"{shown(first)} and {shown(second)} both hold {joined(tensors, 3)}, and their headers differ",
            shard=second,
            tensor=tensors[0],
            found=second,
            expected=first,
            hint="One of the two is left over from another download or conversion: move it out of the folder.",
        )
        problems.append(_blocking(clash))
    return problems


def index_problems(index: ShardIndex, records: Mapping[str, ShardRecord]) -> list[Problem]:
    """Where the index and the headers disagree."""
    problems: list[Problem] = []
    for record in records.values():
        # A header with entries left out is refused already; what it then seems to lack is not the index's fault.
        if record.header is None or record.duplicate_of is not None or record.status == "refused":
            continue
        held = record.header.tensors.keys()
        if not record.listed:
            stray = ShardNotInIndex(
                f"{shown(record.shard)} is a shard of {len(held):,} tensors, and the index does not name it",
                shard=record.shard,
                found=len(held),
                expected=0,
                hint="It is ignored. If it belongs to the model, the index is of another download: fetch it again.",
            )
            problems.append(Problem(error=stray, blocks=False))
            continue
        if record.stands_for != record.shard:
            problems.append(_blocking(_renamed(record)))
        problems += [_blocking(error) for error in _assignment(record, index.shards[record.stands_for], held)]
    headers = [record.header for record in records.values() if record.listed and record.duplicate_of is None]
    total = sum(header.data_bytes for header in headers if header is not None)
    if None not in headers and index.total_bytes not in (None, total):
        error = TotalBytesDiffer(
            f"the index states {index.total_bytes:,} bytes of tensors, the headers {total:,}",
            shard=INDEX_NAME,
            found=total,
            expected=index.total_bytes,
            hint="Index and shards may be of different downloads. Run `artesian audit`.",
        )
        problems.append(Problem(error=error, blocks=False))
    return problems


def _blocking(error: CheckpointError) -> Problem:
    return Problem(error=error, blocks=True)


def _duplicate(record: ShardRecord, first: str) -> DuplicateShard:
    return DuplicateShard(
        f"{shown(record.shard)} is a duplicate of {shown(first)}: their headers are byte-identical",
        shard=record.shard,
        found=record.shard,
        expected=first,
        hint="Move one of the two out of the folder; a copy on another drive belongs in a mirror folder.",
    )


def _renamed(record: ShardRecord) -> RenamedShard:
    return RenamedShard(
        f"{shown(record.stands_for)} is missing, and {shown(record.shard)} holds its tensors",
        shard=record.stands_for,
        found=record.shard,
        expected=record.stands_for,
        hint=f"Rename the file to {shown(record.stands_for)}.",
    )


def _assignment(record: ShardRecord, assigned: frozenset[str], held: Set[str]) -> list[CheckpointError]:
    """The tensors of a shard that the index wants and the header lacks, and the other way round."""
    counts = f"({len(assigned):,} assigned, {len(held):,} held)"
    errors: list[CheckpointError] = []
    for kind, names, verb in (
        (TensorNotInShard, sorted(assigned - held), "does not hold"),
        (TensorNotInIndex, sorted(held - assigned), "holds, but the index does not assign to it,"),
    ):
        if names:
            errors.append(
                kind(
                    f"{shown(record.shard)} {verb} {joined(names, 3)} {counts}",
                    shard=record.shard,
                    tensor=names[0],
                    found=len(held),
                    expected=len(assigned),
                    hint=_BOTH_AGAIN,
                )
            )
    return errors
