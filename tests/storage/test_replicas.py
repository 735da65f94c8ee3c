"""Mirrors and splits of small checkpoints in made-up drives: what is accepted, what serves, what is left after
failures.
"""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import errors
from storage.batch import BatchReader, ReadRequest, Replicas
from storage.checkpoint import Checkpoint
from storage.copies import find_copies
from storage.direct import DirectFile
from storage.drives import DriveFacts
from storage.errors import DriveError
from storage.extents import Extent
from storage.inspection import inspect
from storage.mirrorcheck import sample_blocks, verify_mirror
from storage.replica_files import ReplicaFiles
from storage.replicas import Demotion, ReplicaSet
from tests.storage.hooked import HookedSystem, failing
from tests.storage.shards import shard_bytes, write_checkpoint

NAMES = [f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 3, 4)]
SHARDS = {name: {f"t{i}": ("U8", [64, 32]), f"s{i}": ("F32", [8])} for i, name in enumerate(NAMES)}
A, B, C = "disk a", "disk b", "disk c"


def drives_by_folder(**disks: str) -> Callable[[Path], DriveFacts]:
    """Each folder of this name on that disk; several disks are joined by "+"."""

    def find(path: Path) -> DriveFacts:
        disk = next(disk for name, disk in disks.items() if name in path.parts)
        return DriveFacts(
            disks=frozenset(disk.split("+")),
            kind="nvme",
            fs_type="ext4",
            mount_point="/",
            source="/dev/x",
            model="",
            logical_block_bytes=512,
            physical_block_bytes=512,
        )

    return find


EACH_ITS_OWN = drives_by_folder(model=A, mirror=B, third=C)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model", SHARDS)
    return tmp_path / "model"


@pytest.fixture
def mirror(model: Path) -> Path:
    """A mirror of all shards."""
    folder = model.parent / "mirror"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(model / name, folder / name)
    return folder


def replica_set(
    model: Path,
    *mirrors: Path,
    splits: list[Path] | None = None,
    find_drive: Callable[[Path], DriveFacts] = EACH_ITS_OWN,
    weights: dict[Path, float] | None = None,
    on_demotion: Callable[[Demotion], None] | None = None,
) -> ReplicaSet:
    found = find_copies(inspect(model, splits=splits or []), mirrors, find_drive=find_drive)
    return ReplicaSet(found, weights=weights, on_demotion=on_demotion)


def shares(replicas: ReplicaSet, shard: str = NAMES[0], n_keys: int = 1000) -> Counter[str]:
    return Counter(copy.drive for key in range(n_keys) if (copy := replicas.choose(key, shard)) is not None)


# What is accepted


def test_a_whole_mirror_is_accepted_and_gets_its_share(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror, weights={model: 1, mirror: 3})
    own, report = replicas.found.reports
    assert (own.role, own.accepted) == ("primary", tuple(NAMES))
    assert report.accepted == tuple(NAMES) and report.refused == () and report.error is None
    assert report.accepted_bytes == report.checkpoint_bytes == sum((model / name).stat().st_size for name in NAMES)
    assert not report.same_drive
    assert shares(replicas)[B] == pytest.approx(750, abs=5)


def test_a_mirror_of_some_shards_serves_those_and_the_primary_the_others(model: Path, mirror: Path) -> None:
    for name in NAMES[1:]:
        (mirror / name).unlink()
    replicas = replica_set(model, mirror)
    report = replicas.found.reports[1]
    assert report.accepted == (NAMES[0],) and report.refused == ()
    assert report.accepted_bytes == (model / NAMES[0]).stat().st_size < report.checkpoint_bytes
    assert shares(replicas) == {A: 500, B: 500}
    assert shares(replicas, NAMES[1]) == {A: 1000}


