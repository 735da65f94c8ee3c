"""Compare sampled payload of copies with the shards they are copies of: equal headers do not prove equal bytes.

What is sampled is fixed by a seed, spread evenly over each shard, and always includes its first and last block, so that
a second run checks the same and a copy that was cut or filled with zeros at its end is found. Both files are read past
what the page cache may still hold of them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.copies import Copy
from storage.errors import CopyDiffers, StorageError, shown
from storage.headers import ShardHeader
from storage.reader import ShardFile, open_shard
from storage.replicas import ReplicaSet
from storage.syscalls import SYSTEM, Syscalls

BLOCK_BYTES = 1 << 20
BLOCKS_PER_SHARD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCopy:
    """One copy after its comparison."""

    copy: Copy
    checked_bytes: int
    """Payload bytes compared, of each of the two files."""
    error: StorageError | None
    """CopyDiffers at the first byte that differs, or why one of the two could not be read; None when all was equal."""
    first_difference: int | None
    """Offset in the file of the first byte that differs among those compared."""


def verify_mirror(
    replicas: ReplicaSet,
    folder: Path,
    headers: Mapping[str, ShardHeader],
    *,
    blocks_per_shard: int = BLOCKS_PER_SHARD,
    block_bytes: int = BLOCK_BYTES,
    seed: int = 0,
    system: Syscalls = SYSTEM,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[CheckedCopy]:
    """Compare every copy in `folder` with the checkpoint's own file, one shard a step, and withdraw those that differ.

    `headers` are the checkpoint's, by shard. A copy that cannot be read is reported and stays: that is the drive's
    fault. Reads 2 * blocks_per_shard * block_bytes a shard, less where the shard is smaller.
    """
    for shard, header in headers.items():
        original, *others = replicas.copies(shard)
        for copy in (copy for copy in others if copy.folder == folder):
            if should_stop():
                return
            checked = _compare(copy, original, header, blocks_per_shard, block_bytes, seed, system)
            if checked.first_difference is not None:
                replicas.withdraw(copy)
            yield checked


def sample_blocks(start: int, end: int, n_blocks: int, block_bytes: int, seed: str) -> list[tuple[int, int]]:
    """Up to `n_blocks` (offset, length) in [start, end): the first, the last, and one somewhere in each equal part
    between.

    All of it, when it has no more than that. The same seed gives the same blocks.
    """
    length = end - start
    if length <= n_blocks * block_bytes:
        return [(at, min(block_bytes, end - at)) for at in range(start, end, block_bytes)]
    draw = random.Random(seed)
    stride = (length - block_bytes) / max(1, n_blocks - 1)
    places = {start, end - block_bytes}
    places |= {start + int((i + draw.random()) * stride) for i in range(1, n_blocks - 1)}
    return [(at, min(block_bytes, end - at)) for at in sorted(places)]


def _compare(
    copy: Copy, original: Copy, header: ShardHeader, n_blocks: int, block_bytes: int, seed: int, system: Syscalls
) -> CheckedCopy:
    checked_bytes = 0
    files: list[ShardFile] = []
    try:
        for one in (original, copy):
            files.append(open_shard(one.path, one.shard, system, expected_bytes=header.file_bytes))
        start = header.expected_bytes - header.data_bytes
        for at, length in sample_blocks(start, header.expected_bytes, n_blocks, block_bytes, f"{seed} {copy.shard}"):
            right, other = (_read_afresh(file, at, length) for file in files)
            place = first_difference(right, other)
            if place is not None:
                error = _differs(copy, header, at + place, right[place], other[place])
                return CheckedCopy(
                    copy=copy, checked_bytes=checked_bytes + place, error=error, first_difference=at + place
                )
            checked_bytes += length
        return CheckedCopy(copy=copy, checked_bytes=checked_bytes, error=None, first_difference=None)
    except StorageError as unread:
        return CheckedCopy(copy=copy, checked_bytes=checked_bytes, error=unread, first_difference=None)
    finally:
        for file in files:
            file.close()


def _read_afresh(file: ShardFile, offset: int, length: int) -> bytearray:
    block = bytearray(length)
    file.read_afresh(memoryview(block), offset)
    return block


def first_difference(right: bytes | bytearray, other: bytes | bytearray) -> int | None:
    """Where two runs of bytes of one length first differ, by halving: a Python loop over a megabyte takes 50 ms."""
    if right == other:
        return None
    low, high = 0, len(right)
    while high - low > 1:
        middle = (low + high) // 2
        if right[low:middle] != other[low:middle]:
            high = middle
        else:
            low = middle
    return low


def _differs(copy: Copy, header: ShardHeader, at: int, right: int, other: int) -> CopyDiffers:
    tensor = next((e.name for e in header.tensors.values() if e.extent.offset <= at < e.extent.end), None)
    return CopyDiffers(
        f"{shown(str(copy.path))} differs from the shard at byte {at:,} (tensor {shown(tensor or '')!r}): "
        f"{other:#04x} instead of {right:#04x}",
        shard=copy.shard,
        tensor=tensor,
        found=other,
        expected=right,
        hint="One of the two is damaged. `artesian audit` cannot tell which: fetch the shard again, then copy it.",
    )
