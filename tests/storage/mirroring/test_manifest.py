"""The record of a mirror folder, read as a file that may be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import BadManifest
from storage.mirroring.files import WriteCalls
from storage.mirroring.manifest import (
    NAME,
    CopiedShard,
    Manifest,
    read_manifest,
    with_shard,
    without_shard,
    write_manifest,
)
from tests.storage.mirroring.copies import Failing

_ONE = CopiedShard(file_bytes=2500, header_sha256="a" * 64, block_bytes=1000, blocks=("b" * 64, "c" * 64, "d" * 64))
_EMPTY = Manifest(kind="split", fingerprint="f" * 64, source="/m", drive="nvme0n1")


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    manifest = with_shard(_EMPTY, "x.safetensors", _ONE)
    write_manifest(tmp_path, manifest, WriteCalls())
    assert read_manifest(tmp_path) == manifest
    assert without_shard(manifest, "x.safetensors") == _EMPTY


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_failed_write_leaves_the_old_one_and_no_litter(tmp_path: Path, n: int) -> None:
    write_manifest(tmp_path, _EMPTY, WriteCalls())
    with pytest.raises(Exception, match="cannot write"):
        write_manifest(tmp_path, with_shard(_EMPTY, "x.safetensors", _ONE), Failing(n))
    assert read_manifest(tmp_path) == _EMPTY
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.update(version=2),
        lambda record: record.update(kind="other"),
        lambda record: record.update(fingerprint=7),
        lambda record: record.pop("shards"),
        lambda record: record.update(shards=[]),
        lambda record: record["shards"].update({"../x": record["shards"]["x.safetensors"]}),
        lambda record: record["shards"].update({"/etc/x": record["shards"]["x.safetensors"]}),
        lambda record: record["shards"]["x.safetensors"].update(file_bytes=-1),
        lambda record: record["shards"]["x.safetensors"].update(block_bytes=0),
        lambda record: record["shards"]["x.safetensors"].update(block_bytes=True),
        lambda record: record["shards"]["x.safetensors"].update(blocks=["b"]),
        lambda record: record["shards"]["x.safetensors"].update(blocks=[1, 2, 3]),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, spoil: Any) -> None:
    write_manifest(tmp_path, with_shard(_EMPTY, "x.safetensors", _ONE), WriteCalls())
    record = json.loads((tmp_path / NAME).read_text())
    spoil(record)
    (tmp_path / NAME).write_text(json.dumps(record))
    with pytest.raises(BadManifest, match=NAME):
        read_manifest(tmp_path)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.just(b"[" * 100_000))
def test_any_bytes_give_a_record_or_the_typed_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / NAME).write_bytes(data)
    with pytest.raises(BadManifest):
        read_manifest(folder)
