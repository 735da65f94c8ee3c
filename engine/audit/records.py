"""What an audit finds: faults, what it waits for, the outcome of a check, and the report. Plain records, no judging."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.config import SILENT, ConfigReading
from engine.inventory import Group
from storage.inventory import Inventory

MAX_FAULTS = 100
"""Faults kept per check: one broken size would otherwise repeat itself for every expert. All are counted."""


class Outcome(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    """The evidence lies in a shard that is not there, or in a config that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One contradiction, in a form a program can read."""

    message: str
    """The sentence for a person."""
    tensor: str | None = None
    shard: str | None = None
    found: object = None
    """The value as it is."""
    expected: object = None
    """The value it should have, or contradicts."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Config fields concerned and their values."""
    hint: str = ""
    """One sentence with what the user can do, or ""."""

    def as_json(self) -> dict[str, Any]:
        """Every field, in types JSON has."""
        return {
            "message": self.message,
            "tensor": self.tensor,
            "shard": self.shard,
            "found": _plain(self.found),
            "expected": _plain(self.expected),
            "values": {name: _plain(value) for name, value in self.values.items()},
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Something a check cannot see yet."""

    what: str
    """A shard's name, or in words what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something a reader of a check's outcome should know, which is no fault."""

    text: str


Finding = Fault | Waiting | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check and how it ended."""

    check: str
    """Its name, such as "engram.rows-enough"."""
    title: str
    """What holds when it passes."""
    outcome: Outcome
    faults: tuple[Fault, ...]
    """The first `MAX_FAULTS` of them."""
    n_faults: int
    waiting: tuple[str, ...]
    """Shards, or other things that are not there, the check could not look into. They never hide a fault."""
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Every field, in types JSON has."""
        return {
            "check": self.check,
            "title": self.title,
            "outcome": self.outcome.value,
            "n_faults": self.n_faults,
            "faults": [fault.as_json() for fault in self.faults],
            "waiting": list(self.waiting),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotal:
    """Tensors of one kind that the headers show."""

    group: Group | None
    """None for tensors the architecture has no place for."""
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything an audit found."""

    inventory: Inventory
    reading: ConfigReading | None
    """None when no config could be read."""
    prefixes: frozenset[str]
    """Files of which only the beginning is there, on purpose."""
    groups: tuple[GroupTotal, ...]
    checks: tuple[CheckResult, ...]

    @property
    def n_tensors(self) -> int:
        """Tensors the headers show, duplicates counted once."""
        return sum(total.n_tensors for total in self.groups)

    @property
    def n_bytes(self) -> int:
        """Payload bytes of those tensors."""
        return sum(total.n_bytes for total in self.groups)

    @property
    def sound(self) -> bool:
        """Whether nothing failed."""
        return self.count(Outcome.FAIL) == 0

    def count(self, outcome: Outcome) -> int:
        """Checks that ended so."""
        return sum(check.outcome is outcome for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report without the inventory of single tensors, in types JSON has."""
        inventory, reading = self.inventory, self.reading
        return {
            "folder": str(inventory.folder),
            "sound": self.sound,
            "complete": inventory.complete,
            "config": {
                "files": [str(file.path) for file in reading.files] if reading else [],
                "unknown": reading.unknown if reading else {},
                "differences": [
                    {"field": d.field, "nested": _said(d.nested), "flat": _said(d.flat), "conflict": d.conflict}
                    for d in (reading.differences if reading else ())
                ],
            },
            "index": str(inventory.index.path) if inventory.index else None,
            "shards": [
                {
                    "shard": record.shard,
                    "status": "prefix" if record.shard in self.prefixes else record.status,
                    "present_bytes": record.present_bytes,
                    "expected_bytes": record.expected_bytes,
                    "stands_for": record.stands_for,
                    "duplicate_of": record.duplicate_of,
                }
                for record in inventory.shards.values()
            ],
            "unfinished": [str(path) for path in inventory.unfinished],
            "tensors": self.n_tensors,
            "tensor_bytes": self.n_bytes,
            "present_bytes": inventory.present_bytes,
            "expected_bytes": inventory.expected_bytes,
            "groups": [
                {"group": total.group or "other", "tensors": total.n_tensors, "tensor_bytes": total.n_bytes}
                for total in self.groups
            ],
            "passed": self.count(Outcome.PASS),
            "failed": self.count(Outcome.FAIL),
            "undecided": self.count(Outcome.UNDECIDED),
            "checks": [check.as_json() for check in self.checks],
        }


def _said(value: object) -> object:
    """A config value, or {"silent": true}: `null` is a value a file may say."""
    return {"silent": True} if value is SILENT else _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
