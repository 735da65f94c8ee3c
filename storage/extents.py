"""Runs of bytes in a shard: align, merge, split. Pure arithmetic in Python's unbounded integers.

An extent never says what its bytes mean. Offsets count from the start of the file, not of the data section.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A run of bytes in one shard. Knows nothing of what the bytes mean."""

    shard: str
    """Shard file name, relative to the checkpoint folder."""
    offset: int
    """First byte, counted from the start of the file."""
    length: int
    """Bytes; 0 only for a tensor with no elements."""

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + self.length

    def part(self, start: int, length: int) -> "Extent":
        """The `length` bytes from `start` on, counted from this extent's first byte. Must lie inside it."""
        assert start >= 0 and 0 <= length <= self.length - start, (self, start, length)
        return Extent(shard=self.shard, offset=self.offset + start, length=length)


def align(extent: Extent, block_bytes: int) -> Extent:
    """The smallest extent of whole blocks around `extent`. It may end past the end of the file."""
    assert block_bytes > 0, block_bytes
    start = extent.offset // block_bytes * block_bytes
    end = -(-extent.end // block_bytes) * block_bytes
    return Extent(shard=extent.shard, offset=start, length=end - start)


def merge(extents: Iterable[Extent], gap_bytes: int = 0) -> list[Extent]:
    """The fewest extents that cover the given ones, sorted by shard and offset.

    Extents that touch, overlap, or lie at most `gap_bytes` apart become one; empty ones vanish. Nothing is assumed of
    the order they come in.
    """
    merged: list[Extent] = []
    for extent in sorted((e for e in extents if e.length), key=lambda e: (e.shard, e.offset)):
        last = merged[-1] if merged else None
        if last is not None and last.shard == extent.shard and extent.offset <= last.end + gap_bytes:
            end = max(last.end, extent.end)
            merged[-1] = Extent(shard=last.shard, offset=last.offset, length=end - last.offset)
        else:
            merged.append(extent)
    return merged


def split(extent: Extent, piece_bytes: int) -> Iterator[Extent]:
    """Consecutive pieces of at most `piece_bytes` that together are `extent`; nothing for an empty one."""
    assert piece_bytes > 0, piece_bytes
    for start in range(0, extent.length, piece_bytes):
        yield extent.part(start, min(piece_bytes, extent.length - start))
