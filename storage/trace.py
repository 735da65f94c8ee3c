"""Recorded requests for experts: what to judge a replacement policy by. Written by a run on request, replayed by `bench
cache`.

The file is a header and one record a request, little-endian, in the order asked:

    8 bytes  magic            "ARTTRACE"
    u16      version          1
    u16      number of layers, then for each: u16 layer, u16 experts in it
    records: u32 step, u8 phase (0 decode, 1 prefill), u16 layer, u16 count, count x u16 expert

A step is one forward pass; its number never falls. A record is about 21 bytes for six experts, a token of the released
model about 0.9 KB. A trace is somebody else's file to whoever replays it: every field is checked, and only one record
is held at a time.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from storage.errors import TraceError, shown
from storage.waves import Phase

MAGIC = b"ARTTRACE"
VERSION = 1
_HEADER = struct.Struct("<8sHH")
_LAYER = struct.Struct("<HH")
_RECORD = struct.Struct("<IBHH")
_PHASES: tuple[Phase, ...] = ("decode", "prefill")
_FLUSH_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One layer's request for experts in one step."""

    step: int
    """Forward pass, never falling."""
    phase: Phase
    layer: int
    experts: tuple[int, ...]
    """Distinct experts in the order asked."""


class TraceWriter:
    """Records requests to a file until `limit_bytes` are written.

    A full or failing disk ends the recording, not the run: `on_notice` is told once and every later call does nothing.

    Args:
        path: Replaced if it exists.
        n_experts: Experts of each layer that may be asked for.
        limit_bytes: Where to stop; a token of the released model takes about 900 bytes.

    Raises:
        TraceError: The file cannot be created, or a number does not fit the format.
    """

    def __init__(
        self,
        path: Path,
        n_experts: Mapping[int, int],
        *,
        limit_bytes: int = 1 << 30,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        fits = all(0 <= layer <= 0xFFFF and 0 < n <= 0xFFFF for layer, n in n_experts.items())
        if not fits or not 0 < len(n_experts) <= 0xFFFF:
            raise TraceError("A trace has room for 65,535 layers of 65,535 experts")
        self._path = path
        self._on_notice = on_notice
        self._step = 0
        self._room = limit_bytes
        self._pending = bytearray(_HEADER.pack(MAGIC, VERSION, len(n_experts)))
        for layer, n in sorted(n_experts.items()):
            self._pending += _LAYER.pack(layer, n)
        try:
            self._file: BinaryIO | None = path.open("wb", buffering=0)
        except OSError as error:
            raise TraceError(f"{shown(str(path))} cannot be written: {error.strerror or error}") from error

    def next_step(self) -> None:
        """A new forward pass begins. Whole steps are written together, so that an ended process leaves whole
        records.
        """
        self._step += 1
        if len(self._pending) >= _FLUSH_BYTES:
            self.flush()

    def record(self, layer: int, experts: Sequence[int], phase: Phase) -> None:
        """A layer asked for these distinct experts."""
        if self._file is not None:
            self._pending += _RECORD.pack(self._step, _PHASES.index(phase), layer, len(experts))
            self._pending += struct.pack(f"<{len(experts)}H", *experts)

    def flush(self) -> None:
        """Write what was recorded so far."""
        if self._file is None:
            return
        if len(self._pending) > self._room:
            self._stop("it has reached its size limit")
            return
        try:
            rest = memoryview(self._pending)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self._room -= len(self._pending)
        self._pending = bytearray()

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self, reason: str) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._pending = bytearray()
        self._on_notice(f"Recording to {shown(str(self._path))} ended: {reason}.")


class TraceReader:
    """A trace file, read record by record; may be iterated several times.

    Raises:
        TraceError: On opening, for a file that is no trace; while iterating, for a record no run writes, by its offset.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.is_file():
                raise TraceError(f"{shown(str(path))} is not a file")
            with path.open("rb") as file:
                self.n_experts: Mapping[int, int] = self._read_header(file)
                """Experts of each layer."""
                self._start = file.tell()
        except OSError as error:
            raise self._unreadable(error) from error

    def __iter__(self) -> Iterator[Request]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                offset, last_step = self._start, 0
                while head := file.read(_RECORD.size):
                    request = self._parse(file, head, offset)
                    if request.step < last_step:
                        raise self._bad(offset, f"step {request.step:,} comes after step {last_step:,}")
                    offset += _RECORD.size + 2 * len(request.experts)
                    last_step = request.step
                    yield request
        except OSError as error:
            raise self._unreadable(error) from error

    def _read_header(self, file: BinaryIO) -> dict[int, int]:
        magic, version, n_layers = _HEADER.unpack(self._exactly(file, _HEADER.size, 0))
        if magic != MAGIC:
            raise self._bad(0, "the file does not begin like a trace")
        if version != VERSION:
            raise self._bad(8, f"version {version}, this Artesian reads version {VERSION}")
        n_experts: dict[int, int] = {}
        for _ in range(n_layers):
            layer, n = _LAYER.unpack(self._exactly(file, _LAYER.size, file.tell()))
            if layer in n_experts or n == 0:
                raise self._bad(file.tell() - _LAYER.size, f"layer {layer} is listed twice or has no expert")
            n_experts[layer] = n
        if not n_experts:
            raise self._bad(10, "no layers")
        return n_experts

    def _parse(self, file: BinaryIO, head: bytes, offset: int) -> Request:
        if len(head) != _RECORD.size:
            raise self._bad(offset, "the file ends inside what begins here")
        step, phase, layer, count = _RECORD.unpack(head)
        if phase >= len(_PHASES):
            raise self._bad(offset, f"phase {phase}")
        if layer not in self.n_experts:
            raise self._bad(offset, f"layer {layer} is not in the header")
        n = self.n_experts[layer]
        if not 0 < count <= n:
            raise self._bad(offset, f"{count} experts of a layer that has {n}")
        experts = struct.unpack(f"<{count}H", self._exactly(file, 2 * count, offset))
        if max(experts) >= n:
            raise self._bad(offset, f"expert {max(experts)} of a layer that has {n}")
        if len(set(experts)) != count:
            raise self._bad(offset, "the same expert twice in one request")
        return Request(step=step, phase=_PHASES[phase], layer=layer, experts=experts)

    def _exactly(self, file: BinaryIO, n_bytes: int, offset: int) -> bytes:
        data = file.read(n_bytes)
        if len(data) != n_bytes:
            raise self._bad(offset, "the file ends inside what begins here")
        return data

    def _bad(self, offset: int, what: str) -> TraceError:
        return TraceError(
            f"{shown(str(self._path))} at byte {offset:,}: {what}",
            hint="Give a trace as a run recorded it; a damaged one cannot be repaired.",
        )

    def _unreadable(self, error: OSError) -> TraceError:
        return TraceError(f"{shown(str(self._path))} cannot be read: {error.strerror or error}")
