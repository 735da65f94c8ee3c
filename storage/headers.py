"""Shard headers, read as hostile input: tensor name -> (dtype, shape, extent).

A shard is 8 bytes little-endian header length, that many bytes of JSON, then the data. Nothing in the header is
believed before it is checked: not the length (no allocation follows it past the cap or the file), not the numbers,
not the names. Offsets in the file count from the end of the header; `TensorEntry.extent` counts from the start of the
file.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import (
    BadMetadata,
    BadOffsets,
    BadShape,
    BadTensorEntry,
    BadTensorName,
    BrokenLink,
    CheckpointError,
    DriveError,
    DuplicateKey,
    EmptyShard,
    ExtentMismatch,
    ForeignTail,
    GapInData,
    HeaderCut,
    HeaderError,
    HeaderNotJson,
    HeaderNotText,
    HeaderTooLarge,
    MissingShard,
    NotAFile,
    OverlappingTensors,
    StorageError,
    TooManyTensors,
    TruncatedShard,
    UnknownDtype,
    shown,
)
from storage.extents import Extent
from storage.strictjson import RefusedJsonError, count_up_to, strict_object

MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit; the largest header of the release is 261,440 bytes."""
MAX_TENSORS = 100_000
"""In one shard. The whole release has 96,085 tensors, so a single-file conversion of it still fits."""
MAX_ENTRY_BYTES = 4096
"""Header bytes per entry, on average: the longest name with every character escaped, and room."""
SPARE_BYTES = 1 << 20
"""Header bytes beyond those of the entries: metadata and padding."""
MAX_DIMS = 8
MAX_NAME_CHARS = 512
MAX_FAULTS = 64
"""Faults collected per header before the search stops: evidence for the audit, not a flood."""
SHARD_SUFFIX = ".safetensors"
LENGTH_BYTES = 8
"""Bytes of the header length before the header."""
METADATA_KEY = "__metadata__"

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits per element of every dtype of safetensors 0.8."""

_FETCH = "Fetch this shard again, then run `artesian audit`."
_FOREIGN = "This is not a shard of the released format, or it was damaged. " + _FETCH
_INT64 = 1 << 63
_PIECE_BYTES = 1 << 20
_SPARE_VALUES = 10_000
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies and how it is stored."""

    name: str
    dtype: str
    """As safetensors spells it: "F8_E4M3", "F8_E8M0", "I8", "BF16", "F32", ..."""
    shape: tuple[int, ...]
    extent: Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """What one shard says of itself."""

    shard: str
    """Shard file name, relative to the checkpoint folder."""
    file_bytes: int
    """Size of the file as it is."""
    header_bytes: int
    """Length of the JSON, without the 8 bytes before it."""
    data_bytes: int
    """Length of the data section: the largest offset of any tensor."""
    digest: bytes
    """SHA-256 of the first 8 + header_bytes bytes; equal digests mean byte-identical headers."""
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]

    @property
    def expected_bytes(self) -> int:
        """The size the file has when nothing is missing and nothing follows."""
        return LENGTH_BYTES + self.header_bytes + self.data_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderScan:
    """A header as far as it can be read, and everything wrong with it."""

    header: ShardHeader | None
    """None when the JSON could not be read; otherwise every entry whose fields make sense by themselves."""
    faults: tuple[StorageError, ...]
    """In order of severity: what keeps the header from being read, then entries, then layout, then the file's size."""


def read_header(path: Path, shard: str) -> ShardHeader:
    """The header of the complete shard at `path`.

    Raises: one subclass of CheckpointError for each way a shard can be wrong (missing, cut, foreign tail, bad header);
        DriveError when the system refuses to read it.
    """
    scan = scan_header(path, shard)
    if scan.faults:
        raise scan.faults[0]
    assert scan.header is not None, "a scan without faults has a header"
    return scan.header


def scan_header(path: Path, shard: str) -> HeaderScan:
    """Everything the shard at `path` tells without reading payload. Never raises for what is on the disk."""
    try:
        raw, file_bytes = _read_raw(path, shard)
    except StorageError as error:
        return HeaderScan(header=None, faults=(error,))
    return parse_header(raw, file_bytes, shard)