def test_a_file_of_another_size_or_header_is_refused_by_name_and_the_rest_is_used(model: Path, mirror: Path) -> None:
    (mirror / NAMES[0]).write_bytes((mirror / NAMES[0]).read_bytes() + b"x")
    os.truncate(mirror / NAMES[1], 40)
    data = bytearray((mirror / NAMES[2]).read_bytes())
    place = data.index(b"F32")
    data[place] = ord("I")
    (mirror / NAMES[2]).write_bytes(data)
    report = replica_set(model, mirror).found.reports[1]
    assert report.accepted == (NAMES[3],)
    assert [(r.shard, r.reason) for r in report.refused] == [
        (NAMES[0], "size"),
        (NAMES[1], "size"),
        (NAMES[2], "header"),
    ]
    longer, _, other = (refused.error for refused in report.refused)
    size = (model / NAMES[0]).stat().st_size
    assert isinstance(longer, errors.CopyDiffers) and (longer.found, longer.expected) == (size + 1, size)
    assert f"first at byte {place}" in str(other) and NAMES[2] in str(other)


def test_one_flipped_byte_anywhere_in_the_header_refuses_the_copy(model: Path, mirror: Path) -> None:
    data = (model / NAMES[0]).read_bytes()
    for place in range(8 + int.from_bytes(data[:8], "little")):
        (mirror / NAMES[0]).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        [refused] = replica_set(model, mirror).found.reports[1].refused
        assert (refused.shard, refused.reason) == (NAMES[0], "header")


def test_tensors_in_another_order_with_the_same_size_are_refused(model: Path, mirror: Path) -> None:
    data = shard_bytes(dict(reversed(SHARDS[NAMES[0]].items())))
    header_bytes = int.from_bytes(data[:8], "little")
    spaces = (model / NAMES[0]).stat().st_size - len(data)
    data = (
        (header_bytes + spaces).to_bytes(8, "little")
        + data[8 : 8 + header_bytes]
        + b" " * spaces
        + data[8 + header_bytes :]
    )
    (mirror / NAMES[0]).write_bytes(data)
    assert [r.reason for r in replica_set(model, mirror).found.reports[1].refused] == ["header"]


def test_an_unreadable_copy_is_refused_with_what_the_system_said(model: Path, mirror: Path) -> None:
    found = find_copies(
        inspect(model), [mirror], find_drive=EACH_ITS_OWN, system=failing(errno.EIO, str(mirror / NAMES[1]))
    )
    [refused] = found.reports[1].refused
    assert (refused.shard, refused.reason) == (NAMES[1], "unreadable")
    assert isinstance(refused.error, errors.DriveError) and refused.error.errno == errno.EIO


def test_a_link_back_to_the_shard_is_no_copy(model: Path, mirror: Path) -> None:
    for name in NAMES[:2]:
        (mirror / name).unlink()
    (mirror / NAMES[0]).symlink_to(model / NAMES[0])
    os.link(model / NAMES[1], mirror / NAMES[1])
    (mirror / NAMES[2]).unlink()
    (mirror / NAMES[2]).symlink_to("nowhere")
    report = replica_set(model, mirror).found.reports[1]
    assert [(r.shard, r.reason) for r in report.refused] == [
        (NAMES[0], "same file"),
        (NAMES[1], "same file"),
        (NAMES[2], "unreadable"),
    ]
    assert isinstance(report.refused[2].error, errors.BrokenLink)


def test_a_mirror_that_is_gone_is_said_and_does_not_keep_the_checkpoint_from_opening(model: Path) -> None:
    gone = model.parent / "unplugged"
    with Checkpoint.open(model, mirrors=[gone]) as checkpoint:
        [_, report] = checkpoint.replicas.found.reports
        assert isinstance(report.error, errors.MissingFolder) and report.accepted == ()
        assert len(checkpoint.read("t0")) == 2048


# Drives


def test_two_folders_on_one_disk_are_one_drive_and_gain_nothing(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror, find_drive=drives_by_folder(model=A, mirror=A))
    assert replicas.drives == (A,)
    assert replicas.found.reports[1].same_drive
    assert {replicas.choose(key, NAMES[0]).path for key in range(100)} == {model / NAMES[0]}


