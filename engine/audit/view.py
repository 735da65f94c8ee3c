"""The evidence an audit looks at: headers, index and config side by side.

Owns the question "is this tensor there?" and its answers. The one thing a reader would get wrong: the index answers for
a shard that is not on the disk, but for one that is, its header does.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from engine.audit.records import Fault, Finding, GroupTotal, Waiting
from engine.config import ConfigReading, ModelConfig
from engine.config_relations import MAX_ROUTED_EXPERTS, routed_experts
from engine.errors import ConfigError
from engine.inventory import Group, Tensors, expected_tensors, is_place_holder_tower
from storage.headers import LENGTH_BYTES, SHARD_SUFFIX, TensorEntry
from storage.inventory import Inventory, ShardRecord

if TYPE_CHECKING:
    from engine.hashing import EngramTable

MAX_PREFIX_BYTES = 64 << 20
"""A larger beginning of a shard is a download, not a sample of its header; that of the release has 261,440 bytes."""

NOT_HERE = "shards that are not here"
"""What is waited for when no index names them."""

_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)\.safetensors")
_NAME = re.compile(r"(layers|mtp)\.(0|[1-9]\d{0,5})\.(?:(ffn\.experts)\.(0|[1-9]\d{0,6})\.)?(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a name belongs: its layer or stage, its role, its expert."""

    stage: bool
    """Whether `number` counts draft stages instead of backbone layers."""
    number: int
    role: str
    """As `ExpectedTensor.role`."""
    expert: int | None


def place_of(name: str) -> Place | None:
    """Where a tensor name belongs, or None for one of no layer and no stage."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, number, experts, expert, rest = match.groups()
    return Place(
        stage=kind == "mtp",
        number=int(number),
        role=f"{experts}.{rest}" if experts else rest,
        expert=int(expert) if expert else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A tensor that is in no header."""

    shard: str | None = None
    """The shard that should hold it, when the index or the file names say."""
    promised: bool = False
    """The index assigns it to a shard that cannot be looked into."""
    decided: bool = False
    """It is missing for certain: nothing that is not here could hold it."""


