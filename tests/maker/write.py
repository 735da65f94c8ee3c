"""Geometry and seed to a checkpoint folder, byte by byte, with holes where nobody looks.

Each tensor has a generator of its own, seeded by its name, so that a tensor's bytes depend neither on the others nor on
the order of writing. Values are sums of raw bits of PCG64, which NumPy promises to keep, scaled by exact steps: a seed
whose choices have margins keeps them on every machine.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.maker.codes import Bytes, Floats, encode_bf16, encode_fp4, encode_fp8, encode_rows
from tests.maker.geometry import TOKENIZERS, Geometry
from tests.maker.inventory import Weight, shards

ITEM_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
"""Bytes of one element, by the shard headers' dtype names."""


def make(
    folder: Path, geometry: Geometry, *, seed: int = 0, tweak: Callable[[Weight], Weight | None] = lambda weight: weight
) -> Path:
    """Write a checkpoint in the released format and return its folder.

    `tweak` may give a weight another mean or deviation. Where it returns None the weight stays unwritten: it reads as
    zero bytes and takes no space where the file system has sparse files. A hole in a scale means 2^-127, so such a
    weight is zero, not undefined.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inference").mkdir(exist_ok=True)
    _write_json(folder / "config.json", geometry.nested())
    _write_json(folder / "inference" / "config.json", geometry.flat())
    source = TOKENIZERS[geometry.vocab_size]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source.parent / name, folder / name)
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    contents = list(shards(geometry))
    weight_map: dict[str, str] = {}
    total = 0
    for number, weights in enumerate(contents, start=1):
        shard = f"model-{number:05d}-of-{len(contents):05d}.safetensors"
        total += _write_shard(folder / shard, weights, seed, tweak)
        weight_map.update({name: shard for weight in weights for name, _, _ in weight.tensors()})
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)
    return folder


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), "utf-8")


def _write_shard(path: Path, weights: list[Weight], seed: int, tweak: Callable[[Weight], Weight | None]) -> int:
    """Write one shard; returns the bytes of its data section."""
    stored = sorted(
        ((name, dtype, shape) for weight in weights for name, dtype, shape in weight.tensors()),
        key=lambda tensor: (-ITEM_BYTES[tensor[1]], tensor[1], tensor[0]),
    )
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for name, dtype, shape in stored:
        start, end = end, end + ITEM_BYTES[dtype] * math.prod(shape)
        offsets[name] = start
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            tweaked = tweak(weight)
            if tweaked is None:
                continue
            for (name, _, _), payload in zip(weight.tensors(), _encoded(tweaked, seed), strict=True):
                file.seek(8 + len(text) + offsets[name])
                file.write(payload)
        file.truncate(8 + len(text) + end)
    return end


def _encoded(weight: Weight, seed: int) -> list[bytes]:
    """Payload of each of the weight's tensors."""
    bits = np.random.PCG64([seed, zlib.crc32(weight.name.encode())])
    x = weight.mean + weight.std * _bell(bits, weight.shape)
    if weight.kind == "f32":
        return [x.astype("<f4").tobytes()]
    if weight.kind == "bf16":
        return [encode_bf16(x).astype("<u2").tobytes()]
    encode: Callable[[Floats], tuple[Bytes, Bytes]]
    encode = {"fp8": encode_fp8, "fp4": encode_fp4, "rows": encode_rows}[weight.kind]
    return [codes.tobytes() for codes in encode(x * _uneven(bits, x.shape, weight.kind))]


def _bell(bits: np.random.PCG64, shape: tuple[int, ...]) -> Floats:
    """Numbers of mean 0 and mean square 1, nearly normal: sums of four uniform ones of 16 bits."""
    raw = bits.random_raw(math.prod(shape))
    total = sum((raw >> np.uint64(16 * part) & np.uint64(0xFFFF)).astype(np.int64) for part in range(4))
    return np.asarray((total - 131070) / 37837.0).reshape(shape)


def _uneven(bits: np.random.PCG64, shape: tuple[int, ...], kind: str) -> Floats:
    """A power of two per scale block, mean square about 1, so that a scale put in the wrong place shows."""
    n, k = shape
    tall = 32 if kind == "fp8" else 1
    blocks = (-(-n // tall), -(-k // 32))
    powers = 2.0 ** ((bits.random_raw(math.prod(blocks)) >> np.uint64(62)).astype(int).reshape(blocks) - 2) * 0.868
    return np.asarray(np.repeat(np.repeat(powers, tall, axis=0)[:n], 32, axis=1)[:, :k])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor lies."""

    path: Path
    """Its shard."""
    offset: int
    """First byte, counted from the start of the file."""
    dtype: str
    shape: tuple[int, ...]


def find(folder: Path, name: str) -> Place:
    """The place of a tensor of a made checkpoint, by its shard's header."""
    shard = folder / json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))["weight_map"][name]
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
    return Place(
        path=shard, offset=8 + length + entry["data_offsets"][0], dtype=entry["dtype"], shape=tuple(entry["shape"])
    )


def poke(folder: Path, name: str, at: int, payload: bytes) -> None:
    """Overwrite bytes of a tensor, starting at its byte `at`."""
    place = find(folder, name)
    with place.path.open("r+b") as file:
        file.seek(place.offset + at)
        file.write(payload)


def fill_rows(folder: Path, layer: int, rows: list[int], *, seed: int = 0) -> None:
    """Write values into rows of an engram table that was left a hole; a row's values depend on its number and seed."""
    name = f"layers.{layer}.engram.embed"
    width = find(folder, f"{name}.weight").shape[1]
    for row in rows:
        x = 0.8 * _bell(np.random.PCG64([seed, layer, row]), (1, width))
        codes, scale = encode_rows(x)
        poke(folder, f"{name}.weight", row * width, codes.tobytes())
        poke(folder, f"{name}.scale", row * (width // 32), scale.tobytes())


def has_sparse_files(folder: Path) -> bool:
    """Whether a hole in a file of this folder takes no space."""
    probe = folder / "sparse.probe"
    with probe.open("wb") as file:
        file.truncate(1 << 24)
    taken = probe.stat().st_blocks * 512
    probe.unlink()
    return taken < 1 << 20
