"""What the planner reads of headers it has no reason to trust."""

import struct
import tracemalloc
from pathlib import Path

import pytest

from storage.outline import read_outline

GOOD = b'{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'


def shard(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def test_a_header_is_outlined(tmp_path: Path) -> None:
    shard(tmp_path, GOOD)
    outline = read_outline([tmp_path])
    assert list(outline.tensors()) == [("t", "U8", 1, "model.safetensors", 0, 4)] and outline.refused == ()


@pytest.mark.parametrize(
    "header",
    [
        b'{"t":' + b"[" + b"[]," * 700_000 + b"[]]}",
        b'{"t":[' + b"1," * 1_000_000 + b"1]}",
        b'{"t":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        GOOD.replace(b"[4]", b"[NaN]"),
        GOOD.replace(b"[4]", b"[" + b"9" * 5_000 + b"]"),
    ],
    ids=["lists", "numbers", "nested", "nan", "digits"],
)
def test_what_no_shard_has_is_refused_before_it_is_made_of_objects(tmp_path: Path, header: bytes) -> None:
    shard(tmp_path, header)
    tracemalloc.start()
    try:
        outline = read_outline([tmp_path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outline.shards == () and outline.refused == ("model.safetensors",)
    assert peak < 4 * len(header) + (1 << 20)
