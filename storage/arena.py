"""Page-aligned memory cut into slots of one size, and where in a slot an item's extents go.

A direct read starts and ends on block boundaries, so a slot is larger than its payload: up to two blocks an extent. The
one thing a reader would get wrong: the payload does not start at the slot's first byte but `offset % block` behind it.
"""

import mmap
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from storage.errors import ArenaTooLarge
from storage.extents import Extent, align
from storage.ids import SlotIndex
from storage.syscalls import PAGE_BYTES, address_of

HUGE_PAGE_BYTES = 1 << 21
"""What x86-64 and arm64 with 4 KiB pages put under a large mapping in one piece."""


class Placement(NamedTuple):
    """Where one extent goes inside a slot."""

    extent: Extent
    start: int
    """Slot offset of the first block read; a multiple of the block."""
    payload: int
    """Slot offset of the extent's first byte."""


def span_bytes(length: int, block_bytes: int) -> int:
    """Bytes of the whole blocks around `length` bytes at the worst possible offset: less than two blocks more."""
    return (length + 2 * block_bytes - 2) // block_bytes * block_bytes if length else 0


def stride_for(lengths: Iterable[int], block_bytes: int) -> int:
    """Slot size for items whose extents have these lengths, wherever they lie in a file; a multiple of the page."""
    unit = max(block_bytes, PAGE_BYTES)
    return -(-sum(span_bytes(length, block_bytes) for length in lengths) // unit) * unit


def place(extents: Sequence[Extent], block_bytes: int) -> tuple[Placement, ...]:
    """Where each extent goes in a slot: one behind the other, as given. Fits in `stride_for` of their lengths."""
    placements = []
    start = 0
    for extent in extents:
        whole = align(extent, block_bytes)
        placements.append(Placement(extent, start, start + extent.offset - whole.offset))
        start += whole.length
    return tuple(placements)


def locate(placements: Sequence[Placement], part: Extent) -> int:
    """Slot offset of `part`, which lies inside one of the placed extents (a tensor inside a merged run)."""
    for extent, _, payload in placements:
        if extent.shard == part.shard and extent.offset <= part.offset and part.end <= extent.end:
            return payload + part.offset - extent.offset
    raise AssertionError((placements, part))


class Arena:
    """`n_slots` slots of `stride_bytes` in one private anonymous mapping.

    Memory is taken when a slot is first written, and never more than `ceiling_bytes`. Huge pages are asked for where
    the system has them: a read of 18 MB into small pages makes the kernel pin 4,590 of them.

    Args:
        n_slots: Slots, numbered from 0.
        stride_bytes: From `stride_for`.
        align_bytes: Alignment of the first slot, at least the block direct reads need.

    Raises: ArenaTooLarge when the system will not map that much.
    """

    def __init__(self, n_slots: int, stride_bytes: int, *, align_bytes: int = PAGE_BYTES) -> None:
        assert n_slots > 0 and stride_bytes > 0 and stride_bytes % align_bytes == 0, (n_slots, stride_bytes)
        self.n_slots = n_slots
        self.stride_bytes = stride_bytes
        size = n_slots * stride_bytes
        align_bytes = max(align_bytes, HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else PAGE_BYTES)
        slack = align_bytes - PAGE_BYTES
        self.ceiling_bytes = -(-(size + slack) // PAGE_BYTES) * PAGE_BYTES
        """Address space taken, and so the most memory the arena can ever use."""
        try:
            # Private: a shared mapping, Python's default, is a tmpfs file: it counts as page cache, without huge pages.
            self._map = mmap.mmap(-1, self.ceiling_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise ArenaTooLarge(
                f"{n_slots:,} slots of {stride_bytes:,} bytes cannot be mapped: {error}",
                hint="Give the cache less memory, or raise the limit on address space (`ulimit -v`).",
            ) from error
        first = self._first = -address_of(self._map) % align_bytes
        self.huge_pages = self._advise(first, size)
        """Whether the system took the advice to use huge pages."""
        self._slots = memoryview(self._map)[first : first + size]

    def _advise(self, first: int, size: int) -> bool:
        if sys.platform != "linux":
            return False
        # A forked child that shares these pages could get the bytes of a read in flight instead: open(2), O_DIRECT.
        self._map.madvise(mmap.MADV_DONTFORK)
        whole = size // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if not whole:
            return False
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE, first, whole)
        except OSError:  # a kernel built without them
            return False
        return True

    def slot(self, index: SlotIndex) -> memoryview:
        """The whole slot, writable. It must not be used after `close`."""
        assert 0 <= index < self.n_slots, (index, self.n_slots)
        return self._slots[index * self.stride_bytes : (index + 1) * self.stride_bytes]

    def forget(self, index: SlotIndex) -> None:
        """Give a slot's memory back to the system; what was in it is lost, and it is taken again when next written."""
        assert 0 <= index < self.n_slots, (index, self.n_slots)
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, self._first + index * self.stride_bytes, self.stride_bytes)

    def close(self) -> None:
        """Give the memory back; with views of slots still alive, when the last of them goes."""
        self._slots.release()
        try:
            self._map.close()
        except BufferError:
            # A tensor still looks at a slot. Unmapping under it would be a crash; the mapping goes with its last view.
            del self._map

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
