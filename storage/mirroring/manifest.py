"""The record beside the copies of a mirror folder: what was copied from where, and the hash of every block.

With it a copy can be checked without its source, a folder can be told from one whose drive is not mounted, and undoing
a mirror removes only what was made here.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from storage.errors import BadManifest, WriteError, shown
from storage.mirroring.files import WriteCalls

NAME = "artesian-mirror.json"
_VERSION = 1
_MAX_BYTES = 64 << 20

Kind = Literal["mirror", "split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedShard:
    """One complete and verified copy."""

    file_bytes: int
    header_sha256: str
    block_bytes: int
    blocks: tuple[str, ...]
    """SHA-256 of every block of the source as it was read."""
    source_mtime_ns: int | None = None
    """When the source was written last, by its file; None where no record was kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a folder of copies holds."""

    kind: Kind
    """Copies of shards that are elsewhere too, or the only ones there are."""
    fingerprint: str
    """Of the checkpoint: `storage.fingerprint`."""
    source: str
    """The checkpoint's folder when it was copied."""
    drive: str
    """Name of the drive it was copied to."""
    shards: Mapping[str, CopiedShard] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's record, None when there is none. Raises: BadManifest."""
    path = folder / NAME
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _MAX_BYTES:
            raise BadManifest(f"{shown(str(path))} is larger than any such record", hint=_HINT)
        content = json.loads(path.read_bytes())
        return _parsed(content)
    except OSError as error:
        raise BadManifest(f"{shown(str(path))} cannot be read: {error.strerror or error}", hint=_HINT) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"{shown(str(path))} is no record of a mirror: {shown(str(error))}", hint=_HINT) from error


_HINT = "Remove the file to have the folder judged by its shards alone; nothing else is lost."


def write_manifest(folder: Path, manifest: Manifest, writes: WriteCalls) -> None:
    """Replace the folder's record, so that a crash leaves the old or the new one. Raises: WriteError."""
    content = {"artesian": "mirror", "version": _VERSION, **asdict(manifest)}
    path = folder / NAME
    try:
        fd, name = tempfile.mkstemp(prefix=f".{NAME}.", dir=folder)
        temporary = Path(name)
        try:
            data = memoryview(json.dumps(content, indent=1).encode())
            os.fchmod(fd, 0o644)
            writes.write_all(fd, data, 0)
            writes.sync(fd)
            writes.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            writes.close(fd)
        writes.sync_folder(folder)
    except OSError as error:
        raise WriteError.of(error, path, "write") from error


def remove_manifest(folder: Path, writes: WriteCalls) -> None:
    """Take the record away. Raises: WriteError."""
    path = folder / NAME
    try:
        writes.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteError.of(error, path, "remove") from error


def _parsed(content: Any) -> Manifest:
    if content["artesian"] != "mirror" or content["version"] != _VERSION:
        raise ValueError("another version")
    if content["kind"] not in ("mirror", "split"):
        raise ValueError("unknown kind")
    shards = {}
    for shard, one in content["shards"].items():
        if shard != Path(shard).name or shard in ("", ".", ".."):
            raise ValueError(f"the shard name {shard!r} leaves the folder")
        blocks = tuple(one["blocks"])
        numbers = (one["file_bytes"], one["block_bytes"])
        if not all(isinstance(text, str) for text in (*blocks, one["header_sha256"])):
            raise ValueError("a hash is no text")
        if not all(type(number) is int and number > 0 for number in numbers):
            raise ValueError("a size is no positive number")
        if len(blocks) != -(-one["file_bytes"] // one["block_bytes"]):
            raise ValueError("the blocks do not add up to the file")
        shards[shard] = CopiedShard(
            file_bytes=one["file_bytes"],
            header_sha256=one["header_sha256"],
            block_bytes=one["block_bytes"],
            blocks=blocks,
            source_mtime_ns=_moment(one.get("source_mtime_ns")),
        )
    texts = {name: content[name] for name in ("fingerprint", "source", "drive")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("a name is no text")
    return Manifest(kind=content["kind"], shards=shards, **texts)


def _moment(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ValueError("a time is no number")
    return value


def with_shard(manifest: Manifest, shard: str, copied: CopiedShard) -> Manifest:
    """The record with one copy more."""
    return replace(manifest, shards={**manifest.shards, shard: copied})


def without_shard(manifest: Manifest, shard: str) -> Manifest:
    """The record with one copy less."""
    return replace(manifest, shards={name: one for name, one in manifest.shards.items() if name != shard})