class View:
    """Headers, index and config of one folder, and what can be concluded from them without payload."""

    def __init__(
        self,
        inventory: Inventory,
        reading: ConfigReading | None,
        config_error: ConfigError | None,
        *,
        fp8_block: int = 32,
    ) -> None:
        self.inventory = inventory
        self.reading = reading
        self.config_error = config_error
        self.fp8_block = fp8_block
        self.config: ModelConfig | None = None
        self.expected: Tensors | None = None
        if reading is not None and not reading.missing:
            self.config = reading.build()
            # A relation of its own reports what is contradictory, or too much; nothing can be derived from it.
            if routed_experts(self.config) <= MAX_ROUTED_EXPERTS:
                with suppress(ConfigError):
                    self.expected = self._demanded(self.config)

    def _demanded(self, config: ModelConfig) -> Tensors:
        tensors = expected_tensors(config, fp8_block=self.fp8_block)
        if is_place_holder_tower(self.names):
            return {name: t for name, t in tensors.items() if t.group is not Group.VISION or name in self.names}
        return tensors

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Every tensor a header shows."""
        return self.inventory.tensors

    def records(self) -> Iterator[ShardRecord]:
        """Every shard but the copies of another."""
        return (record for record in self.inventory.shards.values() if record.duplicate_of is None)

    @cached_property
    def names(self) -> frozenset[str]:
        """Tensors that are there: shown by a header, or promised by the index for a shard without a readable one."""
        promised: set[str] = set()
        if self.inventory.index is not None:
            for shard, tensors in self.inventory.index.shards.items():
                if shard not in self._closed:
                    promised |= tensors
        return frozenset(promised.union(self.entries))

    @cached_property
    def _closed(self) -> frozenset[str]:
        """Shards, under their names in the index, whose headers show everything they hold."""
        return frozenset(record.stands_for for record in self.records() if not _is_open(record))

    @cached_property
    def open_shards(self) -> tuple[str, ...]:
        """What may hold tensors no header shows: shards that are not here or cannot be read; empty for none."""
        if self.inventory.index is not None:
            return tuple(shard for shard in self.inventory.index.shards if shard not in self._closed)
        shards = tuple(record.shard for record in self.records() if _is_open(record))
        return shards or (() if _is_whole_series(self.inventory) else (NOT_HERE,))

    def absence(self, name: str) -> Absence | None:
        """Why no header shows this tensor; None when one does."""
        if name in self.entries:
            return None
        if self.inventory.index is None:
            return Absence(decided=not self.open_shards)
        shard = self.inventory.index.weight_map.get(name)
        if shard is None:
            return Absence(decided=True)
        return Absence(shard=shard, promised=shard not in self._closed, decided=shard in self._closed)

    def demand(self, names: Iterable[str]) -> Iterator[Finding]:
        """A fault for every tensor that is missing for certain; what to wait for where that is open."""
        for name in names:
            absence = self.absence(name)
            if absence is None or absence.promised:
                continue
            if absence.decided:
                where = f"{absence.shard} does not hold it" if absence.shard else "nothing holds it"
                yield Fault(
                    message=f"{name} is missing: {where}",
                    tensor=name,
                    shard=absence.shard,
                    found="absent",
                    expected="present",
                )
            else:
                yield from self.waiting(absence)

    def waiting(self, absence: Absence) -> Iterator[Waiting]:
        """What an absent tensor's header is waited for; nothing when it is missing for certain."""
        if absence.promised and absence.shard is not None:
            yield Waiting(what=absence.shard)
        elif not absence.decided:
            yield from (Waiting(what=shard) for shard in self.open_shards)

    def unexpected(self, name: str) -> Fault:
        """The fault of a tensor that has no business where it is."""
        entry = self.entries.get(name)
        return Fault(
            message=f"{name} is there, and the config has no place for it",
            tensor=name,
            shard=entry.extent.shard if entry else None,
            found="present",
            expected="absent",
        )

    def shape(self, name: str, *allowed: tuple[int, ...]) -> Iterator[Finding]:
        """A fault when the tensor has none of these shapes (the first is the right one), or what to wait for."""
        entry = self.entries.get(name)
        if entry is None:
            absence = self.absence(name)
            assert absence is not None
            yield from self.waiting(absence)
        elif entry.shape not in allowed:
            yield Fault(
                message=f"{name} has the shape {list(entry.shape)}, the config makes it {list(allowed[0])}",
                tensor=name,
                shard=entry.extent.shard,
                found=entry.shape,
                expected=allowed[0],
            )

    def dtype(self, name: str, dtype: str) -> Iterator[Finding]:
        """A fault when the tensor is stored as something else; what to wait for when it cannot be seen."""
        entry = self.entries.get(name)
        if entry is None:
            absence = self.absence(name)
            assert absence is not None
            yield from self.waiting(absence)
        elif entry.dtype != dtype:
            yield Fault(
                message=f"{name} is {entry.dtype}, the format has {dtype}",
                tensor=name,
                shard=entry.extent.shard,
                found=entry.dtype,
                expected=dtype,
            )

    @cached_property
    def extras(self) -> Mapping[str, Place | None]:
        """Tensors that are there and the config does not demand, each with where its name belongs; by name."""
        return {name: place_of(name) for name in sorted(self.names.difference(self.expected or {}))}

    @cached_property
    def roles(self) -> Mapping[tuple[bool, str], list[str]]:
        """The demanded tensors of each role, for draft stages (True) and for all else (False), in order."""
        names: dict[tuple[bool, str], list[str]] = defaultdict(list)
        for name, tensor in (self.expected or {}).items():
            names[tensor.stage is not None, tensor.role].append(name)
        return names

    @cached_property
    def derived_tables(self) -> "tuple[EngramTable, ...] | None":
        """The engram tables as the config's numbers make them; None when they cannot be derived."""
        # Here and not at the top: it brings numpy, a quarter of a second that `audit --help` need not wait.
        from engine.hashing import engram_tables

        if self.config is None:
            return None
        try:
            return engram_tables(self.config)
        except ConfigError:
            return None

    @cached_property
    def prefixes(self) -> frozenset[str]:
        """Files of which only the beginning is there, on purpose: header samples, not cut downloads.

        A file is taken for one when it ends before its data and does not even have a shard's name; or when all that end
        early hold a bare header or the same number of bytes, as a range request gives them, and no shard is larger.
        """
        cut = [r for r in self.inventory.shards.values() if r.status == "cut" and r.header is not None]
        named = [r for r in cut if r.shard.endswith(SHARD_SUFFIX)]
        prefixes = {r.shard for r in cut if r not in named}
        sizes = Counter(record.present_bytes for record in named)
        largest = max((r.present_bytes for r in self.inventory.shards.values() if r.shard not in prefixes), default=0)
        sampled = all(
            record.header is not None
            and (sizes[record.present_bytes] > 1 or record.present_bytes == LENGTH_BYTES + record.header.header_bytes)
            for record in named
        )
        if sampled and largest <= min(max(sizes, default=0), MAX_PREFIX_BYTES):
            prefixes |= {record.shard for record in named}
        return frozenset(prefixes)

    @cached_property
    def groups(self) -> tuple[GroupTotal, ...]:
        """Tensors and bytes the headers show, by what they are for; those of no known use last."""
        count: Counter[Group | None] = Counter()
        size: Counter[Group | None] = Counter()
        expected = self.expected or {}
        for name, entry in self.entries.items():
            tensor = expected.get(name)
            group = tensor.group if tensor else _group_by_name(name)
            count[group] += 1
            size[group] += entry.extent.length
        present = [*(g for g in Group if count[g]), *([None] if count[None] else [])]
        return tuple(GroupTotal(group=g, n_tensors=count[g], n_bytes=size[g]) for g in present)


def _is_open(record: ShardRecord) -> bool:
    """Whether a shard may hold tensors that no header shows."""
    if record.header is None:
        return True
    left_out = (getattr(fault, "tensor", None) for fault in record.faults)
    return any(name is not None and name not in record.header.tensors for name in left_out)


def _is_whole_series(inventory: Inventory) -> bool:
    """Whether the file names alone say that no shard is missing: one numbered series, or the one unnumbered file."""
    names = [record.shard for record in inventory.shards.values() if record.duplicate_of is None]
    if names == [f"model{SHARD_SUFFIX}"]:
        return True
    matches = [_NUMBERED.fullmatch(name) for name in names]
    series = {(match[1], int(match[3])) for match in matches if match}
    numbers = {int(match[2]) for match in matches if match}
    return None not in matches and len(series) == 1 and numbers == set(range(1, next(iter(series))[1] + 1))


def _group_by_name(name: str) -> Group | None:
    """The group of a tensor the config does not demand, as far as its name tells."""
    if name.startswith(("vision.", "aligner.", "image_")):
        return Group.VISION
    return None
