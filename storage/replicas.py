"""Which copy of a shard serves a read, and what is known of the drives: weights, failures, figures.

Reads are shared by drive, not by folder: two copies on one disk are one drive, read from the first. A drive that fails
is demoted, that is, used only for what no other drive has; a file that alone is at fault is passed over on its drive.
Nothing here reads or schedules: whoever does asks `choose` or `share`, reads, and tells `record` or `demote`.
"""

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage.copies import Copy, FoundCopies
from storage.errors import BadWeights, DriveError, MissingShard, StorageError, shown
from storage.extents import Extent
from storage.sharing import Item, pick, share_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Demotion:
    """A drive, or one file on it, that is not read any more while another drive has the bytes."""

    drive: str
    path: Path
    """The file whose read failed."""
    whole_drive: bool
    """False when only that file is at fault."""
    error: StorageError
    n_left: int
    """Drives in order that still hold the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveReads:
    """What was read from one drive, by every path that told `record`."""

    drive: str
    weight: float
    """Its share of the reads, relative to the others'."""
    n_reads: int
    read_bytes: int
    busy_s: float
    """Sum of the times the reads took."""
    queue_s: float
    """Sum of the times the reads waited to begin."""
    n_errors: int
    demoted: bool


class ReplicaSet:
    """The copies of every shard of one checkpoint. Thread-safe."""

    def __init__(
        self,
        found: FoundCopies,
        *,
        weights: Mapping[Path, float] | None = None,
        on_demotion: Callable[[Demotion], None] | None = None,
    ) -> None:
        """`weights` are relative rates by folder, for every folder that serves, or equal when not given.

        `on_demotion` hears of each demotion once, from the thread whose read failed.
        Raises: BadWeights.
        """
        self.found = found
        self.drives = tuple(sorted({copy.drive for some in found.copies.values() for copy in some}))
        self._copies = {shard: list(some) for shard, some in found.copies.items()}
        self._on_demotion = on_demotion
        self._lock = threading.Lock()
        self._demotions: list[Demotion] = []
        self._failed: set[Path] = set()
        self._reads = {
            drive: DriveReads(
                drive=drive, weight=1.0, n_reads=0, read_bytes=0, busy_s=0.0, queue_s=0.0, n_errors=0, demoted=False
            )
            for drive in self.drives
        }
        if weights is not None:
            self.weigh(self._by_drive(weights))

    @property
    def demotions(self) -> tuple[Demotion, ...]:
        """What was demoted so far, in order."""
        return tuple(self._demotions)

    def copies(self, shard: str) -> tuple[Copy, ...]:
        """Every copy of a shard, the checkpoint's own first. Raises: MissingShard when nobody has it."""
        if not self._copies.get(shard):
            raise MissingShard(
                f"no folder holds a whole {shown(shard)}",
                shard=shard,
                hint="Run `artesian audit` on the model's folder.",
            )
        return tuple(self._copies[shard])

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the drives' weights, for example their measured rates; all drives, relative to each other.

        Raises: BadWeights.
        """
        for drive in self.drives:
            _check_weight(drive, weights.get(drive))
        with self._lock:
            for drive in self.drives:
                self._reads[drive] = replace(self._reads[drive], weight=float(weights[drive]))

    def choose(self, flat_index: int, shard: str, tried: Collection[str] = ()) -> Copy | None:
        """The copy to read `shard` from for the item with this flat index: on none of the `tried` drives, but for a
        second copy on one of them where the first has failed.

        The same index always goes to the same drive while weights and drives stay as they are. None when every copy
        was tried. Raises: MissingShard when nobody ever had it.
        """
        candidates = self._candidates(shard, tried)
        if not candidates:
            return None
        return candidates[pick(flat_index, tuple(candidates), self._weights())]

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> list[Copy]:
        """The copy for each (flat index, extent) of a batch that is waited for as a whole.

        Extents of one index in one shard stay together. `waiting_bytes` is what each drive has yet to read of earlier
        batches. See `sharing.share_out` for what is promised. Raises: MissingShard.
        """
        candidates = {shard: self._candidates(shard, ()) for shard in {extent.shard for _, extent in requests}}
        if all(len(by_drive) == 1 for by_drive in candidates.values()):  # a token's rows come here, too many to weigh
            only = {shard: copy for shard, by_drive in candidates.items() for copy in by_drive.values()}
            return [only[extent.shard] for _, extent in requests]
        n_bytes: dict[tuple[int, str], int] = {}
        for flat_index, extent in requests:
            key = (flat_index, extent.shard)
            n_bytes[key] = n_bytes.get(key, 0) + extent.length
        items = [
            Item(key=flat_index, n_bytes=total, drives=tuple(candidates[shard]))
            for (flat_index, shard), total in n_bytes.items()
        ]
        drives = dict(zip(n_bytes, share_out(items, self._weights(), waiting_bytes), strict=True))
        return [candidates[extent.shard][drives[flat_index, extent.shard]] for flat_index, extent in requests]

    def demote(self, copy: Copy, error: StorageError) -> Demotion | None:
        """Note that reading `copy` failed; what is new about it, or None when drive or file was demoted before.

        An error of the drive (an I/O error, a mount that went away) demotes the drive with all its files; any other
        concerns this file only.
        """
        whole_drive = isinstance(error, DriveError) and error.of_the_drive
        with self._lock:
            reads = self._reads[copy.drive]
            known = reads.demoted if whole_drive else copy.path in self._failed
            self._reads[copy.drive] = replace(reads, n_errors=reads.n_errors + 1, demoted=reads.demoted or whole_drive)
            self._failed.add(copy.path)  # of a drive that failed too: another copy on it may be read
            if known:
                return None
            left = {
                other.drive
                for other in self._copies[copy.shard]
                if other.path not in self._failed and not self._reads[other.drive].demoted
            }
            demotion = Demotion(
                drive=copy.drive, path=copy.path, whole_drive=whole_drive, error=error, n_left=len(left)
            )
            self._demotions.append(demotion)
        if self._on_demotion is not None:
            self._on_demotion(demotion)
        return demotion

    def restore(self, drive: str) -> None:
        """Read a demoted drive and all its files again: they were checked. Its next failure demotes it anew."""
        with self._lock:
            self._reads[drive] = replace(self._reads[drive], demoted=False)
            mine = {copy.path for some in self._copies.values() for copy in some if copy.drive == drive}
            self._failed -= mine

    def demoted(self) -> tuple[str, ...]:
        """The drives that are demoted now."""
        with self._lock:
            return tuple(drive for drive in self.drives if self._reads[drive].demoted)

    def withdraw(self, copy: Copy) -> None:
        """Never read `copy` again: it cannot be opened, or its payload is not the shard's."""
        with self._lock:
            self._copies[copy.shard].remove(copy)

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Add reads to a drive's figures. Bytes are those the system delivered."""
        with self._lock:
            reads = self._reads[drive]
            self._reads[drive] = replace(
                reads,
                n_reads=reads.n_reads + n_reads,
                read_bytes=reads.read_bytes + n_bytes,
                busy_s=reads.busy_s + busy_s,
                queue_s=reads.queue_s + queue_s,
            )

    def reads(self) -> tuple[DriveReads, ...]:
        """Each drive's figures so far, by name."""
        with self._lock:
            return tuple(self._reads[drive] for drive in self.drives)

    def _weights(self) -> dict[str, float]:
        return {drive: reads.weight for drive, reads in self._reads.items()}

    def _candidates(self, shard: str, tried: Collection[str]) -> dict[str, Copy]:
        """The copy of each drive that should serve the shard: of healthy ones, or else of any not tried.

        A drive that was tried has another one to give where a copy failed and there is a second on it.
        """
        copies, failed = self.copies(shard), self._failed
        second = {copy.drive for copy in copies if copy.path in failed}
        untried = [
            copy for copy in copies if copy.drive not in tried or (copy.drive in second and copy.path not in failed)
        ]
        sound = [copy for copy in untried if copy.path not in failed] or untried
        healthy = [copy for copy in sound if not self._reads[copy.drive].demoted] or sound
        candidates: dict[str, Copy] = {}
        for copy in healthy:
            candidates.setdefault(copy.drive, copy)
        return candidates

    def _by_drive(self, weights: Mapping[Path, float]) -> dict[str, float]:
        """Weights of drives from weights of folders; of two folders on one drive the larger one counts."""
        by_drive: dict[str, float] = {}
        for copy in (copy for some in self._copies.values() for copy in some):
            _check_weight(str(copy.folder), weights.get(copy.folder))
            by_drive[copy.drive] = max(by_drive.get(copy.drive, 0.0), weights[copy.folder])
        return by_drive


def _check_weight(what: str, weight: float | None) -> None:
    if weight is None or not math.isfinite(weight) or weight < 0:
        raise BadWeights(
            f"{shown(what)} has {'no weight' if weight is None else f'the weight {weight}'}",
            hint="Give a number of at least 0, such as the rate in GB/s, for every drive or folder, or for none.",
        )
