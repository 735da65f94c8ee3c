"""Damage for checkpoints: one fault at a time, in a header, an index, a config or a file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
INDEX = "model.safetensors.index.json"

Json = dict[str, Any]


def copy_of_tiny(folder: Path) -> Path:
    """A writable copy of the fixture's checkpoint."""
    return Path(shutil.copytree(TINY, folder / "tiny-a", copy_function=shutil.copyfile))


def shard(number: int) -> str:
    """Name of a shard of the fixture: 1 vision, 2 embedding, 3..10 layers, 11 head, 12..14 stages, 15 and 16 tables."""
    return f"model-{number:05d}-of-00016.safetensors"


def shard_with(folder: Path, tensor: str) -> Path:
    """The file that holds a tensor, by the index."""
    weight_map: Json = json.loads((folder / INDEX).read_text())["weight_map"]
    return folder / weight_map[tensor]


def edit_header(path: Path, edit: Callable[[Json], object]) -> None:
    """Change the header of a shard and keep its data; offsets count from the header's end, so they stay true."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    edit(header)
    path.write_bytes(shard_bytes(header, raw[8 + length :]))


def shard_bytes(header: Json, data: bytes = b"") -> bytes:
    """A shard file: length, header padded to 8 bytes, data."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def edit_json(path: Path, edit: Callable[[Json], object]) -> None:
    """Change a JSON file in place."""
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def edit_tensor(folder: Path, tensor: str, **fields: Any) -> None:
    """Change the entry of one tensor in its shard's header."""
    edit_header(shard_with(folder, tensor), lambda header: header[tensor].update(fields))


def rename_tensor(folder: Path, old: str, new: str) -> None:
    """Rename a tensor in its shard's header; the index keeps the old name."""
    edit_header(shard_with(folder, old), lambda header: header.update({new: header.pop(old)}))


def set_in_configs(folder: Path, nested: str, flat: str, value: Any) -> None:
    """Set one field of the language model in both config files."""
    edit_json(folder / "config.json", lambda data: data["text_config"].update({nested: value}))
    edit_json(folder / "inference" / "config.json", lambda data: data.update({flat: value}))


def keep_beginnings(folder: Path, n_bytes: int) -> None:
    """Cut every shard to its first bytes, as a range request would fetch them."""
    for path in folder.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:n_bytes])