def test_a_disk_that_two_folders_share_is_not_counted_twice(model: Path, mirror: Path) -> None:
    third = model.parent / "third"
    shutil.copytree(mirror, third)
    replicas = replica_set(model, mirror, third, find_drive=drives_by_folder(model=A, mirror=B, third=B))
    assert shares(replicas) == {A: 500, B: 500}
    assert [report.same_drive for report in replicas.found.reports] == [False, False, True]


def test_a_raid_over_a_disk_and_the_disk_itself_are_one_drive(model: Path, mirror: Path) -> None:
    third = model.parent / "third"
    shutil.copytree(mirror, third)
    find = drives_by_folder(model=A, mirror=f"{A}+{B}", third=B)
    replicas = replica_set(model, mirror, third, find_drive=find)
    assert replicas.drives == (f"{A}+{B}",)
    assert replicas.found.drives[f"{A}+{B}"].disks == {A, B}


def test_real_folders_of_one_file_system_are_one_drive(model: Path, mirror: Path) -> None:
    with Checkpoint.open(model, mirrors=[mirror]) as checkpoint:
        assert len(checkpoint.replicas.drives) == 1
        assert checkpoint.replicas.found.reports[1].same_drive


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), None])
def test_weights_must_be_numbers_for_every_folder(model: Path, mirror: Path, weight: float | None) -> None:
    weights = {model: 1.0} if weight is None else {model: 1.0, mirror: weight}
    with pytest.raises(errors.BadWeights):
        replica_set(model, mirror, weights=weights)


def test_measured_rates_can_be_set_later(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror)
    replicas.weigh({A: 9.0e9, B: 1.0e9})
    assert shares(replicas)[B] == pytest.approx(100, abs=3)
    assert [reads.weight for reads in replicas.reads()] == [9.0e9, 1.0e9]


# Splits


