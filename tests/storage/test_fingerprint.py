"""What changes a fingerprint and what must not."""

import shutil
from pathlib import Path

from storage.checkpoint import Checkpoint
from storage.fingerprint import fingerprint
from tests.storage.shards import write_checkpoint

_SHARDS = {"a.safetensors": {"t": ("U8", [40])}, "b.safetensors": {"u": ("U8", [10])}}


def _of(folder: Path, *splits: Path, configs: tuple[bytes, ...] = (b"{}",)) -> str:
    with Checkpoint.open(folder, splits=splits) as checkpoint:
        return fingerprint(checkpoint.headers, configs)


def test_a_copy_and_a_split_of_a_checkpoint_are_the_same_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", _SHARDS)
    whole = _of(tmp_path / "model")
    assert len(whole) == 64 and set(whole) <= set("0123456789abcdef")
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    assert _of(tmp_path / "copy") == whole
    (tmp_path / "split").mkdir()
    shutil.move(tmp_path / "copy" / "b.safetensors", tmp_path / "split")
    assert _of(tmp_path / "copy", tmp_path / "split") == whole


def test_config_shape_and_sharding_each_change_it(tmp_path: Path) -> None:
    others = [
        {"a.safetensors": {"t": ("U8", [40])}, "b.safetensors": {"u": ("U8", [11])}},
        {"a.safetensors": {"t": ("U8", [40])}, "c.safetensors": {"u": ("U8", [10])}},
        {"a.safetensors": {"t": ("I8", [40])}, "b.safetensors": {"u": ("U8", [10])}},
    ]
    write_checkpoint(tmp_path / "model", _SHARDS)
    seen = {_of(tmp_path / "model"), _of(tmp_path / "model", configs=(b"{ }",)), _of(tmp_path / "model", configs=())}
    for i, shards in enumerate(others):
        write_checkpoint(tmp_path / str(i), shards)
        seen.add(_of(tmp_path / str(i)))
    assert len(seen) == 6
