"""Copies of small shards: whole or not there, resumed where they were, read back, never under a false name."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage.checkpoint import Checkpoint
from storage.errors import MirrorBusy, NoSpace, NotVerified, ShardChanged, StorageError, TargetRefused, WriteError
from storage.mirroring.checking import check_copies
from storage.mirroring.copying import CopyProgress, locked
from storage.mirroring.files import WriteCalls
from storage.mirroring.manifest import read_manifest
from storage.mirroring.part import Part, PartFacts, journal_path, part_path
from tests.storage.hooked import HookedSystem
from tests.storage.mirroring.copies import (
    BLOCK_BYTES,
    FINGERPRINT,
    NAMES,
    Failing,
    Hooked,
    copier,
    headers,
    jobs,
    make_model,
    manifest,
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def named(target: Path) -> list[str]:
    """The shards that lie there under their final names."""
    return sorted(path.name for path in target.glob("*.safetensors"))


def assert_only_whole_copies(model: Path, target: Path) -> None:
    for name in named(target):
        assert (target / name).read_bytes() == (model / name).read_bytes()


def test_copies_are_equal_recorded_and_accepted_as_a_mirror(model: Path, target: Path) -> None:
    seen: list[CopyProgress] = []
    assert copier(model, target, on_progress=seen.append).run(jobs(model)) == tuple(NAMES)
    assert named(target) == NAMES
    assert_only_whole_copies(model, target)
    made = read_manifest(target)
    assert made is not None and set(made.shards) == set(NAMES) and made.fingerprint == FINGERPRINT
    total = 2 * sum((model / name).stat().st_size for name in NAMES)
    assert (seen[-1].done_bytes, seen[-1].total_bytes) == (total, total)
    assert {one.phase for one in seen} == {"copying", "reading back"}
    assert not [path for path in target.iterdir() if "artesian-part" in path.name or "journal" in path.name]
    with Checkpoint.open(model, mirrors=[target]) as checkpoint:
        assert all(len(checkpoint.replicas.copies(name)) == 2 for name in NAMES)


def test_a_second_run_copies_nothing_again(model: Path, target: Path) -> None:
    copier(model, target).run(jobs(model))
    before = {name: (target / name).stat().st_ino for name in NAMES}
    assert copier(model, target).run(jobs(model)) == ()
    assert {name: (target / name).stat().st_ino for name in NAMES} == before


def test_a_shard_whose_file_was_cut_since_is_copied_again(model: Path, target: Path) -> None:
    copier(model, target).run(jobs(model))
    os.truncate(target / NAMES[1], 100)
    assert copier(model, target).run(jobs(model)) == (NAMES[1],)
    assert_only_whole_copies(model, target)


def test_stopped_after_a_block_it_goes_on_there(model: Path, target: Path) -> None:
    first = copier(model, target, writes=Hooked(lambda n: first.stop() if n == 2 else None))
    assert first.run(jobs(model)) == ()
    assert named(target) == [] and part_path(target, NAMES[0]).stat().st_size == 2 * BLOCK_BYTES
    read: list[int] = []

    def spy(system: HookedSystem, path: Path, block: memoryview, offset: int) -> int:
        if path.parent == model and (offset or len(block) == BLOCK_BYTES):  # the header is read once more at the end
            read.append(offset)
        return system.real(path, block, offset)

    assert copier(model, target, reads=HookedSystem(spy)).run(jobs(model)[:1]) == (NAMES[0],)
    assert read == [2 * BLOCK_BYTES]  # the two blocks that were safe are not read from the source again
    assert_only_whole_copies(model, target)


def test_a_pause_holds_the_next_block_until_it_ends(model: Path, target: Path) -> None:
    paused, blocks = threading.Event(), []

    def hook(n: int) -> None:
        blocks.append(n)
        if n == 1:
            made.pause()
            paused.set()

    made = copier(model, target, writes=Hooked(hook))
    thread = threading.Thread(target=lambda: made.run(jobs(model)))
    thread.start()
    assert paused.wait(10)
    thread.join(0.1)
    assert thread.is_alive() and blocks == [1]
    made.go_on()
    thread.join(10)
    assert named(target) == NAMES


def test_a_source_that_was_written_again_is_compared_and_copied_only_where_it_differs(
    model: Path, target: Path
) -> None:
    copier(model, target).run(jobs(model))
    phases: list[str] = []
    again = copier(model, target, on_progress=lambda progress: phases.append(progress.phase))
    assert again.run(jobs(model)) == () and phases == []
    # One is fetched again as it was, one with another last byte: both have the header and the size they had.
    shard = model / NAMES[1]
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    for name in NAMES[:2]:
        os.utime(model / name, ns=(1, 1))
    record = read_manifest(target)
    assert record is not None
    found = {one.shard: one.error for one in check_copies(target, record, everything=True, sources=model.joinpath)}
    assert [found[name] is None for name in NAMES] == [False, False, True]
    assert "was written again since" in str(found[NAMES[0]])
    assert again.run(jobs(model)) == (NAMES[1],) and set(phases) == {"comparing", "copying", "reading back"}
    assert_only_whole_copies(model, target)
    record = read_manifest(target)
    assert record is not None
    assert not [one for one in check_copies(target, record, everything=True, sources=model.joinpath) if one.error]
    phases.clear()
    assert again.run(jobs(model)) == () and phases == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failure_at_every_write_in_turn_leaves_nothing_half_named_and_can_be_resumed(
    model: Path, target: Path, number: int
) -> None:
    n = 0
    while True:
        n += 1
        writes = Failing(n, number)
        try:
            copier(model, target, writes=writes).run(jobs(model)[:1])
        except WriteError as error:
            assert error.errno == number and isinstance(error, NoSpace) == (number == errno.ENOSPC)
            assert_only_whole_copies(model, target)
        if not writes.failed:
            break
        copier(model, target).run(jobs(model)[:1])
        assert named(target) == NAMES[:1]
        assert_only_whole_copies(model, target)
        made = read_manifest(target)
        assert made is not None and set(made.shards) == {NAMES[0]}
        for path in target.iterdir():
            path.unlink()
    assert n > 12  # every kind of call was reached


def test_what_cannot_fit_is_refused_before_anything_is_written(model: Path, target: Path) -> None:
    needed = sum((model / name).stat().st_size for name in NAMES)

    class Small(WriteCalls):
        def free_bytes(self, folder: Path) -> int:
            return needed + 99

    assert needed < 1_000_000 and not target.exists()
    with pytest.raises(NoSpace, match=r" kB free; the copy takes .* kB and 100 B are to stay free: 1 B too little$"):
        copier(model, target / "deep", writes=Small(), reserve_bytes=100).run(jobs(model))
    assert not target.exists()  # what was made for it is gone
    target.mkdir()
    with pytest.raises(NoSpace):
        copier(model, target, writes=Small(), reserve_bytes=100).run(jobs(model))
    assert named(target) == [] and not list(target.glob("*part*"))  # what was there before stays
    small = copier(model, target, writes=Small(), reserve_bytes=0)
    assert small.run(jobs(model)) == tuple(NAMES)


def test_space_that_others_take_on_the_way_ends_the_copy_cleanly(model: Path, target: Path) -> None:
    class Shrinking(WriteCalls):
        free = 100_000

        def free_bytes(self, folder: Path) -> int:
            self.free -= 24_000
            return self.free

    with pytest.raises(NoSpace, match="something else fills the drive"):
        copier(model, target, writes=Shrinking(), reserve_bytes=5_000).run(jobs(model))
    assert_only_whole_copies(model, target)
    copier(model, target).run(jobs(model))
    assert named(target) == NAMES


def test_a_drive_that_gives_back_other_bytes_is_found_out_and_gets_no_name(model: Path, target: Path) -> None:
    def flip(system: HookedSystem, path: Path, block: memoryview, offset: int) -> int:
        n_read = system.real(path, block, offset)
        if path.parent == target and offset == BLOCK_BYTES:
            block[7] ^= 1
        return n_read

    with pytest.raises(NotVerified, match="twice, between bytes 1,000 and 2,000"):
        copier(model, target, reads=HookedSystem(flip)).run(jobs(model))
    assert named(target) == []


def test_a_block_that_reads_back_wrong_once_is_written_again(model: Path, target: Path) -> None:
    flips = [1]

    def flip_once(system: HookedSystem, path: Path, block: memoryview, offset: int) -> int:
        n_read = system.real(path, block, offset)
        if path.parent == target and flips:
            block[0] ^= flips.pop()
        return n_read

    assert copier(model, target, reads=HookedSystem(flip_once)).run(jobs(model)) == tuple(NAMES)
    assert not flips
    assert_only_whole_copies(model, target)


def test_a_source_that_changes_meanwhile_is_no_copy(model: Path, target: Path) -> None:
    def rewrite(n: int) -> None:
        if n == 1:
            at = (model / NAMES[0]).read_bytes().index(b"t0")
            with (model / NAMES[0]).open("r+b") as file:  # in place: at no moment has it another size
                file.seek(at)
                file.write(b"u")

    with pytest.raises(ShardChanged, match="changed while it was copied"):
        copier(model, target, writes=Hooked(rewrite)).run(jobs(model))
    assert named(target) == []


def test_two_at_once_are_told_apart(model: Path, target: Path) -> None:
    target.mkdir()
    with locked(target), pytest.raises(MirrorBusy, match="another program is copying"):
        copier(model, target).run(jobs(model))


def test_a_folder_with_another_checkpoints_copies_is_refused(model: Path, target: Path) -> None:
    copier(model, target).run(jobs(model)[:1])
    text = (target / "artesian-mirror.json").read_text()
    (target / "artesian-mirror.json").write_text(text.replace(FINGERPRINT, "d" * 64))
    with pytest.raises(TargetRefused, match="mirror of another checkpoint"):
        copier(model, target).run(jobs(model))


@pytest.mark.parametrize("cut", [0, 1, 50, 200, 300, 350])
def test_a_torn_journal_vouches_only_for_its_whole_lines(model: Path, target: Path, cut: int) -> None:
    target.mkdir()
    header = headers(model)[NAMES[0]]
    data = memoryview((model / NAMES[0]).read_bytes())
    part = Part.open(target, PartFacts.of(header, BLOCK_BYTES, 7), WriteCalls())
    for index, sha256 in enumerate(("a" * 64, "b" * 64)):
        part.append(data[index * BLOCK_BYTES :][:BLOCK_BYTES], sha256)
    part.close()
    journal = journal_path(target, NAMES[0])
    lines = journal.read_text().split("\n")
    os.truncate(journal, cut)
    whole = len(journal.read_text().split("\n")) - 1
    again = Part.open(target, PartFacts.of(header, BLOCK_BYTES, 7), WriteCalls())
    assert again.hashes == lines[1:whole] and part_path(target, NAMES[0]).stat().st_size == BLOCK_BYTES * len(
        again.hashes
    )
    again.close()


def test_a_part_of_another_revision_is_begun_again(model: Path, target: Path) -> None:
    first = copier(model, target, writes=Hooked(lambda n: first.stop() if n == 2 else None))
    first.run(jobs(model))
    data = (model / NAMES[0]).read_bytes()
    (model / NAMES[0]).write_bytes(data.replace(b'"t0"', b'"u0"', 1))
    copier(model, target).run(jobs(model)[:1])
    assert_only_whole_copies(model, target)


def test_a_source_that_was_fetched_again_is_begun_anew(model: Path, target: Path) -> None:
    first = copier(model, target, writes=Hooked(lambda n: first.stop() if n == 2 else None))
    first.run(jobs(model))
    data = (model / NAMES[0]).read_bytes()
    (model / NAMES[0]).write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])  # with the header it had
    os.utime(model / NAMES[0], ns=(1, 1))
    assert copier(model, target).run(jobs(model)[:1]) == (NAMES[0],)
    assert_only_whole_copies(model, target)


def test_a_source_that_is_written_to_meanwhile_leaves_no_record(model: Path, target: Path) -> None:
    def write(n: int) -> None:
        if n == 2:
            with (model / NAMES[0]).open("r+b") as file:
                file.seek(900)  # behind the header, in a block that was read before
                file.write(b"~")
            os.utime(model / NAMES[0], ns=(1, 1))

    with pytest.raises(ShardChanged, match="changed while it was copied"):
        copier(model, target, writes=Hooked(write)).run(jobs(model))
    assert named(target) == [] and read_manifest(target) is None
    assert copier(model, target).run(jobs(model)) == tuple(NAMES)
    assert_only_whole_copies(model, target)


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.storage.mirroring.copies import Hooked, copier, jobs
model, target, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
writes = Hooked(lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == at else None)
copier(model, target, writes=writes).run(jobs(model))
"""


@pytest.mark.parametrize("at", [1, 5, 9])
def test_killed_in_mid_copy_it_leaves_no_false_shard_and_goes_on(model: Path, target: Path, at: int) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(model), str(target), str(at)], check=False)
    assert killed.returncode == -signal.SIGKILL
    n_whole = (at - 1) // 3
    assert named(target) == NAMES[:n_whole]
    assert_only_whole_copies(model, target)
    assert copier(model, target).run(jobs(model)) == tuple(NAMES[n_whole:])
    assert_only_whole_copies(model, target)
    with Checkpoint.open(model, mirrors=[target]) as checkpoint:
        assert all(len(checkpoint.replicas.copies(name)) == 2 for name in NAMES)


def test_a_target_that_cannot_be_made_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        copier(model, tmp_path / "file" / "mirror").run(jobs(model))
    assert manifest(model).source == str(model)
