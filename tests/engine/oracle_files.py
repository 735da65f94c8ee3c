"""What the oracle reads: shards to float64, token map, hash moduli. Written from the formats' description alone."""

import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Vector = NDArray[np.float64]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(codes: NDArray[np.uint8]) -> Vector:
    """float64 values of e4m3 codes; NaN for 0x7F and 0xFF."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7) / 8.0
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    return sign * np.where((codes & 0x7F) == 0x7F, np.nan, value)


def e8m0(codes: NDArray[np.uint8]) -> Vector:
    """float64 values of e8m0 codes; NaN for 255."""
    return np.where(codes == 255, np.nan, 2.0 ** (codes.astype(float) - 127))


class Weights:
    """The tensors of a checkpoint folder by name, dequantised to float64 on first use and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._where: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        self._known: dict[str, Vector] = {}
        for shard in sorted(folder.glob("*.safetensors")):
            with shard.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                for name, entry in json.loads(file.read(length)).items():
                    if name != "__metadata__":
                        self._where[name] = (shard, 8 + length, entry)

    def _raw(self, name: str, first: int | None = None) -> NDArray[Any]:
        """The stored elements of a tensor, or of its row `first` alone."""
        shard, base, entry = self._where[name]
        kind = {"F32": "<f4", "BF16": "<u2"}.get(entry["dtype"], "u1")
        shape = entry["shape"] if first is None else entry["shape"][1:]
        count = math.prod(shape)
        offset = base + entry["data_offsets"][0] + (first or 0) * count * np.dtype(kind).itemsize
        return np.fromfile(shard, dtype=kind, count=count, offset=offset).reshape(shape)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __call__(self, name: str) -> Vector:
        """A tensor as float64, scales applied."""
        if name not in self._known:
            self._known[name] = self._dequantised(name)
        return self._known[name]

    def _dequantised(self, name: str) -> Vector:
        raw, dtype = self._raw(name), self._where[name][2]["dtype"]
        if dtype == "F32":
            return raw.astype(np.float64)
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        scale = e8m0(self._raw(name.removesuffix("weight") + "scale"))
        if dtype == "I8":  # packed fp4, one scale per row and 32 columns
            values = E2M1[np.stack([raw & 15, raw >> 4], axis=-1)].reshape(raw.shape[0], -1)
            return values * np.repeat(scale, 32, axis=1)
        rows, columns = raw.shape  # fp8, one scale per 32x32 block, the last ones possibly short
        return e4m3(raw) * np.repeat(np.repeat(scale, 32, axis=0)[:rows], 32, axis=1)[:, :columns]

    def engram_row(self, prefix: str, row: int) -> Vector:
        """One row of an engram table: e4m3 with one scale per 32 columns of that row."""
        return e4m3(self._raw(prefix + "weight", row)) * np.repeat(e8m0(self._raw(prefix + "scale", row)), 32)


def fold(text: str) -> str:
    """The spelling that look-alike tokens share (section 6.1 of the model's description)."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c.lower() if c != "Σ" else "σ" for c in text if not unicodedata.category(c).startswith("M"))
    out: list[str] = []
    for c in text:
        c = " " if c in " \t\r\n" else c
        if not (c == " " and out and out[-1] == " "):
            out.append(c)
    text = "".join(out)
    return text if text == " " else text.strip()


def token_map(tokenizer_json: Path) -> list[int]:
    """Compressed id of every token id."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    numbers: dict[str, int] = {}
    result = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = str(tokenizer.id_to_token(token)) if "�" in text else fold(text) or text
        result.append(numbers.setdefault(key, len(numbers)))
    return result


def is_prime(n: int) -> bool:
    """Trial division; the moduli stay small enough for it."""
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_primes(config: dict[str, Any]) -> list[list[int]]:
    """Moduli of every engram layer's columns, by size, then head; one ascending draw over all of them."""
    used: set[int] = set()
    layers = []
    for _ in config["engram_layer_ids"]:
        columns = []
        for _size in range(2, config["engram_max_ngram_size"] + 1):
            candidate = config["engram_vocab_size"] - 1
            for _head in range(config["engram_n_heads"]):
                candidate += 1
                while candidate in used or not is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                columns.append(candidate)
        layers.append(columns)
    return layers
