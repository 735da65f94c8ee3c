"""Measured rates of this machine, remembered between runs: of its drives, and of its arithmetic.

One small JSON file in the cache folder. A file that cannot be used is begun anew: what it held can be measured again.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from app.machine import cpu_name, read_cpuinfo
from app.private_files import PRIVATE_FILE
from app.whole_files import replace_file
from engine.small_files import read_regular
from planner.facts import Rates

VERSION = 1
SHARED_FOR_S = 30 * 86_400.0
"""Rates by which drives share their reads are measured again after this; drives age and cables move."""
MOST_FACTOR = 10.0
"""What a turn took beyond this is an accident, not the machine."""
_MOST_BYTES = 1_000_000
_KEPT = 0.5
"""Of what a drive was remembered to give, when a turn shows another figure."""


class RateBook:
    """What was measured on this machine. `save` writes it; nothing is written before, nor without a path."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._machine = f"{platform.node()} {cpu_name(read_cpuinfo())}"
        self._mine: set[tuple[str, str]] = set()
        """Table and key of what was noted since the last save."""
        self._data = self._read()

    def _read(self) -> dict[str, Any]:
        """What the file holds now."""
        if self._path is not None:
            with suppress(OSError, ValueError, RecursionError):
                data = json.loads(read_regular(self._path, _MOST_BYTES))
                if isinstance(data, dict) and (data.get("version"), data.get("machine")) == (VERSION, self._machine):
                    return data
        return {"version": VERSION, "machine": self._machine}

    @property
    def keeps(self) -> bool:
        """Whether anything is remembered."""
        return self._path is not None

    def drive(self, name: str) -> float | None:
        """Bytes a second that a drive gave, or None."""
        return _rate(self._table("drives").get(name))

    def note_drive(self, name: str, rate_bytes_s: float) -> None:
        """A drive gave so much in a turn: half of the difference is believed."""
        before = self.drive(name)
        kept = rate_bytes_s if before is None else _KEPT * before + (1 - _KEPT) * rate_bytes_s
        self._put("drives", name, {"rate_bytes_s": kept})

    def shared(self, key: str) -> dict[str, float] | None:
        """Rates of drives that were read all at once, by name, unless they are too old or were never measured."""
        entry = self._table("shared").get(key)
        if not isinstance(entry, dict) or not isinstance(entry.get("rates"), dict):
            return None
        age_s = self._clock() - (_number(entry.get("at")) or 0.0)
        rates = {str(name): _number(rate) for name, rate in entry["rates"].items()}
        good = {name: rate for name, rate in rates.items() if rate is not None and rate > 0}
        return good if 0 <= age_s < SHARED_FOR_S and len(good) == len(rates) else None

    def note_shared(self, key: str, rates: Mapping[str, float]) -> None:
        """Drives gave so much when they were read all at once."""
        self._put("shared", key, {"rates": dict(rates)})
        for name, rate in rates.items():
            self._put("drives", name, {"rate_bytes_s": rate})

    def arithmetic(self, threads: int, path: str | None = None) -> Rates | None:
        """What the kernels consumed on so many threads, on one path or on the last that was measured; or None."""
        entries = [
            entry
            for key, entry in self._table("arithmetic").items()
            if isinstance(entry, dict) and (key == f"{path} x{threads}" if path else key.endswith(f" x{threads}"))
        ]
        entries.sort(key=lambda entry: _number(entry.get("at")) or 0.0)
        while entries:
            entry = entries.pop()
            values = {name: _number(entry.get(name)) for name in _RATES}
            good = {name: value for name, value in values.items() if value is not None and value > 0}
            if len(good) == len(_RATES):
                return Rates(**good, **self._factors(), source="remembered")
        return None

    def note_arithmetic(self, threads: int, path: str, rates: Rates) -> None:
        """The kernels consumed so much."""
        self._put("arithmetic", f"{path} x{threads}", {name: asdict(rates)[name] for name in _RATES})

    def note_factors(self, *, answer: float | None, prompt: float | None) -> None:
        """The arithmetic of a turn took so many times what the rates say: half of the difference is believed."""
        now = self._factors()
        for name, factor in (("answer_factor", answer), ("prompt_factor", prompt)):
            if factor is not None:
                bounded = min(max(factor, 1 / MOST_FACTOR), MOST_FACTOR)
                known = name in self._table("factors")
                now[name] = _KEPT * now[name] + (1 - _KEPT) * bounded if known else bounded
                self._put("factors", name, {"factor": now[name]})

    def _factors(self) -> dict[str, float]:
        factors = {}
        for name in ("answer_factor", "prompt_factor"):
            entry = self._table("factors").get(name)
            factor = _number(entry.get("factor")) if isinstance(entry, dict) else None
            factors[name] = 1.0 if factor is None else min(max(factor, 1 / MOST_FACTOR), MOST_FACTOR)
        return factors

    def save(self) -> None:
        """Write what was noted here beside what others have noted meanwhile; a folder that cannot be written to is no
        trouble, it is only measured again.
        """
        if not self._mine or self._path is None:
            return
        noted = [(table, key, self._table(table)[key]) for table, key in sorted(self._mine)]
        self._data = self._read()
        for table, key, entry in noted:
            self._data[table] = self._table(table) | {key: entry}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._data, indent=1).encode(), mode=PRIVATE_FILE)
            self._mine.clear()

    def _table(self, name: str) -> dict[str, Any]:
        table = self._data.get(name)
        return table if isinstance(table, dict) else {}

    def _put(self, table: str, key: str, entry: dict[str, Any]) -> None:
        self._data[table] = self._table(table) | {key: entry | {"at": self._clock()}}
        self._mine.add((table, key))


_RATES = ("memory_bytes_s", "fp4_bytes_s", "fp8_bytes_s", "plain_bytes_s", "multiply_adds_s")


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if good and isinstance(value, int | float) else None


def _rate(entry: object) -> float | None:
    rate = _number(entry.get("rate_bytes_s")) if isinstance(entry, dict) else None
    return rate if rate is not None and rate > 0 else None
