"""`artesian bench io` on a small slice, and the measurement behind it on a drive of known speed."""

import json
import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from app.cli import main
from app.commands import bench_io
from storage import iobench
from storage.checkpoint import Checkpoint
from storage.drives import DriveFacts, drive_of
from storage.expert_layout import expert_layouts
from storage.extents import Extent
from storage.iobench import PIECES, Arm, ArmResult, Measurement, arms
from storage.replica_files import ReplicaFiles
from storage.syscalls import Syscalls
from tests.app.small_slices import small_slice
from tests.fakes import FlakyDrive

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices") / "small"
    small_slice(folder, n_layers=2)
    return folder


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_io, "TURN_S", 0.001)


@pytest.fixture
def few_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind one or two, for what is not about their number."""
    for name, some in {"DEPTHS": (1, 8), "PIECES": (1 << 20, None), "RANDOM_DEPTHS": (1, 64)}.items():
        monkeypatch.setattr(iobench, name, some)


@pytest.mark.usefixtures("short_turns")
def test_every_arm_is_measured_as_often_and_the_default_is_judged(made: Path, capsys: Output) -> None:
    assert main(["bench", "io", str(made), "--seconds", "0", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record = json.loads(out)
    assert record["kind"] == "bench-io"
    data = record["data"]
    assert data["n_rounds"] == 3
    assert data["experts"]["n"] == 16 and data["experts"]["extents"] == 2
    payload = 3 * 64 * 32 // 2 + 3 * 64 * 32 // 32
    assert data["experts"]["payload_bytes"] == payload
    assert payload < data["experts"]["most_read_bytes"] < payload + 4 * data["block_bytes"]
    results = data["results"]
    assert all(len(result["rates_bytes_s"]) == 3 and min(result["rates_bytes_s"]) > 0 for result in results)
    items = [result for result in results if result["pattern"] == "experts" and result["direct"]]
    assert {(r["depth"], r["read_bytes"]) for r in items} >= {(d, p) for d in (1, 2, 4, 8, 16) for p in PIECES}
    assert max(result["of_best"] for result in items) == 1.0
    assert [r["read_bytes"] for r in items if r["is_default"]] == [None]
    assert {r["depth"] for r in results if r["pattern"] == "random"} == {1, 8, 64}
    (rows,) = [r for r in results if r["pattern"] == "rows"]
    judge = next(r for r in results if r["pattern"] == "random" and r["depth"] == 64)
    ratios = sorted(a / b for a, b in zip(rows["rates_bytes_s"], judge["rates_bytes_s"], strict=True))
    assert ratios[0] <= rows["of_random"] <= ratios[-1]
    assert all(r["of_random"] is None for r in results if r["pattern"] != "rows")
    assert {r["depth"] for r in results if not r["direct"]} == {1, 2, 4, 8, 16}
    assert [r["of_sequential"] for r in results if r["pattern"] == "sequential"] == [1.0]


@pytest.mark.usefixtures("short_turns", "few_arms")
def test_the_table_names_the_way_of_reading_and_the_verdict(made: Path, capsys: Output) -> None:
    assert main(["bench", "io", str(made), "--seconds", "0", "--depth", "3"]) == 0
    out = capsys.readouterr().out
    assert "16 experts of 3.26 kB in 2 reads each" in out
    assert "direct reads" in out or "through the page cache" in out
    assert "\n* experts at depth 3: " in out and "of the best depth and size" in out
    assert " 3*  whole" in out


@pytest.mark.usefixtures("short_turns", "few_arms")
def test_each_drive_is_measured_alone_and_all_together(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for path in made.glob("model-0000[23]*"):
        shutil.copyfile(path, mirror / path.name)

    def find_drive(path: Path) -> DriveFacts:
        return replace(drive_of(path), disks=frozenset({"second" if path == mirror else "first"}))

    monkeypatch.setattr(Checkpoint, "open", partial(Checkpoint.open, find_drive=find_drive))
    assert main(["bench", "io", str(made), "--mirror", str(mirror), "--seconds", "0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert set(data["drives"]) == {"first", "second"}
    by_drive = {r["drive"] for r in data["results"]}
    assert by_drive == {"all", "first", "second"}
    for drive in ("first", "second"):
        mine = [r for r in data["results"] if r["drive"] == drive]
        assert {r["pattern"] for r in mine} == {"sequential", "experts", "random"}
        assert sum(r["is_default"] for r in mine) == 1


def test_options_that_cannot_be_used_and_folders_without_experts_are_refused(
    made: Path, tmp_path: Path, capsys: Output
) -> None:
    for arguments, said in (
        (["--seconds", "-1"], "--seconds must be from 0"),
        (["--depth", "0"], "--depth must be from 1"),
    ):
        assert main(["bench", "io", str(made), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["bench", "io", str(tmp_path)]) == 4


def test_a_drive_error_ends_it_with_the_drives_exit_code(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    class Broken(FlakyDrive):
        def pread(self, fd: int, target: memoryview, offset: int) -> int:
            if len(target) > 2000 and offset > 20_000:
                raise OSError(5, "broken")
            return super().pread(fd, target, offset)

    monkeypatch.setattr(ReplicaFiles, "open", partial(ReplicaFiles.open, system=Broken()))
    assert main(["bench", "io", str(made), "--seconds", "0"]) == 5
    assert "cannot be read at byte" in capsys.readouterr().err


# The measurement


class Steady(Syscalls):
    """A made-up drive: a read takes `seek_s` and its bytes at 1 GB/s, and the clock is moved instead of waited for."""

    def __init__(self, clock: list[float], seek_s: float) -> None:
        self.reads: list[tuple[int, int]] = []
        self._clock = clock
        self._seek_s = seek_s

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        count = super().pread(fd, target, offset)
        self.reads.append((offset, count))
        self._clock[0] += self._seek_s + count / 1e9
        return count


def _measure(made: Path, chosen: list[Arm], seek_s: float, seconds: float = 0.0) -> tuple[list[ArmResult], Steady]:
    now = [0.0]
    drive = Steady(now, seek_s)
    with Checkpoint.open(made) as checkpoint:
        layers = {layer: (f"layers.{layer}.ffn.experts.", 8) for layer in range(2)}
        items = [layout.extents for layout in expert_layouts(checkpoint.tensors, layers).values()]
        shards = sorted({extent.shard for item in items for extent in item})
        with ReplicaFiles.open(checkpoint.replicas, shards, "auto", system=drive) as files:
            drive.reads.clear()
            measurement = Measurement(
                chosen,
                items,
                direct=files,
                buffered=files,
                drives=checkpoint.replicas.drives,
                block_bytes=files.block_bytes,
                turn_s=0.01,
                clock=lambda: now[0],
            )
            return measurement.run(seconds), drive


def _arm(depth: int = 1, piece: int | None = None) -> Arm:
    return Arm(drive="", pattern="item", direct=True, depth=depth, piece_bytes=piece)


def test_rates_are_the_drives(made: Path) -> None:
    random_arm = Arm(drive="", pattern="random", direct=True, depth=1, piece_bytes=4096)
    # Only the seek counts at 1 s each: two reads of an expert take 2 s, whatever is around its payload.
    (item, block), _ = _measure(made, [_arm(), random_arm], seek_s=1.0)
    payload = 3 * 64 * 32 // 2 + 3 * 64 * 32 // 32
    assert item.rate_bytes_s == pytest.approx(payload / 2, rel=0.01)
    assert block.rate_bytes_s <= 4096
    assert item.of_sequential is None and item.of_best == 1.0 and block.of_best is None


def test_smaller_reads_cost_more_seeks_and_the_best_arm_is_found(made: Path) -> None:
    sequential = Arm(drive="", pattern="sequential", direct=True, depth=1, piece_bytes=1 << 24)
    results, _ = _measure(made, [_arm(piece=512), sequential, _arm()], seek_s=1.0)
    small, limit, whole = results
    assert [result.arm for result in results] == [_arm(piece=512), sequential, _arm()]
    assert whole.of_best == 1.0 and small.of_best is not None and small.of_best < 0.5
    assert limit.of_sequential == 1.0 and limit.of_best is None


def test_every_item_has_its_turn_before_any_is_read_again(made: Path) -> None:
    _, drive = _measure(made, [_arm()], seek_s=0.001, seconds=0.2)
    starts = [offset for offset, count in drive.reads]
    n_extents = 16 * 2
    assert len(starts) > 2 * n_extents
    assert len(set(starts[:n_extents])) >= n_extents // 2  # both shards have the same offsets
    first, second = sorted(starts[:n_extents]), sorted(starts[n_extents : 2 * n_extents])
    assert first == second


def test_random_reads_stay_inside_the_experts_and_are_whole_blocks() -> None:
    items = [[Extent(shard="a", offset=5000, length=9000)], [Extent(shard="b", offset=100, length=50)]]
    work = iobench._Work(items, random.Random(0))
    seen = work.anywhere(4096, 200)
    # Of 5,000 to 14,000 only block 2 (8,192 to 12,288) is whole.
    inside = {(extent.shard, extent.offset, extent.length) for extent in seen}
    assert inside <= {("a", 8192, 4096), ("b", 100, 50)} and ("a", 8192, 4096) in inside


def test_a_stop_keeps_the_rounds_that_are_complete(made: Path) -> None:
    asked = iter([False] * 5 + [True])
    with Checkpoint.open(made) as checkpoint:
        items = [
            layout.extents for layout in expert_layouts(checkpoint.tensors, {0: ("layers.0.ffn.experts.", 8)}).values()
        ]
        shards = sorted({extent.shard for item in items for extent in item})
        with ReplicaFiles.open(checkpoint.replicas, shards) as files:
            measurement = Measurement(
                [_arm(), _arm(2)],
                items,
                direct=files,
                buffered=files,
                drives=checkpoint.replicas.drives,
                block_bytes=files.block_bytes,
                turn_s=0.0,
            )
            results = measurement.run(0, should_stop=lambda: next(asked))
    assert [len(result.rates_bytes_s) for result in results] == [2, 2]


def test_one_drive_is_not_measured_twice() -> None:
    assert {arm.drive for arm in arms(["only"])} == {""}
    assert {arm.drive for arm in arms(["one", "two"])} == {"", "one", "two"}
    assert len(set(arms(["one", "two"], default_depth=3))) == len(arms(["one", "two"], default_depth=3))
