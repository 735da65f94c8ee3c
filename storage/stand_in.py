"""Shards that are damaged or missing at start, taken from a mirror instead.

A mirror's file stands in as if its folder were part of the checkpoint, so the index and the other shards judge it.
Where the damaged file's own header can still be read, the mirror's must be the same to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import StorageError
from storage.inspection import inspect
from storage.inventory import Inventory, ShardStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """One shard that a mirror's file is read for."""

    shard: str
    path: Path
    """The mirror's file."""
    status: ShardStatus
    """What is wrong with the checkpoint's own file."""
    error: StorageError | None
    """The same in words; None when the file is just not there."""


def stand_in(damaged: Inventory, mirrors: Sequence[Path]) -> tuple[Inventory, tuple[StandIn, ...]] | None:
    """The checkpoint with the fewest of `mirrors`, in their order, that make it whole, and what they stand in for.

    The mirrors taken are the last of the inventory's `splits`. None when they do not make it whole either.
    """
    taken: list[Path] = []
    for mirror in mirrors:
        taken.append(mirror)
        whole = inspect(damaged.folder, splits=[*damaged.splits, *taken])
        if not whole.blocking():
            found = _stand_ins(damaged, whole)
            return None if found is None else (whole, found)
    return None


def _stand_ins(damaged: Inventory, whole: Inventory) -> tuple[StandIn, ...] | None:
    found = []
    for shard, record in whole.shards.items():
        before = damaged.shards.get(shard)
        if before is None or before.status == "complete":
            continue
        same = before.header is None or (record.header is not None and record.header.digest == before.header.digest)
        if not same:
            return None  # of another revision: its offsets are right for itself and wrong beside the other shards
        error = before.faults[0] if before.faults and before.status != "missing" else None
        found.append(StandIn(shard=shard, path=record.path, status=before.status, error=error))
    return tuple(found)
