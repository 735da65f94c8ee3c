"""Small shards written byte by byte, so that every field of a header can be wrong on purpose."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
BYTES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4}


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def raw_header(header: bytes | Mapping[str, Any] | str) -> bytes:
    """The length and the header, of JSON text, bytes, or an object to make text of."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    data = header.encode() if isinstance(header, str) else bytes(header)
    return len(data).to_bytes(8, "little") + data


def payload(length: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place, so that a wrong offset is seen."""
    return bytes((seed * 31 + i * 7 + (i >> 8) * 13) & 0xFF for i in range(length))


def shard_bytes(tensors: Mapping[str, tuple[str, Sequence[int]]], *, seed: int = 0, metadata: Any = None) -> bytes:
    """A whole valid shard with the tensors laid one after another in the order given."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = BYTES[dtype]
        for size in shape:
            n_bytes *= size
        header[name] = entry(dtype, shape, end, end + n_bytes)
        end += n_bytes
    return raw_header(header) + payload(end, seed)


def write_checkpoint(
    folder: Path, shards: Mapping[str, Mapping[str, tuple[str, Sequence[int]]]], *, index: bool = True
) -> dict[str, bytes]:
    """A folder of whole shards and, unless told otherwise, their index. Returns each shard's bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: shard_bytes(tensors, seed=i) for i, (name, tensors) in enumerate(shards.items())}
    for name, data in made.items():
        (folder / name).write_bytes(data)
    if index:
        write_index(folder, {tensor: shard for shard, tensors in shards.items() for tensor in tensors})
    return made


def write_index(folder: Path, weight_map: Mapping[str, Any], metadata: Any = None) -> None:
    stated: dict[str, Any] = {"weight_map": dict(weight_map)}
    if metadata is not None:
        stated["metadata"] = metadata
    (folder / INDEX).write_text(json.dumps(stated))
