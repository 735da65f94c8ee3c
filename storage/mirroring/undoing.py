"""Repairs and takes away what was copied here, and nothing else.

The one thing a reader would get wrong: a split's copies may be the only ones there are. They are never removed; they
are copied back first, like any other shard.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import CopyDiffers, NotVerified, TargetRefused, WriteError, shown
from storage.mirroring.copying import LOCK_NAME, abandon, locked
from storage.mirroring.files import WRITE, WriteCalls
from storage.mirroring.manifest import NAME, Manifest, read_manifest, remove_manifest, without_shard, write_manifest
from storage.mirroring.part import checked
from storage.reader import open_shard
from storage.syscalls import SYSTEM, Syscalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was taken away."""

    shards: tuple[str, ...]
    freed_bytes: int


def repair_blocks(
    folder: Path,
    shard: str,
    blocks: Sequence[int],
    source: Path,
    *,
    on_bytes: Callable[[int], None] = lambda n_bytes: None,
    reads: Syscalls = SYSTEM,
    writes: WriteCalls = WRITE,
) -> int:
    """Copy the numbered blocks of `shard` again, from a source that still is what was copied; the bytes written.

    Raises: TargetRefused when the folder has no record of the shard; CopyDiffers when the source no longer is what was
    copied, before anything is written; NotVerified; WriteError; DriveError; MirrorBusy.
    """
    with locked(folder, writes):
        manifest = read_manifest(folder)
        if manifest is None or shard not in manifest.shards:
            raise TargetRefused(f"{shown(str(folder))} has no record of {shown(shard)}", hint="Copy the shard again.")
        copied = manifest.shards[shard]
        path = folder / shard
        n_bytes = 0
        right = open_shard(source, shard, reads, expected_bytes=copied.file_bytes)
        try:
            fd = checked(lambda: writes.open(path), path, "open")
            try:
                for index in blocks:
                    offset = index * copied.block_bytes
                    block = memoryview(bytearray(min(copied.block_bytes, copied.file_bytes - offset)))
                    right.read_exactly(block, offset)
                    if hashlib.sha256(block).hexdigest() != copied.blocks[index]:
                        raise CopyDiffers(
                            f"{shown(str(source))} is no longer what {shown(str(path))} was copied from, at byte "
                            f"{offset:,}",
                            shard=shard,
                            hint="Run `artesian audit`, then copy the shard again.",
                        )

                    def put(block: memoryview = block, offset: int = offset) -> None:
                        writes.write_all(fd, block, offset)
                        writes.sync_data(fd)

                    checked(put, path, "write")
                    _require(path, shard, offset, copied.blocks[index], len(block), reads)
                    n_bytes += len(block)
                    on_bytes(len(block))
            finally:
                writes.close(fd)
        finally:
            right.close()
        return n_bytes


def remove_copies(
    folder: Path, has_other: Callable[[str], bool], *, shards: Sequence[str] | None = None, writes: WriteCalls = WRITE
) -> Removed:
    """Take away the copies the folder's record names (or those of them in `shards`), and what interrupted ones left.

    `has_other` says whether a whole file of a shard exists elsewhere; without one its copy stays and this is refused.
    Files that are not in the record are left alone; the folder goes when nothing is left in it.
    Raises: TargetRefused; MirrorBusy; WriteError.
    """
    _record_of(folder)  # before the lock, which is a file, is made in a folder of somebody else
    freed = 0
    with locked(folder, writes):
        manifest = _record_of(folder)  # a copy may have ended meanwhile
        wanted = [shard for shard in (shards if shards is not None else manifest.shards) if shard in manifest.shards]
        only = next((shard for shard in wanted if not has_other(shard)), None)
        if only is not None:
            raise TargetRefused(
                f"{shown(only)} in {shown(str(folder))} is the only one there is: it is not removed",
                hint="`artesian mirror join` moves it back to the model's folder.",
            )
        for shard in wanted:
            path = folder / shard
            size = _bytes_on_drive(path)
            # Before the record changes: that takes room, and the drive may be full. A record of no file is no harm.
            _unlink(path, writes)
            manifest = without_shard(manifest, shard)
            write_manifest(folder, manifest, writes)
            freed += size
        freed += _leftovers(folder, writes)
        if not manifest.shards:
            remove_manifest(folder, writes)
            _unlink(folder / LOCK_NAME, writes)
    if not manifest.shards and not any(folder.iterdir()):
        folder.rmdir()
    return Removed(shards=tuple(wanted), freed_bytes=freed)


def _record_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None:
        raise TargetRefused(
            f"{shown(str(folder))} has no {NAME}: it was not made here",
            hint="Remove its files by hand if you are sure of them.",
        )
    return manifest


def drop_sources(sources: Sequence[Path], copies: Path, *, writes: WriteCalls = WRITE) -> int:
    """Take away the files that were copied whole into the folder `copies`, which is on record; the bytes freed.

    Nothing is removed unless all of it can be: every source is a file of its own, not a link, and its copy is there at
    full size and on record. Raises: TargetRefused; WriteError.
    """
    manifest = read_manifest(copies)
    for source in sources:
        known = None if manifest is None else manifest.shards.get(source.name)
        if known is None or _bytes_on_drive(copies / source.name) != known.file_bytes:
            raise TargetRefused(f"{shown(source.name)} has no verified copy in {shown(str(copies))}: it stays")
        if source.is_symlink() or not source.is_file():
            raise TargetRefused(
                f"{shown(str(source))} is a link: what it points to belongs to something else, and stays",
                hint="Split a folder that holds the files themselves; a mirror works with links.",
            )
    freed = 0
    for source in sources:
        freed += _bytes_on_drive(source)
        _unlink(source, writes)
    for folder in {source.parent for source in sources}:
        checked(lambda folder=folder: writes.sync_folder(folder), folder, "write")  # type: ignore[misc]
    return freed


def _leftovers(folder: Path, writes: WriteCalls) -> int:
    freed = 0
    for path in [*folder.glob(".*.artesian-part"), *folder.glob(".*.artesian-journal")]:
        freed += abandon(folder, path.name[1:].rpartition(".artesian-")[0], writes)
    return freed


def _bytes_on_drive(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _unlink(path: Path, writes: WriteCalls) -> None:
    try:
        writes.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteError.of(error, path, "remove") from error


def _require(path: Path, shard: str, offset: int, sha256: str, length: int, reads: Syscalls) -> None:
    """The block on the drive is what it should be, read past the page cache."""
    file = open_shard(path, shard, reads)
    try:
        block = memoryview(bytearray(length))
        file.read_afresh(block, offset)
    finally:
        file.close()
    if hashlib.sha256(block).hexdigest() != sha256:
        raise NotVerified(
            f"{shown(str(path))} reads back otherwise than it was written at byte {offset:,}",
            hint="The drive that is copied to is failing; do not use it for this.",
        )