def is_plausible_header(first: bytes) -> bool:
    """Whether a file that begins with these bytes (9 are enough) could be a shard or the prefix of one."""
    if len(first) <= LENGTH_BYTES or first[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{":
        return False
    return 2 <= int.from_bytes(first[:LENGTH_BYTES], "little") <= MAX_HEADER_BYTES


def parse_header(raw: bytes, file_bytes: int, shard: str) -> HeaderScan:
    """Parse the first bytes of a shard: the length and the header, and nothing past it.

    `raw` may be shorter than the length demands, which is then a fault; `file_bytes` is the size of the whole file.
    """
    try:
        length = header_length(raw, file_bytes, shard)
        if len(raw) < LENGTH_BYTES + length:  # the file shrank after its size was taken
            header_length(raw, len(raw), shard)
        fields = _decode(raw[LENGTH_BYTES : LENGTH_BYTES + length], shard)
    except CheckpointError as error:
        return HeaderScan(header=None, faults=(error,))
    faults: list[StorageError] = []
    metadata = _metadata(fields.pop(METADATA_KEY, {}), shard, faults)
    data_start = LENGTH_BYTES + length
    tensors: dict[str, TensorEntry] = {}
    for name, value in fields.items():
        try:
            entry = _entry(name, value, shard, data_start)
        except HeaderError as error:
            _note(faults, error)
            continue
        tensors[name] = entry
        fault = _extent_fault(entry)
        if fault is not None:
            _note(faults, fault)
    ordered = sorted(tensors.values(), key=lambda entry: (entry.extent.offset, entry.extent.end))
    # A tensor that was left out leaves a hole that is its own fault, already named.
    _check_layout(ordered, data_start, shard, faults, gaps=len(tensors) == len(fields))
    header = ShardHeader(
        shard=shard,
        file_bytes=file_bytes,
        header_bytes=length,
        data_bytes=max((entry.extent.end for entry in ordered), default=data_start) - data_start,
        digest=hashlib.sha256(raw[:data_start]).digest(),
        tensors=tensors,
        metadata=metadata,
    )
    size_fault = _size_fault(header, ordered)
    if size_fault is not None:
        faults.append(size_fault)
    return HeaderScan(header=header, faults=tuple(faults))


def header_length(raw: bytes | bytearray, file_bytes: int, shard: str) -> int:
    """The stated header length, once it is believable. The first 8 bytes of `raw` are enough.

    Raises: EmptyShard, HeaderCut, HeaderTooLarge.
    """
    if file_bytes == 0:
        raise EmptyShard(
            f"{shown(shard)} has no bytes", shard=shard, found=0, hint="The download never began. " + _FETCH
        )
    if len(raw) < LENGTH_BYTES:
        raise HeaderCut(
            f"{shown(shard)} has {file_bytes:,} bytes, fewer than the {LENGTH_BYTES} of a header length",
            shard=shard,
            found=file_bytes,
            expected=LENGTH_BYTES,
            hint="The download is cut short. " + _FETCH,
        )
    length = int.from_bytes(raw[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderTooLarge(
            f"{shown(shard)} states a header of {length:,} bytes in a file of {file_bytes:,}; "
            f"no header is longer than {MAX_HEADER_BYTES:,}",
            shard=shard,
            found=length,
            expected=MAX_HEADER_BYTES,
            hint=_FOREIGN,
        )
    if LENGTH_BYTES + length > file_bytes:
        raise HeaderCut(
            f"{shown(shard)}: the header ends at byte {LENGTH_BYTES + length:,}, the file at {file_bytes:,}",
            shard=shard,
            found=file_bytes,
            expected=LENGTH_BYTES + length,
            hint="The download is cut short, inside the header. " + _FETCH,
        )
    return length


def _read_raw(path: Path, shard: str) -> tuple[bytes, int]:
    """The length and header bytes, and the file's size. Reads nothing past the header."""
    try:
        # Non-blocking: opening a pipe that a stranger put in place of a shard would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise missing(path, shard) from None
    except OSError as error:
        raise DriveError.of(error, path, None) from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise NotAFile(
                f"{shown(shard)} is a {_file_kind(facts.st_mode)}, not a file",
                shard=shard,
                found=_file_kind(facts.st_mode),
                expected="file",
                hint="Remove it and fetch the shard.",
            )
        raw = bytearray(_pread(fd, LENGTH_BYTES, 0, path))
        end = LENGTH_BYTES + header_length(raw, facts.st_size, shard)
        n_objects = 0
        while len(raw) < end:
            piece = _pread(fd, min(_PIECE_BYTES, end - len(raw)), len(raw), path)
            if not piece:
                break
            raw += piece
            n_objects += piece.count(b"{")
            _check_counts(len(raw) - LENGTH_BYTES, n_objects, shard)
        return bytes(raw), facts.st_size
    finally:
        os.close(fd)


def _pread(fd: int, n_bytes: int, offset: int, path: Path) -> bytes:
    try:
        return os.pread(fd, n_bytes, offset)
    except OSError as error:
        raise DriveError.of(error, path, offset) from error


def plausible_counts(header: bytes, shard: str) -> tuple[int, int]:
    """Objects in a header, and the values they may hold, before any of it becomes a Python object.

    Raises: TooManyTensors, HeaderTooLarge.
    """
    n_objects = count_up_to(header, b"{", MAX_TENSORS + 2)
    _check_counts(len(header), n_objects, shard)
    return n_objects, _SPARE_VALUES + n_objects * (MAX_DIMS + 8)


def _check_counts(n_bytes: int, n_objects: int, shard: str) -> None:
    """Refuse a header that no real shard has, long before 100 MB of it are in memory or in Python objects.

    Raises: TooManyTensors, HeaderTooLarge.
    """
    if n_objects > MAX_TENSORS + 2:  # the header itself and the metadata are objects too
        raise TooManyTensors(
            f"{shown(shard)}: the header has more than {MAX_TENSORS:,} entries",
            shard=shard,
            found=n_objects,
            expected=MAX_TENSORS,
            hint=_FOREIGN,
        )
    allowed = SPARE_BYTES + MAX_ENTRY_BYTES * n_objects
    if n_bytes > allowed:
        raise HeaderTooLarge(
            f"{shown(shard)}: {n_bytes:,} bytes of header hold {n_objects:,} entries, which account for {allowed:,}",
            shard=shard,
            found=n_bytes,
            expected=allowed,
            hint=_FOREIGN,
        )


def missing(path: Path, shard: str) -> MissingShard:
    """The error for a shard that is not there; a link to nothing is told apart."""
    if path.is_symlink():
        target = str(path.readlink())
        return BrokenLink(
            f"{shown(shard)} is a link to {shown(target)}, which is not there",
            shard=shard,
            found=target,
            hint="The download cache was cleaned or moved. Fetch this shard again.",
        )
    return MissingShard(f"{shown(shard)} is missing", shard=shard, hint="Fetch this shard, then run `artesian audit`.")


def _file_kind(mode: int) -> str:
    for name in ("DIR", "FIFO", "SOCK", "CHR", "BLK"):
        if getattr(stat, f"S_IS{name}")(mode):
            return {"DIR": "folder", "FIFO": "pipe", "SOCK": "socket"}.get(name, "device")
    return "special file"


def _decode(header: bytes, shard: str) -> dict[str, Any]:
    if not header.startswith(b"{"):
        # The format demands it, and it spares parsing what is surely something else.
        raise HeaderNotJson(f"{shown(shard)}: the header does not begin with '{{'", shard=shard, hint=_FOREIGN)
    n_objects, n_values = plausible_counts(header, shard)
    try:
        return strict_object(header, max_objects=n_objects, max_values=n_values)
    except RefusedJsonError as refused:
        kinds: dict[str, type[HeaderError]] = {"text": HeaderNotText, "key": DuplicateKey, "count": TooManyTensors}
        raise kinds.get(refused.reason, HeaderNotJson)(
            f"{shown(shard)}: the header {refused}",
            shard=shard,
            tensor=str(refused.found) if refused.reason == "key" else None,
            found=refused.found,
            expected=refused.expected,
            hint=_FOREIGN,
        ) from None


def _metadata(value: Any, shard: str, faults: list[StorageError]) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    _note(
        faults,
        BadMetadata(f"{shown(shard)}: {METADATA_KEY} is not a map from text to text", shard=shard, hint=_FOREIGN),
    )
    return {}


def _note(faults: list[StorageError], fault: StorageError) -> None:
    if len(faults) < MAX_FAULTS:
        faults.append(fault)


def _entry(name: str, value: Any, shard: str, data_start: int) -> TensorEntry:
    """One entry whose fields make sense by themselves. Raises: HeaderError."""
    if not name or len(name) > MAX_NAME_CHARS:
        raise _refused(BadTensorName, name, shard, f"has a name of {len(name):,} characters", len(name), MAX_NAME_CHARS)
    if not name.isprintable():
        raise _refused(BadTensorName, name, shard, "has unprintable characters in its name", ascii(name))
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        found = ", ".join(sorted(value)[:8]) if isinstance(value, dict) else type(value).__name__
        raise _refused(BadTensorEntry, name, shard, "is not described by exactly dtype, shape and data_offsets", found)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise _refused(BadTensorEntry, name, shard, "has a dtype that is not text", type(dtype).__name__, "text")
    # `type(...) is int` throughout: a bool is an int to isinstance, and no size.
    if type(shape) is not list or any(type(size) is not int for size in shape):
        raise _refused(BadTensorEntry, name, shard, "has a shape that is not a list of whole numbers")
    if type(offsets) is not list or [type(offset) for offset in offsets] != [int, int]:
        raise _refused(BadTensorEntry, name, shard, "has data_offsets that are not two whole numbers")
    if len(shape) > MAX_DIMS:
        raise _refused(BadShape, name, shard, f"has {len(shape):,} dimensions", len(shape), MAX_DIMS)
    for size in shape:
        if not 0 <= size < _INT64:
            raise _refused(BadShape, name, shard, f"has a dimension of {size:,}", size, _INT64)
    begin, end = offsets
    if begin < 0 or end < begin:
        raise _refused(BadOffsets, name, shard, f"begins at {begin:,} and ends at {end:,}", begin, end)
    if data_start + end >= _INT64:
        raise _refused(BadOffsets, name, shard, f"ends at {end:,}, beyond any file", end, _INT64)
    extent = Extent(shard=shard, offset=data_start + begin, length=end - begin)
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), extent=extent)


def _refused(
    kind: type[HeaderError], name: str, shard: str, why: str, found: object = None, expected: object = None
) -> HeaderError:
    message = f"{shown(shard)}: tensor {shown(name)!r} {why}"
    return kind(message, shard=shard, tensor=name, found=found, expected=expected, hint=_FOREIGN)


def _extent_fault(entry: TensorEntry) -> HeaderError | None:
    """Why the entry's dtype and shape do not make its extent, or None when they do."""
    shard, name, found = entry.extent.shard, entry.name, entry.extent.length
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        return _refused(UnknownDtype, name, shard, f"has the unknown dtype {shown(entry.dtype)!r}", entry.dtype)
    for size in entry.shape:
        bits *= size  # at most MAX_DIMS numbers of 63 bits
    if bits == found * 8:
        return None
    expected = bits // 8 if bits % 8 == 0 else bits / 8
    stated = f"{expected:,}" if bits < _INT64 * 8 else f"2^{bits.bit_length() - 4} or more"
    why = f"is {entry.dtype} {list(entry.shape)}, which is {stated} bytes; its extent has {found:,}"
    return _refused(ExtentMismatch, name, shard, why, found, expected)


def _check_layout(
    ordered: list[TensorEntry], data_start: int, shard: str, faults: list[StorageError], *, gaps: bool
) -> None:
    """Note tensors (sorted by offset) that overlap, and bytes before or between them that belong to none."""
    end, last = data_start, None
    for entry in ordered:
        start = entry.extent.offset
        if start < end and last is not None:
            why = f"begins at byte {start:,}, before {shown(last.name)!r} ends at {end:,}"
            _note(faults, _refused(OverlappingTensors, entry.name, shard, why, start, end))
        elif start > end and gaps:
            why = f"begins at byte {start:,}, and {start - end:,} bytes before it belong to no tensor"
            _note(faults, _refused(GapInData, entry.name, shard, why, start, end))
        if entry.extent.end >= end:
            end, last = entry.extent.end, entry


def _size_fault(header: ShardHeader, ordered: list[TensorEntry]) -> StorageError | None:
    shard, size, expected = header.shard, header.file_bytes, header.expected_bytes
    if size < expected:
        first = next(entry for entry in ordered if entry.extent.end > size)
        return TruncatedShard(
            f"{shown(shard)} is {expected - size:,} bytes short: tensor {shown(first.name)!r} ends at byte "
            f"{first.extent.end:,}, the file at {size:,} of {expected:,}",
            shard=shard,
            tensor=first.name,
            found=size,
            expected=expected,
            hint="The download is cut short. " + _FETCH,
        )
    if size > expected:
        return ForeignTail(
            f"{shown(shard)} goes on for {size - expected:,} bytes after its data: {size:,} bytes, not {expected:,}",
            shard=shard,
            found=size,
            expected=expected,
            hint="The file was overwritten or joined with another. " + _FETCH,
        )
    return None