def test_a_split_checkpoint_with_a_mirror_of_one_part_is_read_from_all_three(model: Path, mirror: Path) -> None:
    third = model.parent / "third"
    third.mkdir()
    (model / NAMES[2]).rename(third / NAMES[2])
    (model / NAMES[3]).rename(third / NAMES[3])
    for name in NAMES[:3]:
        (mirror / name).unlink()
    with Checkpoint.open(model, splits=[third], mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        drives = {name: {copy.drive for copy in checkpoint.replicas.copies(name)} for name in NAMES}
        assert drives == {NAMES[0]: {A}, NAMES[1]: {A}, NAMES[2]: {C}, NAMES[3]: {B, C}}
        assert [report.role for report in checkpoint.replicas.found.reports] == ["primary", "split", "mirror"]
        for i, name in enumerate(NAMES):
            data = next(folder / name for folder in (model, third) if (folder / name).exists()).read_bytes()
            extent = checkpoint.tensors[f"t{i}"].extent
            assert checkpoint.read(f"t{i}") == data[extent.offset : extent.end]


def test_a_shard_in_two_split_folders_is_a_copy_only_when_equal(model: Path, mirror: Path) -> None:
    (mirror / NAMES[1]).write_bytes((mirror / NAMES[1]).read_bytes() + b"x")
    replicas = replica_set(model, splits=[mirror])
    assert len(replicas.copies(NAMES[0])) == 2 and len(replicas.copies(NAMES[1])) == 1
    assert [(r.shard, r.reason) for r in replicas.found.reports[1].refused] == [(NAMES[1], "size")]


# Failures


def error_of(path: Path, number: int) -> errors.DriveError:
    return errors.DriveError.of(OSError(number, os.strerror(number)), path, 17)


def test_a_failed_drive_is_avoided_and_reported_once(model: Path, mirror: Path) -> None:
    heard: list[Demotion] = []
    replicas = replica_set(model, mirror, on_demotion=heard.append)
    copy = next(c for c in replicas.copies(NAMES[0]) if c.drive == A)
    demotion = replicas.demote(copy, error_of(copy.path, errno.EIO))
    assert demotion is not None and heard == [demotion] == list(replicas.demotions)
    assert (demotion.drive, demotion.whole_drive, demotion.n_left) == (A, True, 1)
    assert replicas.demote(copy, error_of(copy.path, errno.EIO)) is None
    assert shares(replicas) == shares(replicas, NAMES[3]) == {B: 1000}
    assert [(reads.n_errors, reads.demoted) for reads in replicas.reads()] == [(2, True), (0, False)]


def test_a_failed_drive_still_serves_what_nobody_else_has(model: Path, mirror: Path) -> None:
    (mirror / NAMES[1]).unlink()
    replicas = replica_set(model, mirror)
    copy = replicas.copies(NAMES[0])[0]
    replicas.demote(copy, error_of(copy.path, errno.EIO))
    assert shares(replicas, NAMES[1]) == {A: 1000}
    assert replicas.choose(0, NAMES[1], tried=[A]) is None


def test_a_file_that_alone_is_at_fault_does_not_demote_its_drive(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror)
    copy = replicas.copies(NAMES[0])[0]
    short = errors.ShortRead("short", file=copy.path, offset=3, errno=0)
    demotion = replicas.demote(copy, short)
    assert demotion is not None and not demotion.whole_drive
    assert shares(replicas) == {B: 1000}
    assert shares(replicas, NAMES[1]) == {A: 500, B: 500}


def test_a_second_copy_on_the_same_disk_stands_in_for_a_bad_file(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror, find_drive=drives_by_folder(model=A, mirror=A))
    first = replicas.copies(NAMES[0])[0]
    replicas.demote(first, errors.ShortRead("short", file=first.path, offset=3, errno=0))
    second = replicas.choose(0, NAMES[0])
    assert second is not None and second.path == mirror / NAMES[0]


def test_a_second_copy_on_a_disk_that_failed_is_tried_before_the_turn_fails(model: Path, mirror: Path) -> None:
    one_disk = drives_by_folder(model=A, mirror=A)
    replicas = ReplicaSet(find_copies(inspect(model), [mirror], find_drive=one_disk))
    first, second = replicas.copies(NAMES[0])
    assert replicas.choose(0, NAMES[0]) == first
    replicas.demote(first, error_of(first.path, errno.EIO))
    assert replicas.choose(0, NAMES[0], tried=[A]) == replicas.choose(0, NAMES[0]) == second
    replicas.demote(second, error_of(second.path, errno.EIO))
    assert replicas.choose(0, NAMES[0], tried=[A]) is None
    replicas.restore(A)
    assert replicas.choose(0, NAMES[0]) == first


def test_a_shard_nobody_has_is_named(model: Path) -> None:
    with pytest.raises(errors.MissingShard, match=r"absent\.safetensors"):
        replica_set(model).choose(0, "absent.safetensors")


def test_a_batch_keeps_the_parts_of_an_expert_together(model: Path, mirror: Path) -> None:
    replicas = replica_set(model, mirror, weights={model: 2, mirror: 1})
    requests = [
        (expert, Extent(shard=NAMES[expert % 4], offset=100 * part, length=1 << 20))
        for expert in range(30)
        for part in range(2)
    ]
    chosen = replicas.share(requests)
    assert all(chosen[i].drive == chosen[i + 1].drive for i in range(0, 60, 2))
    assert all(copy.shard == extent.shard for copy, (_, extent) in zip(chosen, requests, strict=True))
    assert 14 <= sum(copy.drive == A for copy in chosen) // 2 <= 24


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize("bad", ["model", "mirror"])
def test_an_io_error_on_one_drive_is_read_from_the_other(
    model: Path, mirror: Path, times: int | None, bad: str
) -> None:
    with Checkpoint.open(model) as checkpoint:
        right = {name: checkpoint.read(name) for name in checkpoint.tensors}
    heard: list[Demotion] = []
    system = failing(errno.EIO, *(str(model.parent / bad / name) for name in NAMES), times=times)
    system.armed = False
    with Checkpoint.open(
        model, mirrors=[mirror], find_drive=EACH_ITS_OWN, on_demotion=heard.append, system=system
    ) as checkpoint:
        system.armed = True
        for _ in range(3):
            assert {name: checkpoint.read(name) for name in checkpoint.tensors} == right
    assert [(demotion.drive, demotion.n_left) for demotion in heard] == [({"model": A, "mirror": B}[bad], 1)]
    assert isinstance(heard[0].error, errors.DriveError) and heard[0].error.errno == errno.EIO


@pytest.mark.parametrize(("damage", "status"), [("cut", "cut"), ("gone", "missing"), ("header", "refused")])
def test_a_shard_damaged_before_the_start_is_read_from_the_mirror(
    model: Path, mirror: Path, damage: str, status: str
) -> None:
    right = {name: (mirror / name).read_bytes() for name in NAMES}
    match damage:
        case "cut":
            os.truncate(model / NAMES[1], len(right[NAMES[1]]) - 1)
        case "gone":
            (model / NAMES[1]).unlink()
        case "header":
            (model / NAMES[1]).write_bytes(b"\xff" * 8 + right[NAMES[1]][8:])
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        (one,) = checkpoint.stand_ins
        assert (one.shard, one.path, one.status) == (NAMES[1], mirror / NAMES[1], status)
        assert (one.error is None) == (damage == "gone")
        for i in range(4):
            assert checkpoint.read(f"s{i}") == right[NAMES[i]][-32:]
        assert len(checkpoint.replicas.copies(NAMES[0])) == 2  # the mirror still shares the reads of the others


def test_a_mirror_of_another_revision_does_not_stand_in(model: Path, mirror: Path) -> None:
    os.truncate(model / NAMES[1], (model / NAMES[1]).stat().st_size - 1)
    other = shard_bytes({"t1": ("U8", [64, 32]), "s1": ("F32", [8])}, metadata={"format": "other"})
    (mirror / NAMES[1]).write_bytes(other)
    with pytest.raises(errors.TruncatedShard, match=NAMES[1]):
        Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN)


