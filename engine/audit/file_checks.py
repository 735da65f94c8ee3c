"""Checks on the files: index against headers, sizes, names, copies."""

from collections.abc import Iterator

from engine.audit.check import Check
from engine.audit.records import Fault, Finding, Note, Waiting
from engine.audit.tensor_checks import PACKING_FAULTS
from engine.audit.view import View
from storage.errors import (
    CheckpointError,
    DriveError,
    DuplicateShard,
    DuplicateTensor,
    ForeignTail,
    MissingShard,
    NoIndex,
    NoShards,
    RenamedShard,
    StorageError,
    TruncatedShard,
    UnsafeShardName,
)

_SIZE_FAULTS = (TruncatedShard, ForeignTail)


def _fault(error: StorageError) -> Fault:
    """The audit's form of what storage found."""
    if isinstance(error, DriveError):
        found = f"errno {error.errno}"
        return Fault(message=str(error), shard=error.file.name, found=found, expected="readable", hint=error.hint)
    if isinstance(error, CheckpointError):
        return Fault(
            message=str(error),
            tensor=error.tensor,
            shard=error.shard,
            found=error.found,
            expected=error.expected,
            hint=error.hint,
        )
    return Fault(message=str(error), hint=error.hint)


def _index(view: View) -> Iterator[Finding]:
    inventory = view.inventory
    error = inventory.index_error
    if isinstance(error, UnsafeShardName):
        yield Waiting(what="an index with safe shard names")
    elif inventory.index is None and (error is None or isinstance(error, NoIndex)):
        yield Waiting(what="an index")
    elif error is not None:
        yield _fault(error)
    for problem in inventory.problems:  # a header prefix may have any name
        if isinstance(problem.error, RenamedShard) and problem.error.found not in view.prefixes:
            yield _fault(problem.error)
    if inventory.index is None:
        return
    for record in view.records():
        if record.header is None or record.shard in view.open_shards or record.stands_for in view.open_shards:
            continue
        assigned = inventory.index.shards.get(record.stands_for)
        if assigned is None:
            yield Fault(
                message=f"the index does not name {record.shard}, a shard of {len(record.header.tensors):,} tensors",
                shard=record.shard,
                found=len(record.header.tensors),
                expected=0,
            )
            continue
        for name in sorted(assigned ^ record.header.tensors.keys()):
            held = name in record.header.tensors
            said = (
                "holds {}, which the index does not assign to it"
                if held
                else "does not hold {}, which the index assigns to it"
            )
            yield Fault(
                message=f"{record.shard} {said.format(name)}",
                tensor=name,
                shard=record.shard,
                found="held" if held else "not held",
                expected=inventory.index.weight_map.get(name, "in no shard"),
            )


def _sizes(view: View) -> Iterator[Finding]:
    for problem in view.inventory.problems:
        if isinstance(problem.error, NoShards):
            yield _fault(problem.error)
    for record in view.records():
        if record.shard in view.prefixes:
            yield Waiting(what=record.shard)
            continue
        for fault in record.faults:
            if isinstance(fault, _SIZE_FAULTS):
                yield _fault(fault)
            elif isinstance(fault, MissingShard):
                yield Waiting(what=record.shard)
    if view.prefixes:
        yield Note(text=f"{len(view.prefixes)} files are header prefixes: their payload is not here")
    for path in view.inventory.unfinished:
        yield Note(text=f"unfinished download: {path.name}")


def _headers(view: View) -> Iterator[Finding]:
    for record in view.records():
        for fault in record.faults:
            if not isinstance(fault, (*_SIZE_FAULTS, *PACKING_FAULTS, MissingShard)):
                yield _fault(fault)
            elif isinstance(fault, MissingShard):
                yield Waiting(what=record.shard)


def _names(view: View) -> Iterator[Finding]:
    if isinstance(view.inventory.index_error, UnsafeShardName):
        yield _fault(view.inventory.index_error)


def _once(view: View) -> Iterator[Finding]:
    for problem in view.inventory.problems:
        if isinstance(problem.error, DuplicateTensor):
            yield _fault(problem.error)
        elif isinstance(problem.error, DuplicateShard):
            if problem.error.shard in view.prefixes:
                yield Note(text=f"{problem.error}; counted once here, but a chat refuses it: remove one of the two")
            else:
                yield _fault(problem.error)


CHECKS = (
    Check(
        name="index.agrees",
        title="every shard that is here holds exactly what the index assigns it",
        judge=_index,
        derived=False,
    ),
    Check(name="files.sizes", title="every shard is there, header and data to the byte", judge=_sizes, derived=False),
    Check(name="files.names", title="shard names stay inside the folder", judge=_names, derived=False),
    Check(name="files.headers", title="every shard has a readable header", judge=_headers, derived=False),
    Check(name="files.once", title="no shard is there twice, no tensor in two shards", judge=_once, derived=False),
)
