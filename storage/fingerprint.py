"""What tells one checkpoint from another, by headers and configs alone: for files kept beside it, like its profile."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol


class Marked(Protocol):
    """What is known of one shard."""

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        ...

    @property
    def digest(self) -> bytes:
        """SHA-256 of the header and the 8 bytes before it."""
        ...


def fingerprint(headers: Mapping[str, Marked], configs: Sequence[bytes]) -> str:
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
