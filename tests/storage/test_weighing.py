"""Drives of known rates behind real files: what they weigh, and how the reads are shared after it."""

import errno
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage.checkpoint import Checkpoint
from storage.direct import DirectFile
from storage.drives import DriveFacts, drive_of
from storage.extents import Extent
from storage.replica_files import ReplicaFiles
from storage.syscalls import SYSTEM, Syscalls
from storage.weighing import have_choice, weigh_drives
from tests.fakes import FlakyDrive, SlowDrive
from tests.storage.shards import entry, raw_header, write_checkpoint

_SHARD, _OTHER = "a.safetensors", "b.safetensors"
_ITEM_BYTES = 1 << 16
_N_ITEMS = 400


def _by_folder(path: Path) -> DriveFacts:
    """Every folder a drive of its own."""
    folder = path if path.is_dir() else path.parent
    return replace(drive_of(path), disks=frozenset({folder.name}))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A shard of 400 items of 64 KiB, and a small one."""
    folder = tmp_path / "model"
    write_checkpoint(folder, {_OTHER: {"u": ("U8", [10])}}, index=False)
    n_bytes = _N_ITEMS * _ITEM_BYTES
    header = raw_header({"t": entry("U8", [_N_ITEMS, _ITEM_BYTES], 0, n_bytes)})
    (folder / _SHARD).write_bytes(header + random.Random(0).randbytes(n_bytes))
    return folder


def _mirror(model: Path, name: str, shards: Sequence[str] = (_SHARD, _OTHER)) -> Path:
    folder = model.parent / name
    folder.mkdir()
    for shard in shards:
        shutil.copyfile(model / shard, folder / shard)
    return folder


def _items(checkpoint: Checkpoint) -> list[list[Extent]]:
    extent = checkpoint.tensors["t"].extent
    return [[extent.part(i * _ITEM_BYTES, _ITEM_BYTES)] for i in range(_N_ITEMS)]


@contextmanager
def _files(checkpoint: Checkpoint, systems: Mapping[str, Syscalls]) -> Iterator[ReplicaFiles]:
    """Every copy, read through the system of its drive."""
    replicas = checkpoint.replicas
    files = {
        copy: DirectFile.open(copy.path, "buffered", system=systems.get(copy.drive, SYSTEM))
        for shard in checkpoint.headers
        for copy in replicas.copies(shard)
    }
    with ReplicaFiles(replicas, files) as opened:
        yield opened


def _shares(checkpoint: Checkpoint, n_keys: int = 2000) -> Counter[str]:
    chosen = (checkpoint.replicas.choose(key, _SHARD) for key in range(n_keys))
    return Counter(copy.drive for copy in chosen if copy is not None)


class _Watch(SlowDrive):
    """A slow drive that knows what it really gave: beside other work less than it could."""

    def __init__(self, rate_bytes_s: float) -> None:
        super().__init__(rate_bytes_s)
        self._reads: list[tuple[float, float, int]] = []

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        began = time.perf_counter()
        count = super().pread(fd, target, offset)
        self._reads.append((began, time.perf_counter(), count))
        return count

    @property
    def gave_bytes_s(self) -> float:
        return sum(n for _, _, n in self._reads) / (
            max(e for _, e, _ in self._reads) - min(b for b, _, _ in self._reads)
        )


def test_a_slower_drive_gets_the_share_that_it_gave(model: Path) -> None:
    mirror = _mirror(model, "mirror")
    with Checkpoint.open(model, mirrors=[mirror], find_drive=_by_folder) as checkpoint:
        assert have_choice(checkpoint.replicas, checkpoint.headers)
        # So slow that a batch takes a quarter of a second: what a busy machine adds to it is little.
        slow = {"model": _Watch(4e6), "mirror": _Watch(0.4e6)}
        with _files(checkpoint, slow) as files:
            rates = {r.drive: r.rate_bytes_s for r in weigh_drives(files, _items(checkpoint), limit_s=0.4, seed=0)}
        for name, drive in slow.items():
            assert rates[name] == pytest.approx(drive.gave_bytes_s, rel=0.2)
        assert rates["model"] > 3 * rates["mirror"], "ten times, where nothing else runs"
        weights = {reads.drive: reads.weight for reads in checkpoint.replicas.reads()}
        assert weights == rates
        # One of eleven reads, by the rates as they came out.
        share = _shares(checkpoint)["mirror"] / 2000
        assert share == pytest.approx(rates["mirror"] / (rates["mirror"] + rates["model"]), abs=0.005)


def test_a_measurement_takes_the_time_it_is_given_or_less(model: Path) -> None:
    mirror = _mirror(model, "mirror")
    began: list[float] = []

    def clock() -> float:
        began.append(0.01)
        return sum(began)

    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=_by_folder) as checkpoint,
        _files(checkpoint, {}) as files,
    ):
        weigh_drives(files, _items(checkpoint), limit_s=0.2, clock=clock)
        # Two drives on one clock, each asking it at the start and after every batch, 10 ms a time.
        assert 20 <= len(began) <= 24
        whole = weigh_drives(files, _items(checkpoint)[:3], limit_s=60)
    assert [rate.error for rate in whole] == [None, None] and min(rate.rate_bytes_s for rate in whole) > 0


def test_a_drive_that_holds_nothing_wanted_is_not_measured_and_weighs_as_the_others_do(model: Path) -> None:
    mirrors = [_mirror(model, "mirror"), _mirror(model, "third", [_OTHER])]
    with Checkpoint.open(model, mirrors=mirrors, find_drive=_by_folder) as checkpoint:
        with _files(checkpoint, {}) as files:
            rates = [rate.rate_bytes_s for rate in weigh_drives(files, _items(checkpoint))]
        weights = {reads.drive: reads.weight for reads in checkpoint.replicas.reads()}
    assert len(rates) == 2 and weights["third"] == pytest.approx(sum(rates) / 2)


def test_a_drive_that_fails_weighs_nothing_and_is_reported(model: Path) -> None:
    mirror = _mirror(model, "mirror")
    told: list[str] = []
    broken = FlakyDrive(fail_on=range(1, 10_000), error=errno.EIO)
    with Checkpoint.open(
        model, mirrors=[mirror], find_drive=_by_folder, on_demotion=lambda demotion: told.append(demotion.drive)
    ) as checkpoint:
        with _files(checkpoint, {"mirror": broken}) as files:
            rates = {rate.drive: rate for rate in weigh_drives(files, _items(checkpoint), limit_s=0.1)}
        assert rates["mirror"].rate_bytes_s == 0 and "EIO" in str(rates["mirror"].error)
        assert rates["model"].rate_bytes_s > 0 and rates["model"].error is None
        assert told == ["mirror"]
        assert _shares(checkpoint) == {"model": 2000}


def test_what_is_in_the_page_cache_is_dropped_before_it_is_measured(model: Path) -> None:
    order: list[tuple[str, int]] = []

    class Watched(Syscalls):
        def forget(self, fd: int, offset: int, length: int) -> None:
            order.append(("forget", offset))

        def pread(self, fd: int, target: memoryview, offset: int) -> int:
            order.append(("read", offset))
            return super().pread(fd, target, offset)

    watched = Watched()
    mirror = _mirror(model, "mirror")
    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=_by_folder) as checkpoint,
        _files(checkpoint, {"mirror": watched}) as files,
    ):
        weigh_drives(files, _items(checkpoint)[:20])
    read = [offset for what, offset in order if what == "read"]
    assert len(set(read)) == 20
    assert all(order.index(("forget", offset)) < order.index(("read", offset)) for offset in read)


@pytest.mark.parametrize(("shards", "choice"), [([_SHARD], True), ([], False)])
def test_weights_mean_something_only_where_a_shard_lies_on_two_drives(
    model: Path, shards: list[str], choice: bool
) -> None:
    with Checkpoint.open(model, mirrors=[_mirror(model, "mirror", shards)], find_drive=_by_folder) as checkpoint:
        assert have_choice(checkpoint.replicas, [_SHARD]) is choice
        assert not have_choice(checkpoint.replicas, [_OTHER])
