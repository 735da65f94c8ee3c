"""Whether a copy still is what was copied: its header, and samples or all of its payload, against the record's hashes.

The one thing a reader would get wrong: the record's hashes are those of the source when it was copied. A copy that
differs from them is damaged; a source that differs was changed or is damaged itself, and is told apart.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import CopyDiffers, DriveError, StorageError, shown
from storage.mirrorcheck import first_difference
from storage.mirroring.manifest import CopiedShard, Manifest
from storage.reader import ShardFile, open_shard
from storage.syscalls import SYSTEM, Syscalls

SAMPLED_BLOCKS = 4
"""Of each shard, besides its first and last block."""


_MOST_UNREADABLE = 3
"""Blocks in a row: of a drive that gives none of them each would take as long as it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedShard:
    """One copy after its check."""

    shard: str
    path: Path
    checked_bytes: int
    file_bytes: int
    error: StorageError | None
    """What differs, or why it could not be read; None when everything checked is right."""
    bad_blocks: tuple[int, ...] = ()
    """Blocks that differ or cannot be read, by number, of those checked."""
    first_difference: int | None = None
    """Offset of the first byte that differs from the source; None when the source cannot tell."""


def check_copies(
    folder: Path,
    manifest: Manifest,
    *,
    everything: bool,
    sources: Callable[[str], Path | None] = lambda shard: None,
    shards: Sequence[str] | None = None,
    seed: int = 0,
    on_bytes: Callable[[int], None] = lambda n_bytes: None,
    should_stop: Callable[[], bool] = lambda: False,
    system: Syscalls = SYSTEM,
) -> Iterator[CheckedShard]:
    """Check the copies of `folder` against its record, one a step.

    `everything` reads every block, else the first, the last and a few fixed by `seed`. `sources` gives the file a shard
    was copied from, to name the first byte that differs. `on_bytes` is told what was read.
    """
    for shard in shards if shards is not None else manifest.shards:
        if should_stop():
            return
        copied = manifest.shards[shard]
        yield _check(folder / shard, shard, copied, everything, sources, seed, on_bytes, should_stop, system)


def blocks_to_check(n_blocks: int, *, everything: bool, seed: str) -> tuple[int, ...]:
    """The numbers of the blocks that a check reads, ascending; the same for the same seed."""
    if everything or n_blocks <= SAMPLED_BLOCKS + 2:
        return tuple(range(n_blocks))
    inner = random.Random(seed).sample(range(1, n_blocks - 1), SAMPLED_BLOCKS)
    return tuple(sorted({0, n_blocks - 1, *inner}))


def _check(
    path: Path,
    shard: str,
    copied: CopiedShard,
    everything: bool,
    sources: Callable[[str], Path | None],
    seed: int,
    on_bytes: Callable[[int], None],
    should_stop: Callable[[], bool],
    system: Syscalls,
) -> CheckedShard:
    checked_bytes = 0
    bad: list[int] = []
    unreadable: DriveError | None = None
    n_in_a_row = 0

    def result(error: StorageError | None, first: int | None = None) -> CheckedShard:
        return CheckedShard(
            shard=shard, path=path, checked_bytes=checked_bytes, file_bytes=copied.file_bytes, error=error,
            bad_blocks=tuple(bad), first_difference=first,
        )  # fmt: skip

    try:
        file = open_shard(path, shard, system, expected_bytes=None)
    except StorageError as error:
        return result(error)
    try:
        source = sources(shard)
        written_ns = copied.source_mtime_ns
        if written_ns is not None and source is not None and _written_since(path, source, written_ns):
            return result(_outdated(path, source, shard))
        if file.file_bytes != copied.file_bytes:
            return result(_differs(path, shard, f"has {file.file_bytes:,} bytes, {copied.file_bytes:,} were copied"))
        for index in blocks_to_check(len(copied.blocks), everything=everything, seed=f"{seed} {shard}"):
            if should_stop():
                break
            try:
                block = _block(file, index, copied.block_bytes)
            except DriveError as error:  # what is behind it may be sound, and what is not can be written again
                unreadable = unreadable or error
                bad.append(index)
                n_in_a_row += 1
                if n_in_a_row == _MOST_UNREADABLE:
                    bad.clear()  # it is the drive
                    break
                continue
            n_in_a_row = 0
            checked_bytes += len(block)
            on_bytes(len(block))
            if hashlib.sha256(block).hexdigest() != copied.blocks[index]:
                bad.append(index)
    except StorageError as error:
        return result(error)
    finally:
        file.close()
    if not bad or unreadable is not None:
        return result(unreadable)
    return result(*_named(path, shard, copied, bad, sources(shard), system))


def _named(
    path: Path, shard: str, copied: CopiedShard, bad: Sequence[int], source: Path | None, system: Syscalls
) -> tuple[StorageError, int | None]:
    """The error for blocks that differ, with the first byte when the source still is what was copied."""
    start = bad[0] * copied.block_bytes
    between = f"{start:,} and {min(start + copied.block_bytes, copied.file_bytes):,}"
    found = f"differs from what was copied, in {len(bad)} of its blocks, the first between bytes {between}"
    if source is None:
        return _differs(path, shard, found), None
    try:
        right_file = open_shard(source, shard, system, expected_bytes=copied.file_bytes)
        try:
            right = _block(right_file, bad[0], copied.block_bytes)
        finally:
            right_file.close()
        copy_file = open_shard(path, shard, system)
        try:
            wrong = _block(copy_file, bad[0], copied.block_bytes)
        finally:
            copy_file.close()
    except StorageError:
        return _differs(path, shard, found), None
    if hashlib.sha256(right).hexdigest() != copied.blocks[bad[0]]:
        return _differs(path, shard, f"{found}; the shard it was copied from has changed there too"), None
    place = first_difference(right, wrong)
    if place is None:  # it read back right this time
        return _differs(path, shard, f"{found}, and not when it was read again: the drive is failing"), None
    said = f"{found}: byte {start + place:,} is {wrong[place]:#04x}, not {right[place]:#04x}"
    return _differs(path, shard, said), start + place


def _written_since(path: Path, source: Path, mtime_ns: int) -> bool:
    try:
        return source.stat().st_mtime_ns != mtime_ns and not source.samefile(path)
    except OSError:
        return False  # a drive that is gone says nothing of its files


def _outdated(path: Path, source: Path, shard: str) -> CopyDiffers:
    return CopyDiffers(
        f"{shown(str(source))} was written again since {shown(str(path))} was copied from it",
        shard=shard,
        hint="`artesian mirror copy` compares the two, and copies the shard again if they differ.",
    )


def _differs(path: Path, shard: str, said: str) -> CopyDiffers:
    return CopyDiffers(
        f"{shown(str(path))} {said}", shard=shard, hint="`artesian mirror repair` copies the damaged blocks again."
    )


def _block(file: ShardFile, index: int, block_bytes: int) -> bytearray:
    offset = index * block_bytes
    block = bytearray(min(block_bytes, file.file_bytes - offset))
    file.read_afresh(memoryview(block), offset)
    return block
