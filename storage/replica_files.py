"""The open files behind a `ReplicaSet`, for the batch reader: which `DirectFile`, on which drive, serves an extent."""

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from storage.batch import Replica
from storage.copies import Copy
from storage.direct import DirectFile, IoMode, IoPath
from storage.errors import ClosedReader, CopyDiffers, DriveError, StorageError, shown
from storage.extents import Extent
from storage.headers import LENGTH_BYTES, ShardHeader
from storage.reader import open_shard
from storage.replicas import ReplicaSet
from storage.syscalls import SYSTEM, Syscalls

_AGAIN_BYTES = 32 << 20
"""From a place that could not be read on: some systems name where the read of an expert began, not where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCopy:
    """A copy with its open file."""

    copy: Copy
    file: DirectFile

    @property
    def drive(self) -> str:
        """The drive it is read from."""
        return self.copy.drive


class ReplicaFiles:
    """Every copy of a replica set, open; what `BatchReader` asks. Closing it closes the files."""

    def __init__(
        self,
        replicas: ReplicaSet,
        files: Mapping[Copy, DirectFile],
        reopen: Callable[[Path], DirectFile] = DirectFile.open,
    ) -> None:
        """Take over `files`, which `close` closes; `reopen` opens one of them anew. Made by `open`."""
        self.replicas = replicas
        self._reopen = reopen
        self._retired: list[DirectFile] = []
        self._changing = threading.Lock()
        self._closed = False
        self._files = dict(files)
        self._copies = {copy.path: copy for copy in files}
        self._open = {copy: OpenCopy(copy=copy, file=file) for copy, file in files.items()}

    @classmethod
    def open(
        cls,
        replicas: ReplicaSet,
        shards: Sequence[str],
        io: IoMode = "auto",
        *,
        system: Syscalls = SYSTEM,
        on_fallback: Callable[[IoPath], None] | None = None,
    ) -> Self:
        """Open every copy of `shards`. A mirror's file that cannot be opened is demoted and withdrawn.

        Raises: DriveError, DirectReadsRefused for the checkpoint's own files; MissingShard.
        """

        def reopen(path: Path) -> DirectFile:
            return DirectFile.open(path, io, system=system, on_fallback=on_fallback)

        files: dict[Copy, DirectFile] = {}
        try:
            for shard in shards:
                for copy in replicas.copies(shard):
                    try:
                        files[copy] = reopen(copy.path)
                    except StorageError as error:
                        if copy.role != "mirror":
                            raise
                        replicas.demote(copy, error)
                        replicas.withdraw(copy)
        except BaseException:
            for file in files.values():
                file.close()
            raise
        return cls(replicas, files, reopen)

    @property
    def block_bytes(self) -> int:
        """What reads of every file can start and end on."""
        return max((file.block_bytes for file in self._files.values()), default=1)

    def io_paths(self) -> dict[str, tuple[IoPath, ...]]:
        """How each drive's files are read at the moment, by drive name."""
        by_drive: dict[str, list[IoPath]] = {}
        for copy, file in self._files.items():
            by_drive.setdefault(copy.drive, []).append(file.io_path)
        return {drive: tuple(paths) for drive, paths in sorted(by_drive.items())}

    def choose(self, flat_index: int, extent: Extent, tried: Collection[str]) -> OpenCopy | None:
        """The open copy to read `extent` from, see `ReplicaSet.choose`."""
        copy = self.replicas.choose(flat_index, extent.shard, tried)
        return None if copy is None else self._open[copy]

    def share(
        self, requests: Sequence[tuple[int, Extent]], waiting_bytes: Mapping[str, int] | None = None
    ) -> list[OpenCopy]:
        """The open copy for each (flat index, extent) of a batch, see `ReplicaSet.share`."""
        return [self._open[copy] for copy in self.replicas.share(requests, waiting_bytes)]

    def demote(self, replica: Replica, error: DriveError) -> None:
        """Note that a read failed there, see `ReplicaSet.demote`."""
        self.replicas.demote(self._copies[replica.file.path], error)

    def take_back(self, drive: str, headers: Mapping[str, ShardHeader]) -> StorageError | None:
        """Read a demoted drive again if each of its files can be opened anew and still is the shard; else why not.

        What is checked is the size and every byte of the header. From one thread at a time, beside running reads: a
        file that is replaced is closed with the others, since a read may still be in it.
        """
        fresh: dict[Copy, DirectFile] = {}
        try:
            self._require_readable(drive)
            for copy in [copy for copy in self._files if copy.drive == drive]:
                fresh[copy] = self._reopen(copy.path)
                _require_same(fresh[copy], headers[copy.shard], self.block_bytes)
            with self._changing:
                if self._closed:  # the drive took its time to answer
                    raise ClosedReader("the files were closed meanwhile")
                while fresh:
                    copy, file = fresh.popitem()
                    self._retired.append(self._files[copy])
                    self._files[copy] = file
                    self._open[copy] = OpenCopy(copy=copy, file=file)
        except StorageError as error:
            return error
        finally:
            for file in fresh.values():
                file.close()
        self.replicas.restore(drive)
        return None

    def _require_readable(self, drive: str) -> None:
        """Read again what the drive failed to: with a bad sector it answers, and fails at the next turn."""
        for demotion in self.replicas.demotions:
            error = demotion.error
            opened = next((one for copy, one in self._open.items() if copy.path == demotion.path), None)
            if opened is None or demotion.drive != drive:  # others may have opened what is not read here
                continue
            if isinstance(error, DriveError) and error.offset is not None:
                file = open_shard(demotion.path, opened.copy.shard, opened.file.system)
                try:
                    n_bytes = max(0, min(_AGAIN_BYTES, file.file_bytes - error.offset))
                    file.read_afresh(memoryview(bytearray(n_bytes)), error.offset)
                finally:
                    file.close()

    def record(self, drive: str, *, n_bytes: int, n_reads: int = 1, busy_s: float = 0.0, queue_s: float = 0.0) -> None:
        """Add reads to a drive's figures, see `ReplicaSet.record`."""
        self.replicas.record(drive, n_bytes=n_bytes, n_reads=n_reads, busy_s=busy_s, queue_s=queue_s)

    def close(self) -> None:
        """Close the files. No read may be in flight; a second call does nothing."""
        with self._changing:
            self._closed = True
            while self._files:
                self._files.popitem()[1].close()
            while self._retired:
                self._retired.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require_same(file: DirectFile, header: ShardHeader, block_bytes: int) -> None:
    """Raises: CopyDiffers when a file that was opened anew is not the shard, or cannot be read as it was before."""
    shard = open_shard(file.path, header.shard, file.system, expected_bytes=header.file_bytes)
    try:
        front = bytearray(LENGTH_BYTES + header.header_bytes)
        shard.read_afresh(memoryview(front), 0)  # what the cache holds of it is from before
    finally:
        shard.close()
    if hashlib.sha256(front).digest() != header.digest or block_bytes % file.block_bytes:
        raise CopyDiffers(
            f"{shown(str(file.path))} is not the file it was", shard=header.shard, hint="Start again to have it judged."
        )
