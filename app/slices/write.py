"""Puts a slice on disk: whole or not at all, in a folder that was not there, with holes for the engram tables."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import AppError, UsageError
from app.report import format_bytes
from app.slices.geometry import nested
from app.slices.payload import Payload, item_bytes
from engine.config import ModelConfig, flat
from engine.hashing import compressed_map
from engine.inventory import ExpectedTensor, Group, expected_tensors

RESERVE_BYTES = 2_000_000_000
"""Left free on the drive, whatever the slice takes: a full system drive stops more than a benchmark."""

_SYNC_BYTES = 1 << 28
"""How much may wait in the page cache before it is forced out, so that the progress shown is the drive's."""
_DTYPES = ("F32", "BF16", "F8_E8M0", "F8_E4M3", "I8")
"""The order of a released shard: wide types first, then as the safetensors writer numbers them."""


class SpaceError(AppError):
    """The drive has not the room that was asked for."""


class SparseFileError(AppError):
    """The file system would write out zeros for the engram tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShard:
    """One shard of a slice."""

    name: str
    header: bytes
    """Length, JSON and padding, as the file begins."""
    tensors: Mapping[str, ExpectedTensor]
    """In the order of the file."""
    data_bytes: int
    """Bytes behind the header."""
    hole_bytes: int
    """Those of them that stay unwritten."""

    @property
    def file_bytes(self) -> int:
        """Apparent size of the file."""
        return len(self.header) + self.data_bytes

    @property
    def disk_bytes(self) -> int:
        """What the file takes on the drive, a few blocks aside."""
        return self.file_bytes - self.hole_bytes


def slice_shards(config: ModelConfig) -> list[SliceShard]:
    """Every shard of a slice in the released order: embedding, a layer each, head, draft stages, engram tables."""
    groups: dict[tuple[int, int], dict[str, ExpectedTensor]] = {}
    for name, tensor in expected_tensors(config).items():
        groups.setdefault(_shard_of(tensor), {})[name] = tensor
    return [
        _shard(f"model-{number:05d}-of-{len(groups):05d}.safetensors", groups[key])
        for number, key in enumerate(sorted(groups), start=1)
    ]


def write_slice(
    folder: Path,
    config: ModelConfig,
    tokenizer: Mapping[str, object],
    *,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
) -> list[SliceShard]:
    """Write the slice of `config` into `folder`, which must not exist or be empty, and return its shards.

    Whatever stops it, what was written is taken away again: half a slice is of no use and looks like a whole one.

    Raises: UsageError when something is in the folder; SpaceError; SparseFileError; TokenizerError when the tokenizer
        and the config do not belong together; OSError from the drive.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(f"{folder} is not empty", hint="Name a folder that does not exist; nothing is overwritten.")
    shards = slice_shards(config)
    total = sum(shard.disk_bytes for shard in shards)
    existed = folder.exists()
    _require_space(folder, total)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _require_holes(folder)
        _write_texts(folder, config, tokenizer)
        payload, done = Payload(seed), 0
        for shard in shards:
            for n_bytes in _write_shard(folder / shard.name, shard, payload):
                done += n_bytes
                on_progress(done, total)
        weight_map = {name: shard.name for shard in shards for name in shard.tensors}
        data_bytes = sum(shard.data_bytes for shard in shards)
        index = {"metadata": {"total_size": data_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / "model.safetensors.index.json", index)
    except BaseException:
        for entry in list(folder.iterdir()):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not existed:
            folder.rmdir()
        raise
    return shards


def _shard_of(tensor: ExpectedTensor) -> tuple[int, int]:
    if tensor.group is Group.ENGRAM:
        return 4, tensor.layer or 0
    if tensor.layer is not None:
        return 1, tensor.layer
    if tensor.stage is not None:
        return 3, tensor.stage
    return (0, 0) if tensor.role == "embed.weight" else (2, 0)


def _shard(name: str, tensors: Mapping[str, ExpectedTensor]) -> SliceShard:
    ordered = dict(sorted(tensors.items(), key=lambda item: (_DTYPES.index(item[1].dtype), item[0])))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = holes = 0
    for key, tensor in ordered.items():
        n_bytes = math.prod(tensor.shape) * item_bytes(tensor.dtype)
        entries[key] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [end, end + n_bytes]}
        end += n_bytes
        holes += n_bytes if tensor.role.startswith("engram.embed.") else 0
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return SliceShard(name=name, header=header, tensors=ordered, data_bytes=end, hole_bytes=holes)


def _require_space(folder: Path, needed: int) -> None:
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(parent).free
    if needed + RESERVE_BYTES > free:
        raise SpaceError(
            f"the slice takes {format_bytes(needed)}, {format_bytes(free)} are free at {parent}"
            f" and {format_bytes(RESERVE_BYTES)} of them are left alone",
            hint="Make it smaller with --layers, --experts or --size.",
        )


def _require_holes(folder: Path) -> None:
    probe = folder / "hole"
    with probe.open("xb") as file:
        file.truncate(1 << 20)
        taken = _disk_bytes(file.fileno())
    probe.unlink()
    if taken >= 1 << 20:
        raise SparseFileError(
            f"the file system of {folder} has no sparse files, and the engram tables of a slice are 203 GB of zeros",
            hint="Use a folder on ext4, XFS, Btrfs, APFS or the like.",
        )


def _disk_bytes(fd: int) -> int:
    """What an open file takes on its drive."""
    return os.fstat(fd).st_blocks * 512


def _write_texts(folder: Path, config: ModelConfig, tokenizer: Mapping[str, object]) -> None:
    (folder / "inference").mkdir()
    _write_json(folder / "inference" / "config.json", flat(config))
    _write_json(folder / "config.json", nested(config))
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True})
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": False})
    # Read back as the engine does: refuses when its tokens fold into another number of classes than the config says.
    compressed_map(folder / "tokenizer.json", n_classes=config.engram_compressed_vocab_size)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")


def _write_shard(path: Path, shard: SliceShard, payload: Payload) -> Iterator[int]:
    """Write one shard and yield the bytes of each step; what was written is out of the page cache at the end."""
    with path.open("xb") as file:
        file.write(shard.header)
        yield len(shard.header)
        end = len(shard.header)
        unsynced = 0
        for tensor in shard.tensors.values():
            file.seek(end)
            for piece in payload.chunks(tensor):
                file.write(piece)
                yield len(piece)
                unsynced += len(piece)
                if unsynced >= _SYNC_BYTES:
                    _flush(file.fileno(), file.flush)
                    unsynced = 0
            end += math.prod(tensor.shape) * item_bytes(tensor.dtype)
        file.flush()
        file.truncate(end)
        _flush(file.fileno(), file.flush)


def _flush(fd: int, flush: Callable[[], None]) -> None:
    """Force out what was written, and out of the page cache, so that the first measurement on the slice is cold."""
    flush()
    os.fsync(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
