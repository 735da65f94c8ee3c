"""Checks, repairs and removals of small copies."""

import errno
import os
from pathlib import Path

import pytest

from storage.errors import CopyDiffers, DriveError, MissingShard, TargetRefused
from storage.mirroring.checking import CheckedShard, blocks_to_check, check_copies
from storage.mirroring.files import WriteCalls
from storage.mirroring.manifest import NAME, read_manifest
from storage.mirroring.undoing import remove_copies, repair_blocks
from storage.syscalls import SYSTEM, Syscalls
from tests.storage.hooked import HookedSystem, failing
from tests.storage.mirroring.copies import BLOCK_BYTES, NAMES, Hooked, copier, jobs, make_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def target(model: Path) -> Path:
    folder = model.parent / "mirror"
    copier(model, folder).run(jobs(model))
    return folder


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 0x10]))


def check(model: Path, target: Path, *, sources: bool = True, system: Syscalls = SYSTEM) -> dict[str, CheckedShard]:
    manifest = read_manifest(target)
    assert manifest is not None
    found = check_copies(
        target, manifest, everything=True, sources=lambda shard: model / shard if sources else None, system=system
    )
    return {one.shard: one for one in found}


def test_sound_copies_pass_and_every_byte_was_read(model: Path, target: Path) -> None:
    for name, one in check(model, target).items():
        assert one.error is None and one.checked_bytes == (model / name).stat().st_size


@pytest.mark.parametrize("at", [0, 999, 1000, 1500, 2100])
def test_one_flipped_byte_is_named(model: Path, target: Path, at: int) -> None:
    flip(target / NAMES[1], at)
    found = check(model, target)
    assert isinstance(found[NAMES[1]].error, CopyDiffers) and f"byte {at:,} is" in str(found[NAMES[1]].error)
    assert (found[NAMES[1]].first_difference, found[NAMES[1]].bad_blocks) == (at, (at // BLOCK_BYTES,))
    assert found[NAMES[0]].error is None and found[NAMES[2]].error is None
    alone = check(model, target, sources=False)[NAMES[1]]
    assert alone.first_difference is None and "the first between bytes" in str(alone.error)


def test_a_source_that_changed_is_told_from_a_damaged_copy(model: Path, target: Path) -> None:
    flip(target / NAMES[0], 1200)
    written = (model / NAMES[0]).stat()
    flip(model / NAMES[0], 1300)
    assert "was written again since" in str(check(model, target)[NAMES[0]].error)
    os.utime(model / NAMES[0], ns=(written.st_atime_ns, written.st_mtime_ns))  # as bits do that rot
    assert "was copied from has changed there too" in str(check(model, target)[NAMES[0]].error)


def test_missing_and_cut_copies_are_named(model: Path, target: Path) -> None:
    (target / NAMES[0]).unlink()
    os.truncate(target / NAMES[1], 500)
    found = check(model, target)
    assert isinstance(found[NAMES[0]].error, MissingShard)
    assert "has 500 bytes" in str(found[NAMES[1]].error)


def test_samples_hold_both_ends_repeat_and_are_few() -> None:
    some = blocks_to_check(1000, everything=False, seed="s")
    assert (
        some == blocks_to_check(1000, everything=False, seed="s") != blocks_to_check(1000, everything=False, seed="t")
    )
    assert len(some) == 6 and some[0] == 0 and some[-1] == 999
    assert blocks_to_check(5, everything=False, seed="s") == (0, 1, 2, 3, 4)
    assert blocks_to_check(1000, everything=True, seed="s") == tuple(range(1000))


def test_a_repair_copies_the_bad_block_again_and_nothing_else(model: Path, target: Path) -> None:
    flip(target / NAMES[1], 1500)
    written: list[int] = []
    assert repair_blocks(target, NAMES[1], [1], model / NAMES[1], writes=Hooked(written.append)) == BLOCK_BYTES
    assert written == [1] and (target / NAMES[1]).read_bytes() == (model / NAMES[1]).read_bytes()


def test_a_block_that_cannot_be_read_hides_none_behind_it_and_is_written_again(model: Path, target: Path) -> None:
    def bad_sector(system: HookedSystem, path: Path, block: memoryview, offset: int) -> int:
        if path == target / NAMES[1] and offset == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return system.real(path, block, offset)

    for at in (500, 2100):
        flip(target / NAMES[1], at)
    found = check(model, target, system=HookedSystem(bad_sector))[NAMES[1]]
    assert isinstance(found.error, DriveError) and found.error.offset == 0
    assert found.bad_blocks == (0, 2) and found.checked_bytes == found.file_bytes - BLOCK_BYTES
    repair_blocks(target, NAMES[1], found.bad_blocks, model / NAMES[1])
    assert (target / NAMES[1]).read_bytes() == (model / NAMES[1]).read_bytes()


def test_a_drive_that_gives_nothing_is_not_taken_for_blocks_to_repair(model: Path, target: Path) -> None:
    found = check(model, target, system=failing(errno.EIO, str(target / NAMES[1])))[NAMES[1]]
    assert isinstance(found.error, DriveError) and found.bad_blocks == () and found.checked_bytes == 0


def test_a_repair_from_a_source_that_changed_is_refused_untouched(model: Path, target: Path) -> None:
    flip(target / NAMES[1], 1500)
    flip(model / NAMES[1], 1600)
    before = (target / NAMES[1]).read_bytes()
    with pytest.raises(CopyDiffers, match="no longer what"):
        repair_blocks(target, NAMES[1], [1], model / NAMES[1])
    assert (target / NAMES[1]).read_bytes() == before


def test_a_removal_takes_what_was_made_here_and_leaves_the_rest(model: Path, target: Path) -> None:
    (target / "mine.txt").write_text("keep")
    first = copier(model, target, writes=Hooked(lambda n: first.stop() if n == 1 else None))
    (target / NAMES[0]).unlink()
    first.run(jobs(model))  # an interrupted copy, whose part goes too
    removed = remove_copies(target, lambda shard: (model / shard).exists())
    assert set(removed.shards) == set(NAMES)
    assert [path.name for path in target.iterdir()] == ["mine.txt"]
    assert sorted(path.name for path in model.glob("*.safetensors")) == NAMES


def test_a_full_drive_gets_room_for_the_record_by_the_first_copy_that_goes(target: Path) -> None:
    class Full(WriteCalls):
        is_full = True

        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(fd, data, offset)

        def unlink(self, path: Path) -> None:
            super().unlink(path)
            self.is_full = False

    assert remove_copies(target, lambda shard: True, writes=Full()).shards == tuple(NAMES)
    assert not target.exists()


def test_an_empty_mirror_folder_goes_too(model: Path, target: Path) -> None:
    remove_copies(target, lambda shard: True)
    assert not target.exists()


def test_the_only_copy_there_is_stays(model: Path, target: Path) -> None:
    (model / NAMES[2]).unlink()
    with pytest.raises(TargetRefused, match="is the only one there is"):
        remove_copies(target, lambda shard: (model / shard).exists())
    assert sorted(path.name for path in target.glob("*.safetensors")) == NAMES
    kept = remove_copies(target, lambda shard: (model / shard).exists(), shards=NAMES[:2])
    assert kept.shards == tuple(NAMES[:2])
    manifest = read_manifest(target)
    assert manifest is not None and list(manifest.shards) == [NAMES[2]]


def test_a_folder_without_a_record_is_not_touched(tmp_path: Path, model: Path) -> None:
    with pytest.raises(TargetRefused, match=f"has no {NAME}"):
        remove_copies(model, lambda shard: True)
