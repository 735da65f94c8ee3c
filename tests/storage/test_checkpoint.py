"""A folder as a user has it: whole, unfinished, linked, contradictory, on a failing drive; and the bytes read."""

import errno
import json
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from storage import errors
from storage.checkpoint import Checkpoint, inspect
from storage.extents import Extent
from tests.storage.hooked import HookedSystem, failing
from tests.storage.shards import INDEX, raw_header, shard_bytes, write_checkpoint, write_index

FIXTURE = Path(__file__).parent.parent / "data" / "tiny-a" / "checkpoint"
ONE, TWO, THREE = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
SHARDS = {
    ONE: {"a.weight": ("F32", [4, 8]), "a.scale": ("F8_E8M0", [4])},
    TWO: {"table": ("BF16", [16, 4]), "b": ("I8", [32])},
    THREE: {"c": ("F32", [10])},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model", SHARDS)
    return tmp_path / "model"


def kinds(folder: Path) -> list[str]:
    return [problem.kind for problem in inspect(folder).problems]


def refused(folder: Path) -> errors.StorageError:
    """What opening for running says; the folder must still open for audit."""
    with pytest.raises(errors.StorageError) as caught:
        Checkpoint.open(folder)
    assert inspect(folder).blocking()
    assert caught.value.hint
    return caught.value


# Whole


def test_every_payload_of_the_fixture_is_what_the_safetensors_library_reads() -> None:
    with Checkpoint.open(FIXTURE) as checkpoint:
        assert checkpoint.notes == ()
        n_tensors = 0
        for path in FIXTURE.glob("*.safetensors"):
            for name, info in safetensors.deserialize(path.read_bytes()):
                assert checkpoint.read(name) == info["data"]
                assert checkpoint.tensors[name].shape == tuple(info["shape"])
                n_tensors += 1
        assert n_tensors == len(checkpoint.tensors) == 1299
        assert checkpoint.read_bytes == json.loads((FIXTURE / INDEX).read_text())["metadata"]["total_size"]


def test_the_fixture_is_complete_with_every_byte_accounted_for() -> None:
    inventory = inspect(FIXTURE)
    assert inventory.complete is True and inventory.problems == ()
    on_disk = sum(path.stat().st_size for path in FIXTURE.glob("*.safetensors"))
    assert inventory.present_bytes == inventory.expected_bytes == on_disk


def test_links_into_a_blobs_folder_work(tmp_path: Path) -> None:
    # The layout of the hub cache: snapshots/<revision>/<name> -> ../../blobs/<digest>.
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, path in enumerate(sorted(FIXTURE.glob("*.safetensors"))):
        (blobs / f"{i:064x}").symlink_to(path)
        (snapshot / path.name).symlink_to(f"../../blobs/{i:064x}")
    (snapshot / INDEX).symlink_to(FIXTURE / INDEX)
    with Checkpoint.open(snapshot) as checkpoint:
        assert checkpoint.read("norm.weight") == Checkpoint.open(FIXTURE).read("norm.weight")
    (blobs / f"{3:064x}").unlink()
    (blobs / f"{3:064x}.incomplete").write_bytes(b"half")
    assert inspect(snapshot).unfinished == (blobs / f"{3:064x}.incomplete",)
    error = refused(snapshot)
    assert type(error) is errors.BrokenLink and error.found == f"../../blobs/{3:064x}"


def test_shards_of_one_checkpoint_in_several_folders_are_one(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "second drive"
    other.mkdir()
    (folder / TWO).rename(other / TWO)
    shutil.copy(folder / THREE, other / THREE)
    assert type(refused(folder)) is errors.MissingShard
    inventory = inspect(folder, splits=[other])
    assert inventory.complete and inventory.problems == ()
    assert inventory.shards[TWO].path == other / TWO
    assert inventory.shards[THREE].other_paths == (other / THREE,)


def test_of_two_files_of_a_name_the_whole_one_is_used(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "second drive"
    other.mkdir()
    shutil.copy(folder / THREE, other / THREE)
    os.truncate(folder / THREE, 20)
    inventory = inspect(folder, splits=[other])
    assert inventory.complete and inventory.shards[THREE].path == other / THREE


def test_indexes_of_split_folders_must_agree(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "second drive"
    write_checkpoint(other, {THREE: SHARDS[THREE]})
    assert [problem.kind for problem in inspect(folder, splits=[other]).problems] == ["indexes-differ"]


# The index


def test_without_an_index_the_headers_are_the_inventory_and_completeness_is_open(folder: Path) -> None:
    (folder / INDEX).unlink()
    inventory = inspect(folder)
    assert inventory.complete is None and isinstance(inventory.index_error, errors.NoIndex)
    assert set(inventory.tensors) == {name for tensors in SHARDS.values() for name in tensors}
    with Checkpoint.open(folder) as checkpoint:
        assert [note.kind for note in checkpoint.notes] == ["no-index"]
        assert len(checkpoint.read("c")) == 40


def test_without_an_index_a_hole_in_the_numbering_is_a_missing_shard(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / TWO).unlink()
    error = refused(folder)
    assert isinstance(error, errors.MissingShard) and error.shard == TWO
    assert inspect(folder).complete is False


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", errors.EmptyIndex),
        (" \n", errors.EmptyIndex),
        ('{"weight_map": {}}', errors.EmptyIndex),
        ('{"weight_map": {"a": "mod', errors.BadIndex),
        ("[]", errors.BadIndex),
        ("{}", errors.BadIndex),
        ('{"weight_map": [1]}', errors.BadIndex),
        ('{"weight_map": {"a": 1}}', errors.BadIndex),
        ('{"weight_map": {"a": "x", "a": "y"}}', errors.BadIndex),
        ('{"weight_map": {"a": "\ud800"}}', errors.BadIndex),
    ],
)
def test_an_unusable_index_is_named_and_the_headers_are_still_listed(
    folder: Path, text: str, kind: type[errors.StorageError]
) -> None:
    (folder / INDEX).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert type(refused(folder)) is kind
    inventory = inspect(folder)
    assert type(inventory.index_error) is kind and len(inventory.tensors) == 5
    assert inventory.complete is None


def test_an_index_that_is_no_file_or_absurdly_large_is_refused_at_once(folder: Path) -> None:
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    assert isinstance(refused(folder), errors.BadIndex)
    (folder / INDEX).unlink()
    (folder / INDEX).touch()
    os.truncate(folder / INDEX, 1 << 40)
    huge = refused(folder)
    assert isinstance(huge, errors.BadIndex) and huge.found == 1 << 40


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "a/../../x.safetensors",
        "..",
        ".",
        "./x",
        "a//x",
        "/etc/passwd",
        "C:x",
        "C:\\x",
        "..\\x",
        "a\\x",
        "x\0y",
        "x\ny",
        "x\x1b[2J",
        "",
        "n" * 256,
        "a/" * 9 + "x",
    ],
)
def test_a_shard_name_that_could_leave_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder.parent / "x.safetensors").write_bytes(shard_bytes({"evil": ("U8", [1])}))
    write_index(folder, {"evil": name})
    error = refused(folder)
    assert isinstance(error, errors.UnsafeShardName)
    assert (error.shard, error.tensor) == (name, "evil") and str(error).isprintable()


