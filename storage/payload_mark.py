"""Tells two checkpoints apart that have the same headers: by samples of their payload."""

import hashlib

from storage.checkpoint import Checkpoint
from storage.extents import Extent

_SAMPLES = 8
"""Tensors of each shard, evenly spread."""
_SAMPLE_BYTES = 256


def payload_mark(checkpoint: Checkpoint) -> str:
    """64 hex digits from the middles of some tensors of every shard: some hundred small reads for a released one.

    A checkpoint that was trained on, or quantised anew, gets another mark. One in which only a few tensors differ that
    are not sampled keeps it. Raises: StorageError when a sample cannot be read.
    """
    shards: dict[str, list[Extent]] = {}
    for name in sorted(checkpoint.tensors):
        extent = checkpoint.tensors[name].extent
        if extent.length:
            shards.setdefault(extent.shard, []).append(extent)
    digest = hashlib.sha256()
    for _, extents in sorted(shards.items()):
        for extent in extents[:: -(-len(extents) // _SAMPLES)]:
            length = min(_SAMPLE_BYTES, extent.length)
            offset = extent.offset + (extent.length - length) // 2
            sample = bytearray(length)
            checkpoint.read_into(Extent(shard=extent.shard, offset=offset, length=length), memoryview(sample))
            digest.update(sample)
    return digest.hexdigest()
