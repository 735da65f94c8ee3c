"""Kept states in a file, so that a conversation goes on tomorrow without being read again.

A cache, never the truth: whatever does not agree is refused by name, and the conversation is read again. The one thing
a reader would get wrong: no part of the file says how long it is. Lengths follow from the model's config and the counts
in the header, and the file's own length has to be their sum before any part is read.

The file: magic, version, length and digest of the header; the header, JSON: the identity, and the counts of each piece;
then the parts of each piece, every one followed by its digest. Numbers are little-endian.
"""

import hashlib
import json
import os
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import DamagedState, SavedStateError
from engine.kept import Piece
from engine.schedule import NO_OWNER
from engine.state import KINDS, Tail

MAGIC = b"ARTSTATE"
VERSION = 2
_HEAD = struct.Struct("<8sII16s")
_DIGEST_BYTES = 16
_WRITE_BYTES = 1 << 22
"""Most bytes given to the system at once."""
_MOST_HEADER_BYTES = 1 << 24
_MOST_TAILS = 4
"""Positions at which a saved conversation can be taken up, the newest ones: the ends of two turns, and where their
replies began.
"""
_READ_AGAIN = "The conversation is read again instead."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a state's numbers depend on beside its ids."""

    fingerprint: str
    """Of the checkpoint's headers and configs."""
    payload: str
    """Of samples of its payload."""
    tokenizer: str
    """Of its tokenizer, by which ids become rows of the engram tables."""
    numerics: str
    index_owner: str
    kernels: str
    """The path the arithmetic takes."""


_NAMES = {
    "fingerprint": "model",
    "payload": "model",
    "tokenizer": "model",
    "index_owner": "index owner",
    "kernels": "kernel path",
}
"""What users call a field, where that is not its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """What the header says of one piece."""

    n_ids: int
    index_owner: int | None = None
    """None where no tail is saved."""
    draft_keys: int | None = None
    """How many keys of each draft stage the tail has; None without a draft head."""
    narrow: tuple[int, ...] = ()
    """Which parts, by number, are stored as bf16: those that lose nothing by it."""


class _Part(NamedTuple):
    """An array of a piece as it lies in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        n_bytes = self.dtype.itemsize
        for size in self.shape:
            n_bytes *= size
        return n_bytes