def test_a_shard_in_a_folder_below_is_inside(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "weights", {"s.safetensors": SHARDS[THREE]}, index=False)
    write_index(tmp_path, {"c": "weights/s.safetensors"})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert len(checkpoint.read("c")) == 40


def test_index_and_shards_that_disagree_are_told_apart(folder: Path) -> None:
    right = {tensor: shard for shard, tensors in SHARDS.items() for tensor in tensors}
    write_index(folder, {**right, "more": ONE})
    more = refused(folder)
    write_index(folder, {name: shard for name, shard in right.items() if name != "b"})
    less = refused(folder)
    write_index(folder, {**right, "c": ONE})
    moved = kinds(folder)
    assert type(more) is errors.TensorNotInShard and isinstance(less, errors.TensorNotInIndex)
    assert (more.shard, more.tensor, more.found, more.expected) == (ONE, "more", 2, 3)
    assert (less.shard, less.tensor, less.found, less.expected) == (TWO, "b", 2, 1)
    assert moved == ["tensor-not-in-shard", "shard-not-in-index"]


def test_a_shard_the_index_does_not_name_is_said_and_left_alone(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes(shard_bytes({"other": ("U8", [3])}))
    with Checkpoint.open(folder) as checkpoint:
        assert [note.kind for note in checkpoint.notes] == ["shard-not-in-index"]
        assert "other" not in checkpoint.tensors
        with pytest.raises(errors.UnknownTensor):
            checkpoint.read("other")


def test_a_file_name_meant_for_the_terminal_is_shown_escaped(folder: Path) -> None:
    (folder / "x\x1b[2J\n.safetensors").write_bytes(b"")
    [problem] = inspect(folder).problems
    assert problem.kind == "empty-shard" and problem.message.isprintable() and "x1b" in problem.message


def test_a_total_that_is_not_the_headers_sum_is_said(folder: Path) -> None:
    right = {tensor: shard for shard, tensors in SHARDS.items() for tensor in tensors}
    for total, expected in ((332, []), (332.0, []), (333, ["total-bytes-differ"]), ("332", []), (-1, [])):
        write_index(folder, right, metadata={"total_size": total})
        assert kinds(folder) == expected, total
    assert sum(inspect(folder).shards[name].header.data_bytes for name in SHARDS) == 132 + 160 + 40


# Unfinished


def test_a_missing_shard_is_named_with_what_is_here_of_how_much(folder: Path) -> None:
    write_index(folder, inspect(folder).index.weight_map, metadata={"total_size": 332})
    sizes = {name: (folder / name).stat().st_size for name in SHARDS}
    (folder / TWO).unlink()
    error = refused(folder)
    assert type(error) is errors.MissingShard and error.shard == TWO
    # The missing shard's own header is not known, its 160 bytes of tensors follow from the index's total.
    here = sizes[ONE] + sizes[THREE]
    assert f"{TWO} (missing); overall {here:,} of {here + 160:,} bytes" in str(error)


@pytest.mark.parametrize("cut", [1, 4, 80, 159])
def test_a_cut_shard_is_named_with_the_missing_bytes(folder: Path, cut: int) -> None:
    size = (folder / TWO).stat().st_size
    os.truncate(folder / TWO, size - cut)
    error = refused(folder)
    assert type(error) is errors.TruncatedShard
    assert (error.shard, error.found, error.expected) == (TWO, size - cut, size)
    assert f"{cut:,} bytes short" in str(error)
    assert f"{TWO} ({size - cut:,} of {size:,} bytes)" in str(error)


def test_missing_cut_tail_empty_and_refused_are_five_different_things(tmp_path: Path) -> None:
    names = [f"model-0000{n}-of-00005.safetensors" for n in range(1, 6)]
    write_checkpoint(tmp_path, {name: {f"t{i}": ("U8", [100])} for i, name in enumerate(names)})
    (tmp_path / names[0]).unlink()
    os.truncate(tmp_path / names[1], 120)
    (tmp_path / names[2]).write_bytes((tmp_path / names[2]).read_bytes() + b"tail")
    (tmp_path / names[3]).write_bytes(b"")
    (tmp_path / names[4]).write_bytes(raw_header(b'{"t4": 5}') + bytes(100))
    inventory = inspect(tmp_path)
    assert [record.status for record in inventory.shards.values()] == ["missing", "cut", "tail", "cut", "refused"]
    assert [problem.kind for problem in inventory.problems] == [
        "missing-shard",
        "truncated-shard",
        "foreign-tail",
        "empty-shard",
        "bad-tensor-entry",
        "foreign-tail",
    ]
    assert all(problem.blocks and problem.as_json()["message"] for problem in inventory.problems)


def test_a_download_in_progress_opens_for_audit_and_lists_its_unfinished_files(folder: Path) -> None:
    (folder / TWO).rename(folder / (TWO + ".part"))
    hub = folder / ".cache" / "huggingface" / "download"
    hub.mkdir(parents=True)
    (hub / "0123.incomplete").write_bytes(bytes(5))
    inventory = inspect(folder)
    assert [path.name for path in inventory.unfinished] == ["0123.incomplete", TWO + ".part"]
    assert inventory.complete is False and inventory.shards[TWO].status == "missing"
    assert type(refused(folder)) is errors.MissingShard


@pytest.mark.parametrize("with_json", [False, True])
def test_a_folder_that_downloaded_nothing_is_named(folder: Path, with_json: bool) -> None:
    for path in folder.iterdir():
        if not (with_json and path.suffix == ".json"):
            path.unlink()
    (folder / "config.json").write_text("{}")
    error = refused(folder)
    assert type(error) is errors.NoShards
    assert (error.found, error.expected) == (0, 3 if with_json else None)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert type(refused(tmp_path / "absent")) is errors.MissingFolder
    assert type(refused(tmp_path / "file")) is errors.MissingFolder
    assert type(refused(tmp_path / "file" / "below")) is errors.MissingFolder


def test_header_prefixes_under_any_name_are_understood(folder: Path, tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes"
    prefixes.mkdir()
    shutil.copy(folder / INDEX, prefixes / INDEX)
    (prefixes / "notes.txt").write_text("not a shard")
    for i, name in enumerate(SHARDS):
        data = (folder / name).read_bytes()
        (prefixes / f"{i}.head").write_bytes(data[: 8 + int.from_bytes(data[:8], "little") + i])
    inventory = inspect(prefixes)
    assert {record.shard: record.stands_for for record in inventory.shards.values()} == {
        "0.head": ONE,
        "1.head": TWO,
        "2.head": THREE,
    }
    facts = {name: (e.dtype, e.shape, e.extent.offset, e.extent.length) for name, e in inventory.tensors.items()}
    assert facts == {
        name: (e.dtype, e.shape, e.extent.offset, e.extent.length) for name, e in inspect(folder).tensors.items()
    }
    assert all(record.status == "cut" and record.listed for record in inventory.shards.values())
    assert inventory.expected_bytes == sum((folder / name).stat().st_size for name in SHARDS)


def test_a_renamed_shard_is_missing_and_the_file_to_rename_is_named(folder: Path) -> None:
    (folder / TWO).rename(folder / "two.safetensors")
    error = refused(folder)
    assert isinstance(error, errors.RenamedShard)
    assert (error.shard, error.found) == (TWO, "two.safetensors")


# The same thing twice


def test_a_copy_of_a_shard_is_a_duplicate_and_a_changed_copy_is_a_clash(folder: Path) -> None:
    copy = folder / "a copy.safetensors"
    shutil.copy(folder / TWO, copy)
    duplicate = refused(folder)
    assert isinstance(duplicate, errors.DuplicateShard)
    assert (duplicate.found, duplicate.expected) == ("a copy.safetensors", TWO)
    data = bytearray(copy.read_bytes())
    data[data.index(b"I8")] = ord("U")
    copy.write_bytes(data)
    clash = refused(folder)
    assert isinstance(clash, errors.DuplicateTensor)
    assert (clash.found, clash.expected) == ("a copy.safetensors", TWO)
    assert TWO in str(clash) and "a copy.safetensors" in str(clash)


# Reading


def test_rows_past_two_to_the_31_lie_where_64_bit_arithmetic_says(tmp_path: Path) -> None:
    n_rows, row_bytes = (1 << 31) + 7, 4
    raw = raw_header({"t": {"dtype": "U8", "shape": [n_rows, row_bytes], "data_offsets": [0, n_rows * row_bytes]}})
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:  # a sparse file: 8 GiB long, a few KiB on the disk
        file.write(raw)
        file.truncate(len(raw) + n_rows * row_bytes)
        for row in (0, 1 << 31, n_rows - 1):
            file.seek(len(raw) + row * row_bytes)
            file.write(row.to_bytes(4, "little"))
    with Checkpoint.open(tmp_path) as checkpoint:
        rows = bytearray(16)
        for place, row in enumerate((n_rows - 1, 1 << 31, 0, 5)):
            extent = checkpoint.entry("t").extent.part(row * row_bytes, row_bytes)
            checkpoint.read_into(extent, memoryview(rows)[place * row_bytes :][:row_bytes])
    assert rows == b"".join(value.to_bytes(4, "little") for value in (n_rows - 1, 1 << 31, 0, 0))


@given(st.integers(0, 31), st.integers(0, 32), st.lists(st.integers(0, 5), max_size=20))
def test_short_reads_and_interruptions_still_give_every_byte(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, steps: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "short-reads"
    if not folder.exists():
        write_checkpoint(folder, SHARDS)
    left = list(steps)

    def stingy(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        n_bytes = left.pop() if left else len(target)
        if n_bytes == 0:
            raise InterruptedError(errno.EINTR, "interrupted")
        return system.real(path, target[:n_bytes], offset)

    with Checkpoint.open(folder, system=HookedSystem(stingy)) as checkpoint:
        whole = checkpoint.tensors["b"].extent
        part = whole.part(start, min(length, whole.length - start))
        buffer = bytearray(part.length)
        checkpoint.read_into(part, memoryview(buffer))
        assert checkpoint.read_bytes == part.length
    assert buffer == (folder / TWO).read_bytes()[part.offset : part.end]


def test_an_io_error_names_file_offset_and_errno_and_says_that_fetching_will_not_help(folder: Path) -> None:
    with Checkpoint.open(folder, system=failing(errno.EIO, TWO)) as checkpoint:
        assert checkpoint.read("c")
        with pytest.raises(errors.DriveError) as caught:
            checkpoint.read("b")
    error = caught.value
    offset = checkpoint.tensors["b"].extent.offset
    assert type(error) is errors.DriveError
    assert (error.file, error.offset, error.errno) == (folder / TWO, offset, errno.EIO)
    assert str(folder / TWO) in str(error) and f"{offset:,}" in str(error) and "EIO" in str(error)
    assert "fetching it again will not help" in error.hint and "dmesg" in error.hint


def test_one_bad_file_and_a_dead_mount_are_told_apart(folder: Path) -> None:
    with Checkpoint.open(folder, system=failing(errno.EIO)) as checkpoint, pytest.raises(errors.MountError) as caught:
        checkpoint.read("b")
    assert caught.value.errno == errno.EIO and "mount" in caught.value.hint
    assert "other shards" in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "number", "kind"),
    [
        ([TWO], errno.EIO, errors.DriveError),
        ([ONE, TWO, THREE], errno.EIO, errors.MountError),
        ([ONE, TWO, THREE], errno.EACCES, errors.DriveError),
    ],
    ids=["one file", "all", "no permission"],
)
def test_headers_that_cannot_be_read_are_told_apart_likewise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: list[str], number: int, kind: type[errors.DriveError]
) -> None:
    pread = os.pread

    def read_header_bytes(fd: int, n_bytes: int, offset: int) -> bytes:
        if Path(f"/dev/fd/{fd}").resolve().name in bad:
            raise OSError(number, os.strerror(number))
        return pread(fd, n_bytes, offset)

    monkeypatch.setattr("os.pread", read_header_bytes)
    inventory = inspect(folder)
    assert [record.status == "unreadable" for record in inventory.shards.values()] == [
        name in bad for name in (ONE, TWO, THREE)
    ]
    error = refused(folder)
    assert type(error) is kind and isinstance(error, errors.DriveError) and error.errno == number
    assert inventory.problems[0].as_json()["errno"] == number


def test_a_refusal_that_is_not_the_drives_is_not_called_one(folder: Path) -> None:
    with (
        Checkpoint.open(folder, system=failing(errno.EACCES)) as checkpoint,
        pytest.raises(errors.DriveError) as caught,
    ):
        checkpoint.read("b")
    assert type(caught.value) is errors.DriveError and "permissions" in caught.value.hint


def test_no_bytes_before_the_end_is_an_error_with_the_offset(folder: Path) -> None:
    def dry(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        return system.real(path, target[:3], offset) if len(target) == 128 else 0

    with Checkpoint.open(folder, system=HookedSystem(dry)) as checkpoint, pytest.raises(errors.ShortRead) as caught:
        checkpoint.read("table")  # 128 bytes: three come, then none
    assert caught.value.offset == checkpoint.tensors["table"].extent.offset + 3
    assert caught.value.file == folder / TWO and "3 of 128" in str(caught.value)


def test_a_shard_that_shrinks_while_open_is_named(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        size = (folder / TWO).stat().st_size
        os.truncate(folder / TWO, size - 150)
        with pytest.raises(errors.ShardChanged) as caught:
            checkpoint.read("table")
    assert (caught.value.shard, caught.value.found, caught.value.expected) == (TWO, size - 150, size)


def test_a_read_allocates_what_was_asked_for_and_no_more(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"s.safetensors": {"big": ("U8", [256, 4096]), "other": ("U8", [512, 4096])}})
    with Checkpoint.open(tmp_path) as checkpoint:
        tracemalloc.start()
        payload = checkpoint.read("big")
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(payload) == 1 << 20
    assert peak_bytes < (1 << 20) + 50_000


def test_reads_of_many_threads_do_not_disturb_each_other(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        right = {name: bytes(checkpoint.read(name)) for name in checkpoint.tensors}
        before = checkpoint.read_bytes
        wrong: list[str] = []

        def work() -> None:
            for _ in range(50):
                wrong.extend(name for name, payload in right.items() if checkpoint.read(name) != payload)

        _in_threads(work, 4)
        assert wrong == []
        assert checkpoint.read_bytes - before == 4 * 50 * sum(map(len, right.values()))


def test_closing_waits_for_reads_in_flight_and_then_refuses(folder: Path) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(system: HookedSystem, path: Path, target: memoryview, offset: int) -> int:
        reading.set()
        go_on.wait(10)
        return system.real(path, target, offset)

    checkpoint = Checkpoint.open(folder, system=HookedSystem(slow))
    got: list[bytearray] = []
    reader = threading.Thread(target=lambda: got.append(checkpoint.read("c")))
    reader.start()
    assert reading.wait(10)
    closer = threading.Thread(target=checkpoint.close)
    closer.start()
    while not checkpoint.closed:
        pass
    with pytest.raises(errors.ClosedCheckpoint):
        checkpoint.read("c")
    assert closer.is_alive()
    go_on.set()
    reader.join(10)
    closer.join(10)
    assert len(got[0]) == 40 and not closer.is_alive()
    checkpoint.close()


def _in_threads(work: Callable[[], None], n_threads: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_files_are_closed_with_the_checkpoint_and_when_opening_fails(folder: Path) -> None:
    def n_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to count open files")
    before = n_open()
    for _ in range(3):
        with Checkpoint.open(folder) as checkpoint:
            checkpoint.read_into(Extent(shard=ONE, offset=0, length=8), memoryview(bytearray(8)))
            assert n_open() == before + 3
    os.truncate(folder / THREE, 10)
    for _ in range(3):
        refused(folder)
    assert n_open() == before
