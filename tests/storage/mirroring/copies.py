"""A small checkpoint to copy, and write calls that fail, shorten or count."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from storage.headers import ShardHeader
from storage.inspection import inspect
from storage.mirroring.copying import Copier, CopyJob
from storage.mirroring.files import WriteCalls
from storage.mirroring.manifest import Manifest
from tests.storage.shards import write_checkpoint

NAMES = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
BLOCK_BYTES = 1000
"""Copies here have 3 blocks, the last a short one."""
FINGERPRINT = "c" * 64


def make_model(folder: Path) -> Path:
    """Three shards of 2 kB, with their index."""
    write_checkpoint(folder, {name: {f"t{i}": ("U8", [2068])} for i, name in enumerate(NAMES)})
    return folder


def headers(model: Path) -> dict[str, ShardHeader]:
    """Header of every shard."""
    return {shard: record.header for shard, record in inspect(model).shards.items() if record.header is not None}


def jobs(model: Path) -> list[CopyJob]:
    """One for each shard."""
    return [CopyJob(header=header, source=model / shard) for shard, header in headers(model).items()]


def manifest(model: Path) -> Manifest:
    """What a new mirror's record begins with."""
    return Manifest(kind="mirror", fingerprint=FINGERPRINT, source=str(model), drive="disk b")


def copier(
    model: Path, target: Path, *, writes: WriteCalls | None = None, reserve_bytes: int = 0, **more: object
) -> Copier:
    """A copier in blocks of `BLOCK_BYTES`."""
    return Copier(
        target, manifest(model), reserve_bytes=reserve_bytes, block_bytes=BLOCK_BYTES,
        writes=writes or WriteCalls(), **more,  # type: ignore[arg-type]
    )  # fmt: skip


class Failing(WriteCalls):
    """Fails the n-th call that changes something with this errno."""

    def __init__(self, n: int, number: int = errno.ENOSPC) -> None:
        self._n = n
        self._number = number
        self.n_calls = 0
        self.failed: list[str] = []

    def _count(self, name: str) -> None:
        self.n_calls += 1
        if self.n_calls == self._n:
            self.failed.append(name)
            raise OSError(self._number, os.strerror(self._number))

    def open(self, path: Path) -> int:
        """The real one, or the failure."""
        self._count("open")
        return super().open(path)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """The real one, or the failure after half of the data is down, as a full disk does it."""
        try:
            self._count("pwrite")
        except OSError:
            super().pwrite(fd, data[: len(data) // 2], offset)
            raise
        return super().pwrite(fd, data, offset)

    def truncate(self, fd: int, n_bytes: int) -> None:
        """The real one, or the failure."""
        self._count("truncate")
        super().truncate(fd, n_bytes)

    def sync_data(self, fd: int) -> None:
        """The real one, or the failure."""
        self._count("sync_data")
        super().sync_data(fd)

    def sync(self, fd: int) -> None:
        """The real one, or the failure."""
        self._count("sync")
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        """The real one, or the failure."""
        self._count("sync_folder")
        super().sync_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        """The real one, or the failure."""
        self._count("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        """The real one, or the failure."""
        self._count("unlink")
        super().unlink(path)


class Hooked(WriteCalls):
    """Runs a hook before every block is made durable."""

    def __init__(self, hook: Callable[[int], None]) -> None:
        self._hook = hook
        self._n = 0

    def sync_data(self, fd: int) -> None:
        """The hook with the number of the call, then the real one."""
        self._n += 1
        self._hook(self._n)
        super().sync_data(fd)