def write_pieces(path: Path, pieces: Callable[[], Iterator[Piece]], identity: Identity) -> int:
    """Write the pieces that follow each other from an empty conversation on; the bytes of the file.

    `pieces` gives them one at a time, and is called twice: a long conversation is never copied whole.
    Raises: SavedStateError when it cannot be written; the file is then what it was before.
    """
    temporary = None
    try:
        # Made with mode 0600, and beside the file, so that taking its place is one step.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb", buffering=0) as file:
            counts = _count(pieces())
            _write_header(file, counts, identity)
            for count, piece in zip(counts, pieces(), strict=True):
                for number, part in enumerate(_parts_of(piece, with_tail=count.index_owner is not None)):
                    _write_part(file, part.to(torch.bfloat16) if number in count.narrow else part)
            n_bytes = file.tell()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise SavedStateError(f"{path}: the state cannot be saved: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return n_bytes


def read_pieces(path: Path, config: ModelConfig, identity: Identity) -> list[Piece]:
    """What `write_pieces` wrote of this model in this mode.

    Raises: DamagedState; SavedStateError when it cannot be read, or is of another model, mode or version.
    """
    try:
        # Not to wait for the writer of a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SavedStateError(f"{path} is not a file", hint=_READ_AGAIN)
            counts = _read_header(path, file, config, identity)
            layouts, start = [], 0
            for count in counts:
                layouts.append(_layout(count, start, config))
                start += count.n_ids
            wanted = file.tell() + sum(part.n_bytes + _DIGEST_BYTES for layout in layouts for part in layout)
            if wanted != status.st_size:
                raise _damaged(path, f"it has {status.st_size:,} bytes, {wanted:,} were written")
            return [
                _piece(path, count, [_read_part(path, file, part) for part in layout], config)
                for count, layout in zip(counts, layouts, strict=True)
            ]
    except OSError as error:
        what = f"{path}: the saved state cannot be read: {error.strerror or error}"
        raise SavedStateError(what, hint=_READ_AGAIN) from error


def _count(pieces: Iterator[Piece]) -> list[_Counts]:
    """What the header says of each piece: the newest tails are saved, and narrow what can be."""
    counts = []
    for piece in pieces:
        tail = piece.tail
        narrow = tuple(
            number
            for number, part in enumerate(_parts_of(piece, with_tail=tail is not None))
            if part.dtype == torch.bfloat16
            or (part.dtype == torch.float32 and torch.equal(part.to(torch.bfloat16).float(), part))
        )
        draft_keys = None if tail is None or tail.draft is None else tail.draft.shape[1]
        counts.append(
            _Counts(
                n_ids=len(piece.ids),
                index_owner=None if tail is None else tail.index_owner,
                draft_keys=draft_keys,
                narrow=narrow,
            )
        )
    with_tail = [i for i, count in enumerate(counts) if count.index_owner is not None]
    for i in with_tail[:-_MOST_TAILS]:
        counts[i] = replace(counts[i], index_owner=None, draft_keys=None)
    return counts


def _parts_of(piece: Piece, *, with_tail: bool) -> list[Tensor]:
    """A piece's arrays in the order of `_layout`."""
    parts = [torch.from_numpy(piece.ids), torch.frombuffer(bytearray(piece.kinds), dtype=torch.uint8)]
    for layer in sorted(piece.rows):
        parts += piece.rows[layer]
    if with_tail:
        assert piece.tail is not None
        parts.append(piece.tail.windows)
        for layer in sorted(piece.tail.open_groups):
            parts += piece.tail.open_groups[layer]
        if piece.tail.draft is not None:
            parts.append(piece.tail.draft)
    return parts


def _layout(count: _Counts, start: int, config: ModelConfig) -> list[_Part]:
    """The arrays of a piece that begins at position `start`, as they lie in the file."""
    end, hd = start + count.n_ids, config.head_dim
    shapes: list[tuple[int, ...]] = []
    for layer in sorted(config.kv_source_layers):
        n_groups = end // config.ratio(layer) - start // config.ratio(layer)
        shapes += [(n_groups, hd), (n_groups, config.index_head_dim)]
    if count.index_owner is not None:
        shapes.append((config.n_layers, min(end, config.window_size), hd))
        for layer in sorted(config.kv_source_layers):
            if config.ratio(layer) > 1:
                shapes += [(end % config.ratio(layer), hd)] * 2
        if count.draft_keys is not None:
            shapes.append((config.n_mtp_layers, count.draft_keys, hd))
    parts = [_Part(torch.int32, (count.n_ids,)), _Part(torch.uint8, (count.n_ids,))]
    for shape in shapes:
        parts.append(_Part(torch.bfloat16 if len(parts) in count.narrow else torch.float32, shape))
    return parts


def _piece(path: Path, count: _Counts, parts: Sequence[Tensor], config: ModelConfig) -> Piece:
    """A piece from its arrays. Raises: DamagedState on values no state has."""
    ids, kinds, *rest = parts
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= config.vocab_size or int(kinds.max()) not in KINDS.values():
        raise _damaged(path, "a token id or its kind is out of range")
    left = iter(part.float() for part in rest)
    sources = sorted(config.kv_source_layers)
    rows = {layer: (next(left), next(left)) for layer in sources}
    tail = None
    if count.index_owner is not None:
        windows = next(left)
        waiting = {layer: (next(left), next(left)) for layer in sources if config.ratio(layer) > 1}
        draft = next(left) if count.draft_keys is not None else None
        tail = Tail(index_owner=count.index_owner, windows=windows, open_groups=waiting, draft=draft)
    return Piece(ids=ids.numpy(), kinds=kinds.numpy().tobytes(), tail=tail, rows=rows)


def _write_header(file: BinaryIO, counts: Sequence[_Counts], identity: Identity) -> None:
    header = json.dumps({"identity": asdict(identity), "pieces": [asdict(count) for count in counts]}).encode()
    _write(file, _HEAD.pack(MAGIC, VERSION, len(header), _digest(header)) + header)


def _read_header(path: Path, file: BinaryIO, config: ModelConfig, identity: Identity) -> list[_Counts]:
    """The counts. Raises: DamagedState; SavedStateError for what is of another version, model or mode."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _damaged(path, "it ends in its header")
    magic, version, n_bytes, digest = _HEAD.unpack(head)
    if magic != MAGIC:
        raise _damaged(path, "it does not begin as a saved state does")
    if version != VERSION:
        what = f"{path}: the saved state has version {version}, this is {VERSION}"
        raise SavedStateError(what, hint=_READ_AGAIN)
    header = file.read(n_bytes) if n_bytes <= _MOST_HEADER_BYTES else b""
    if _digest(header) != digest:
        raise _damaged(path, "its header does not have its checksum")
    try:
        content: dict[str, Any] = json.loads(header)
        saved = Identity(**content["identity"])
        counts = [_Counts(**(piece | {"narrow": tuple(piece["narrow"])})) for piece in content["pieces"]]
        whole = all(_is_sound(count, config) for count in counts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged(path, "its header cannot be read") from None
    for field in fields(Identity):
        ours, theirs = getattr(identity, field.name), getattr(saved, field.name)
        if ours != theirs:
            what = _NAMES.get(field.name, field.name)
            told = f" ({theirs}, not {ours})" if what != "model" else ""
            raise SavedStateError(f"{path}: the saved state is of another {what}{told}", hint=_READ_AGAIN)
    if not counts or not whole:
        raise _damaged(path, "a count in its header is out of range")
    return counts


def _is_sound(count: _Counts, config: ModelConfig) -> bool:
    """Whether a piece of these counts could be."""
    most_ids = 1 << 40  # far beyond any context; a file has to be as long as its counts say anyway
    owners = (None, NO_OWNER, *config.kv_source_layers)
    drafts = count.draft_keys is None or (
        type(count.draft_keys) is int and 0 <= count.draft_keys <= config.window_size and config.n_mtp_layers > 0
    )
    return type(count.n_ids) is int and 1 <= count.n_ids <= most_ids and count.index_owner in owners and drafts


def _write_part(file: BinaryIO, part: Tensor) -> None:
    data = _bytes_of(part.contiguous())
    _write(file, data)
    _write(file, _digest(data))


def _read_part(path: Path, file: BinaryIO, part: _Part) -> Tensor:
    values = torch.empty(part.shape, dtype=part.dtype)
    data = _bytes_of(values)
    done = 0
    while done < len(data):
        n = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not n:
            raise _damaged(path, "it was cut while it was read")
        done += n
    if file.read(_DIGEST_BYTES) != _digest(data):
        raise _damaged(path, f"the bytes before {file.tell():,} do not have their checksum")
    return values


def _bytes_of(values: Tensor) -> memoryview:
    """The memory of an array."""
    return values.view(-1).view(torch.uint8).numpy().data if values.numel() else memoryview(b"")


def _write(file: BinaryIO, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view[:_WRITE_BYTES]) :]


def _digest(data: "bytes | memoryview") -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _damaged(path: Path, how: str) -> DamagedState:
    return DamagedState(f"{path}: the saved state is damaged: {how}", hint=_READ_AGAIN)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
