"""What tells one checkpoint from another, by headers and configs alone: for files kept beside it, like its profile."""

import hashlib
from collections.abc import Mapping, Sequence

from storage.headers import ShardHeader


def fingerprint(headers: Mapping[str, ShardHeader], configs: Sequence[bytes]) -> str:
    """64 hex digits from the shards' names, sizes and header bytes and the config files' contents.

    Equal for copies of a checkpoint in other folders or split over several. It changes with the architecture, the
    quantisation and the sharding; two checkpoints that differ in their payload alone are taken for one.
    """
    digest = hashlib.sha256()
    for name, header in sorted(headers.items()):
        shard = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d %s %d %s" % (len(shard), shard, header.file_bytes, header.digest))
    for config in configs:
        digest.update(b"config" + hashlib.sha256(config).digest())
    return digest.hexdigest()