def test_without_another_copy_the_error_names_file_offset_and_errno(model: Path, mirror: Path) -> None:
    (mirror / NAMES[1]).unlink()
    system = failing(errno.EIO, str(model / NAMES[1]))
    system.armed = False
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN, system=system) as checkpoint:
        system.armed = True
        assert checkpoint.read("t0")
        with pytest.raises(errors.DriveError) as caught:
            checkpoint.read("t1")
        assert checkpoint.read("t0")  # the checkpoint survives
        assert (caught.value.file, caught.value.errno) == (model / NAMES[1], errno.EIO)
        assert caught.value.offset == checkpoint.tensors["t1"].extent.offset


def test_a_shard_cut_short_while_open_is_read_from_the_mirror(model: Path, mirror: Path) -> None:
    right = (model / NAMES[0]).read_bytes()
    weights = {model: 1.0, mirror: 0.0}  # so that the mirror serves only what the primary cannot
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN, weights=weights) as checkpoint:
        os.truncate(model / NAMES[0], 50)
        extent = checkpoint.tensors["t0"].extent
        assert checkpoint.read("t0") == right[extent.offset : extent.end]
        assert checkpoint.read("t1")
        [demotion] = checkpoint.replicas.demotions
        assert isinstance(demotion.error, errors.ShardChanged) and not demotion.whole_drive
        assert [reads.n_errors for reads in checkpoint.replicas.reads()] == [1, 0]


def test_a_mirror_deleted_while_in_use_changes_nothing(model: Path, mirror: Path) -> None:
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        before = {name: checkpoint.read(name) for name in checkpoint.tensors}
        shutil.rmtree(mirror)
        assert {name: checkpoint.read(name) for name in checkpoint.tensors} == before
        assert checkpoint.replicas.demotions == ()


