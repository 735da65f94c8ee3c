"""`model.safetensors.index.json`: which shard should hold which tensor. A claim to be checked, never a source of paths.

Shard names from it are joined to a folder, so a name that could leave the folder is refused here, before any file is
looked at. Symbolic links that leave the folder are fine (a hub cache is made of them): only names are judged.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import (
    BadIndex,
    DriveError,
    EmptyIndex,
    NoIndex,
    UnsafeShardName,
    shown,
)
from storage.strictjson import RefusedJsonError, strict_object

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64_000_000
"""The index of the release has about 8 MB."""
MAX_INDEX_TENSORS = 400_000
MAX_SHARDS = 10_000
MAX_SHARD_NAME_BYTES = 255

_FETCH = f"Fetch {INDEX_NAME} again; without the file, what is there is taken from the shards' headers."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """What the index file states."""

    path: Path
    weight_map: Mapping[str, str]
    """Tensor name to shard name; every shard name is safe to join to the folder."""
    shards: Mapping[str, frozenset[str]]
    """Shard name to the tensors it should hold, in order of name."""
    total_bytes: int | None
    """`metadata.total_size`, the payload bytes of all tensors; None when the index states none."""


def read_index(folder: Path) -> ShardIndex:
    """The index of the checkpoint in `folder`.

    Raises: NoIndex, EmptyIndex, BadIndex, UnsafeShardName; DriveError when the system refuses to read it.
    """
    path = folder / INDEX_NAME
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # opening a pipe in its place would wait for ever
            raise _bad("is not a file", found=stat.filemode(mode)[0], expected="-")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_INDEX_BYTES:
                raise _bad(f"has {size:,} bytes, more than {MAX_INDEX_BYTES:,}", found=size, expected=MAX_INDEX_BYTES)
            data = file.read(size)
    except FileNotFoundError:
        raise NoIndex(
            f"{shown(str(folder))} has no {INDEX_NAME}: whether every shard is there cannot be decided",
            shard=INDEX_NAME,
            hint=f"Fetch {INDEX_NAME} to have completeness checked.",
        ) from None
    except OSError as error:
        raise DriveError.of(error, path, None) from error
    return parse_index(data, path)


def parse_index(data: bytes, path: Path) -> ShardIndex:
    """Parse the bytes of an index file. Raises: EmptyIndex, BadIndex, UnsafeShardName."""
    if not data.strip():
        raise EmptyIndex(f"{INDEX_NAME} is empty ({len(data):,} bytes)", shard=INDEX_NAME, found=len(data), hint=_FETCH)
    try:
        stated = strict_object(data, max_objects=100, max_values=MAX_INDEX_TENSORS)
    except RefusedJsonError as refused:
        raise _bad(str(refused), found=refused.found, expected=refused.expected) from None
    weight_map = stated.get("weight_map")
    if not isinstance(weight_map, dict):
        raise _bad("has no weight_map from tensor to shard", found=type(weight_map).__name__, expected="object")
    if not weight_map:
        raise EmptyIndex(f"{INDEX_NAME} lists no tensor", shard=INDEX_NAME, found=0, hint=_FETCH)
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise _bad(f"assigns {shown(tensor)!r} to something that is not text", tensor, type(shard).__name__, "text")
        if shard not in shards:
            _check_name(shard, tensor)
            shards[shard] = set()
            if len(shards) > MAX_SHARDS:
                raise _bad(f"names more than {MAX_SHARDS:,} shards", found=len(shards), expected=MAX_SHARDS)
        shards[shard].add(tensor)
    return ShardIndex(
        path=path,
        weight_map=weight_map,
        shards={shard: frozenset(shards[shard]) for shard in sorted(shards)},
        total_bytes=_total(stated.get("metadata")),
    )


def _total(metadata: Any) -> int | None:
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some writers store the total as a float; one that is no whole positive number states nothing.
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 1 << 63:
        return None
    return int(total) if total == int(total) else None


def unsafe_reason(name: str) -> str | None:
    """Why a shard name must not be joined to a folder, or None when it may be."""
    if not name:
        return "is empty"
    if not name.isprintable():
        return "has unprintable characters"
    if "\\" in name:
        return "has a backslash"
    if name.startswith("/"):
        return "is an absolute path"
    if len(name) > 1 and name[1] == ":":
        return "names a drive"
    parts = name.split("/")
    if ".." in parts:
        return "leaves the model's folder"
    if "" in parts or "." in parts:
        return "is not a plain relative path"
    longest = max(len(os.fsencode(part)) for part in parts)
    if longest > MAX_SHARD_NAME_BYTES or len(parts) > 8:
        return "is longer than a file name can be"
    return None


def _check_name(shard: str, tensor: str) -> None:
    reason = unsafe_reason(shard)
    if reason is not None:
        raise UnsafeShardName(
            f"{INDEX_NAME} assigns {shown(tensor)!r} to the shard {shown(shard)!r}, which {reason}",
            shard=shard,
            tensor=tensor,
            found=shard,
            hint=f"Do not use this {INDEX_NAME}: no checkpoint needs such a name. Fetch it from the model's own page.",
        )


def _bad(why: str, tensor: str | None = None, found: object = None, expected: object = None) -> BadIndex:
    return BadIndex(f"{INDEX_NAME} {why}", shard=INDEX_NAME, tensor=tensor, found=found, expected=expected, hint=_FETCH)