@pytest.mark.parametrize("io", ["mixed", "rows"])
def test_bytes_per_drive_are_the_bytes_the_system_delivered(model: Path, mirror: Path, io: str) -> None:
    """Short and interrupted reads included."""

    def stingy(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        return system.real(path, target[: max(1, len(target) // 2)], offset)

    system = HookedSystem(stingy)
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN, system=system) as checkpoint:
        system.read_bytes.clear()  # from here on: the headers were read before
        for i in range(4):
            if io == "rows":
                for row in range(0, 64, 3):
                    checkpoint.read_into(checkpoint.entry(f"t{i}").extent.part(row * 32, 32), memoryview(bytearray(32)))
            else:
                checkpoint.read(f"t{i}")
        by_drive = {reads.drive: reads.read_bytes for reads in checkpoint.replicas.reads()}
    assert by_drive == {
        A: sum(n for path, n in system.read_bytes.items() if path.parent == model),
        B: sum(n for path, n in system.read_bytes.items() if path.parent == mirror),
    }
    assert sum(by_drive.values()) == checkpoint.read_bytes == 4 * (22 * 32 if io == "rows" else 2048)


# Payload


def test_equal_mirrors_verify_and_one_flipped_byte_is_named_and_withdrawn(model: Path, mirror: Path) -> None:
    inventory = inspect(model)
    headers = {name: inventory.shards[name].header for name in NAMES}
    replicas = replica_set(model, mirror)
    clean = list(verify_mirror(replicas, mirror, headers))
    assert [checked.error for checked in clean] == [None] * 4
    assert sum(checked.checked_bytes for checked in clean) == 4 * (2048 + 32)
    data = bytearray((mirror / NAMES[2]).read_bytes())
    place = inventory.tensors["s2"].extent.offset + 5
    data[place] ^= 0x40
    (mirror / NAMES[2]).write_bytes(data)
    [found] = [checked for checked in verify_mirror(replicas, mirror, headers) if checked.error is not None]
    assert isinstance(found.error, errors.CopyDiffers)
    assert (found.copy.shard, found.first_difference, found.error.tensor) == (NAMES[2], place, "s2")
    assert (found.error.found, found.error.expected) == (data[place], data[place] ^ 0x40)
    assert [copy.folder for copy in replicas.copies(NAMES[2])] == [model]
    assert shares(replicas, NAMES[2]) == {A: 1000} and shares(replicas, NAMES[1]) == {A: 500, B: 500}


def test_a_copy_in_a_mirror_that_stands_in_is_withdrawn_too(model: Path, mirror: Path) -> None:
    """Its folder counts among the checkpoint's own then."""
    os.truncate(model / NAMES[1], (model / NAMES[1]).stat().st_size - 1)
    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        replicas = checkpoint.replicas
        assert {copy.role for copy in replicas.copies(NAMES[2])} == {"primary", "split"}
        data = bytearray((mirror / NAMES[2]).read_bytes())
        data[-1] ^= 0x40
        (mirror / NAMES[2]).write_bytes(data)
        checked = {one.copy.shard: one for one in verify_mirror(replicas, mirror, checkpoint.headers)}
        assert [name for name, one in checked.items() if one.error is not None] == [NAMES[2]]
        assert [copy.folder for copy in replicas.copies(NAMES[2])] == [model]
        assert [copy.folder for copy in replicas.copies(NAMES[1])] == [mirror]


def test_a_copy_that_cannot_be_read_is_reported_and_stays(model: Path, mirror: Path) -> None:
    headers = {name: inspect(model).shards[name].header for name in NAMES}
    replicas = replica_set(model, mirror)
    system = failing(errno.EIO, str(mirror / NAMES[0]))
    checked = next(iter(verify_mirror(replicas, mirror, headers, system=system)))
    assert isinstance(checked.error, errors.DriveError) and checked.first_difference is None
    assert len(replicas.copies(NAMES[0])) == 2


def test_verifying_stops_when_asked(model: Path, mirror: Path) -> None:
    headers = {name: inspect(model).shards[name].header for name in NAMES}
    asked = iter([False, False, True])
    done = list(verify_mirror(replica_set(model, mirror), mirror, headers, should_stop=lambda: next(asked)))
    assert [checked.copy.shard for checked in done] == NAMES[:2]


@pytest.mark.parametrize("length", [0, 1, 99, 100, 1600, 1601, 5000, 1 << 40])
def test_samples_lie_inside_hold_both_ends_and_repeat(length: int) -> None:
    blocks = sample_blocks(1000, 1000 + length, 16, 100, "seed")
    assert blocks == sample_blocks(1000, 1000 + length, 16, 100, "seed")
    assert all(at >= 1000 and n > 0 and at + n <= 1000 + length for at, n in blocks)
    if length:
        assert blocks[0][0] == 1000 and sum(blocks[-1]) == 1000 + length
    if length <= 1600:
        assert sum(n for _, n in blocks) == length
    else:
        assert 2 <= len(blocks) <= 16
        assert length < 5000 or len(blocks) == 16


# Under the batch reader


def test_the_batch_reader_reads_through_the_replicas_and_goes_round_a_failing_one(model: Path, mirror: Path) -> None:
    system = failing(errno.EIO, *(str(mirror / name) for name in NAMES))
    system.armed = False
    replicas = replica_set(model, mirror)
    tensors = inspect(model).tensors
    with ReplicaFiles.open(replicas, NAMES, "buffered", system=system) as files:
        served: Replicas = files
        system.armed = True
        with BatchReader(served, block_bytes=files.block_bytes) as reader:
            requests = [
                ReadRequest(extent=tensors[f"t{i % 4}"].extent, target=memoryview(bytearray(8192)), flat_index=i)
                for i in range(16)
            ]
            assert reader.submit(requests).wait(30)
            for i, request in enumerate(requests):
                extent = request.extent
                assert reader.payload(request) == (model / NAMES[i % 4]).read_bytes()[extent.offset : extent.end]
        assert [(demotion.drive, demotion.whole_drive) for demotion in replicas.demotions] == [(B, True)]
        assert {drive: len(paths) for drive, paths in files.io_paths().items()} == {A: 4, B: 4}


def test_a_mirror_that_cannot_be_opened_is_withdrawn_and_the_checkpoints_own_file_is_an_error(
    model: Path, mirror: Path
) -> None:
    replicas = replica_set(model, mirror)
    (mirror / NAMES[0]).unlink()
    with ReplicaFiles.open(replicas, NAMES) as files:
        assert [copy.folder for copy in replicas.copies(NAMES[0])] == [model]
        chosen = files.choose(0, Extent(shard=NAMES[0], offset=0, length=8), ())
        assert chosen is not None and chosen.drive == A
    (model / NAMES[1]).unlink()
    with pytest.raises(errors.DriveError):
        ReplicaFiles.open(replicas, NAMES)


# A drive that comes back


def _reads_of(files: ReplicaFiles, n: int = 200) -> Counter[str]:
    extent = Extent(shard=NAMES[0], offset=100, length=8)
    return Counter(one.drive for key in range(n) if (one := files.choose(key, extent, ())) is not None)


def test_a_drive_that_answers_again_is_read_again_after_its_files_were_checked(model: Path, mirror: Path) -> None:
    system = failing(errno.EIO, *(str(mirror / name) for name in NAMES))
    system.armed = False
    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint,
        ReplicaFiles.open(checkpoint.replicas, NAMES, "buffered", system=system) as files,
    ):
        lost = DriveError.of(OSError(errno.EIO, "gone"), mirror / NAMES[0], 0)
        files.demote(next(one for one in map(_opened(files), range(50)) if one.drive == B), lost)
        assert set(_reads_of(files)) == {A} and checkpoint.replicas.demoted() == (B,)
        system.armed = True
        assert isinstance(files.take_back(B, checkpoint.headers), DriveError)  # not back yet
        assert set(_reads_of(files)) == {A}
        system.armed = False
        assert files.take_back(B, checkpoint.headers) is None
        assert set(_reads_of(files)) == {A, B} and checkpoint.replicas.demoted() == ()
        # And once more: it is not forgiven for ever.
        assert checkpoint.replicas.demote(checkpoint.replicas.copies(NAMES[0])[1], lost) is not None


def test_a_drive_that_still_cannot_read_what_failed_stays_out_unopened(model: Path, mirror: Path) -> None:
    bad_at = 1000  # behind the header, which can be read all the time

    def bad_sector(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        if system.armed and path == mirror / NAMES[0] and offset <= bad_at < offset + len(target):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return system.real(path, target, offset)

    system, reopened = HookedSystem(bad_sector), list[Path]()

    def reopen(path: Path) -> DirectFile:
        reopened.append(path)
        return DirectFile.open(path, "buffered", system=system)

    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        copies = [copy for name in NAMES for copy in checkpoint.replicas.copies(name)]
        opened = {copy: DirectFile.open(copy.path, "buffered", system=system) for copy in copies}
        with ReplicaFiles(checkpoint.replicas, opened, reopen) as files:
            lost = DriveError.of(OSError(errno.EIO, "bad sector"), mirror / NAMES[0], bad_at)
            files.demote(next(one for one in map(_opened(files), range(50)) if one.drive == B), lost)
            assert isinstance(files.take_back(B, checkpoint.headers), DriveError)
            assert checkpoint.replicas.demoted() == (B,) and reopened == []
            system.armed = False
            assert files.take_back(B, checkpoint.headers) is None
            assert checkpoint.replicas.demoted() == () and set(_reads_of(files)) == {A, B}


def test_a_drive_that_answers_after_the_files_were_closed_changes_nothing(model: Path, mirror: Path) -> None:
    opened: list[DirectFile] = []
    n_open = len([*Path("/proc/self/fd").iterdir()])

    def reopen(path: Path) -> DirectFile:
        opened.append(DirectFile.open(path, "buffered"))
        if len(opened) == len(NAMES):
            files.close()  # the drive took its time
        return opened[-1]

    with Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint:
        copies = [copy for name in NAMES for copy in checkpoint.replicas.copies(name)]
        lost = DriveError.of(OSError(errno.EIO, "gone"), mirror / NAMES[0], 0)
        files = ReplicaFiles(checkpoint.replicas, {c: DirectFile.open(c.path, "buffered") for c in copies}, reopen)
        files.demote(next(one for one in map(_opened(files), range(50)) if one.drive == B), lost)
        assert files.take_back(B, checkpoint.headers) is not None
        assert checkpoint.replicas.demoted() == (B,)
    assert len(opened) == len(NAMES) and len([*Path("/proc/self/fd").iterdir()]) == n_open


@pytest.mark.parametrize("change", ["header", "cut", "gone"])
def test_a_drive_that_comes_back_with_another_file_stays_out(model: Path, mirror: Path, change: str) -> None:
    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint,
        ReplicaFiles.open(checkpoint.replicas, NAMES, "buffered") as files,
    ):
        copy = checkpoint.replicas.copies(NAMES[0])[1]
        checkpoint.replicas.demote(copy, DriveError.of(OSError(errno.EIO, "gone"), copy.path, 0))
        match change:
            case "header":
                with (mirror / NAMES[2]).open("r+b") as file:
                    file.seek(20)
                    file.write(b"~")
            case "cut":
                os.truncate(mirror / NAMES[2], 50)
            case "gone":
                (mirror / NAMES[2]).unlink()
        error = files.take_back(B, checkpoint.headers)
        assert error is not None and NAMES[2] in str(error)
        assert set(_reads_of(files)) == {A}


def _opened(files: ReplicaFiles) -> Callable[[int], Any]:
    return lambda key: files.choose(key, Extent(shard=NAMES[0], offset=100, length=8), ())
