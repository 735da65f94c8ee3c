"""A complete checkpoint, open for reading: names to bytes, from any thread.

`Checkpoint.open` refuses what `inspect` finds wrong; afterwards only drives can fail, and then another copy of the
shard serves where a mirror has one. Nothing is held but file descriptors and the table of extents, and a read allocates
what was asked for and no more.
"""

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from storage.copies import Copy, find_copies
from storage.drives import DriveFacts, drive_of
from storage.errors import (
    CheckpointError,
    ClosedCheckpoint,
    DriveError,
    MountError,
    ShardChanged,
    StorageError,
    UnknownTensor,
    shown,
)
from storage.extents import Extent
from storage.headers import ShardHeader, TensorEntry
from storage.inspection import inspect
from storage.inventory import Inventory
from storage.reader import ShardFile, open_shard
from storage.replicas import Demotion, ReplicaSet
from storage.stand_in import StandIn, stand_in
from storage.syscalls import SYSTEM, Syscalls

__all__ = ["Checkpoint", "Inventory", "inspect", "refusal"]

_LISTED_FILES = 6
_SHARED_BYTES = 1 << 24
"""Reads of one shard within this many bytes go to one drive, so that what lies together is read together."""


class Checkpoint:
    """The tensors of one checkpoint and the open files behind them. Thread-safe; reads share no file position."""

    def __init__(
        self,
        inventory: Inventory,
        replicas: ReplicaSet,
        files: Mapping[Path, ShardFile],
        headers: Mapping[str, ShardHeader],
        stand_ins: Sequence[StandIn],
    ) -> None:
        """Take over `files`, one for each copy in `replicas`, which `close` closes. Made by `open`."""
        self.folder = inventory.folder
        self.headers = MappingProxyType(dict(headers))
        """Of every shard in use, by shard."""
        self.tensors = MappingProxyType({name: e for header in headers.values() for name, e in header.tensors.items()})
        self.notes = tuple(problem for problem in inventory.problems if not problem.blocks)
        """What is odd but does not keep the checkpoint from running: no index, a shard the index does not name."""
        self.stand_ins = tuple(stand_ins)
        """Shards whose own file is damaged or missing, read from a mirror."""
        self.replicas = replicas
        """Which file serves what, and each drive's figures."""
        self._files = dict(files)
        self._idle = threading.Condition()
        self._in_flight = 0
        self._closed = False
        self._read_bytes = 0

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        mirrors: Sequence[Path] = (),
        splits: Sequence[Path] = (),
        weights: Mapping[Path, float] | None = None,
        on_demotion: Callable[[Demotion], None] | None = None,
        find_drive: Callable[[Path], DriveFacts] = drive_of,
        system: Syscalls = SYSTEM,
    ) -> Self:
        """Open the checkpoint in `folder` for running.

        `splits` are folders with further shards of it, `mirrors` folders with copies of some or all of its shards, and
        `weights` the relative rates of all these folders. A mirror's file also stands in for a shard that is damaged or
        missing (`stand_ins`). What each folder contributes, and which copies were refused,
        is in `replicas.found.reports`.
        Without an index it opens with what the headers name (`notes` says so); whether that is everything is for the
        caller to decide.
        Raises: the error of the first problem that blocks, see `inspect`; for a checkpoint still downloading its
        message
            has the bytes present and expected of each unfinished file and of all together. Never for a mirror.
        """
        inventory = inspect(folder, splits=splits)
        error = refusal(inventory)
        stand_ins: tuple[StandIn, ...] = ()
        if error is not None:
            helped = stand_in(inventory, mirrors)
            if helped is None:
                raise error
            inventory, stand_ins = helped
            mirrors = [mirror for mirror in mirrors if mirror not in inventory.splits]
        found = find_copies(inventory, mirrors, find_drive=find_drive, system=system)
        replicas = ReplicaSet(found, weights=weights, on_demotion=on_demotion)
        headers: dict[str, ShardHeader] = {}
        files: dict[Path, ShardFile] = {}
        try:
            for record in inventory.shards.values():
                if record.header is None or not (record.listed or inventory.index is None):
                    continue
                headers[record.shard] = record.header
                for copy in replicas.copies(record.shard):
                    try:
                        files[copy.path] = open_shard(
                            copy.path, copy.shard, system, expected_bytes=record.header.file_bytes
                        )
                    except StorageError as refused:
                        if copy.role != "mirror":
                            raise
                        replicas.demote(copy, refused)
                        replicas.withdraw(copy)
            return cls(inventory, replicas, files, headers, stand_ins)
        except BaseException:
            for file in files.values():
                file.close()
            raise

    @property
    def read_bytes(self) -> int:
        """Payload bytes read so far, by all threads."""
        return self._read_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called; reads that began before may still be running."""
        return self._closed

    def entry(self, name: str) -> TensorEntry:
        """Where tensor `name` lies. Raises: UnknownTensor."""
        entry = self.tensors.get(name)
        if entry is None:
            raise UnknownTensor(
                f"the checkpoint in {shown(str(self.folder))} has no tensor {shown(name)!r}",
                tensor=name,
                hint="Run `artesian audit` on the folder.",
            )
        return entry

    def read(self, name: str) -> bytearray:
        """The exact payload of tensor `name`, as stored. Raises: UnknownTensor, DriveError, ShardChanged."""
        extent = self.entry(name).extent
        payload = bytearray(extent.length)
        self.read_into(extent, memoryview(payload))
        return payload

    def read_into(self, extent: Extent, buffer: memoryview) -> None:
        """Fill `buffer`, of exactly the extent's length in bytes, with the extent's bytes.

        Raises: DriveError (MountError when no shard of the folder can be read), ShortRead, ShardChanged,
            ClosedCheckpoint.
        """
        target = buffer.cast("B")
        assert len(target) == extent.length, (len(target), extent)
        with self._in_use():
            self._fill(extent, target)

    def close(self) -> None:
        """Wait for reads in flight, then close the files. A second call does nothing."""
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._in_flight == 0)
            files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """While the block runs, `close` leaves the files open."""
        with self._idle:
            if self._closed:
                raise ClosedCheckpoint(f"the checkpoint in {shown(str(self.folder))} was closed")
            self._in_flight += 1
        try:
            yield
        finally:
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()

    def _fill(self, extent: Extent, target: memoryview) -> None:
        """Fill `target` from one copy of the extent's shard, or from the next when a drive fails."""
        key = zlib.crc32(extent.shard.encode("utf-8", "surrogateescape")) + extent.offset // _SHARED_BYTES
        tried: list[str] = []
        failure: DriveError | ShardChanged | None = None
        while (copy := self.replicas.choose(key, extent.shard, tried)) is not None:
            try:
                self._read_copy(copy, extent, target)
                return
            except (DriveError, ShardChanged) as error:
                failure = failure or error
                self.replicas.demote(copy, error)
                tried.append(copy.drive)
        assert failure is not None, "a shard without a copy is refused by `choose`"
        if isinstance(failure, DriveError) and failure.of_the_drive and self._all_fail():
            raise MountError.over(self.folder, failure, len(self._files)) from failure
        raise failure

    def _read_copy(self, copy: Copy, extent: Extent, target: memoryview) -> None:
        file = self._files[copy.path]
        n_bytes = 0

        def count(n_read: int) -> None:
            nonlocal n_bytes
            n_bytes += n_read

        start_s = time.perf_counter()
        try:
            file.read_exactly(target, extent.offset, count)
        finally:
            self.replicas.record(copy.drive, n_bytes=n_bytes, busy_s=time.perf_counter() - start_s)
        file.forget(extent.offset, extent.length)
        with self._idle:
            self._read_bytes += extent.length

    def _all_fail(self) -> bool:
        """Whether the last byte of no file can be read: tells a dead mount from one bad file.

        The last byte, because the first ones were read at open and may still come from the page cache.
        """
        for file in self._files.values():
            try:
                file.read_exactly(memoryview(bytearray(1)), file.file_bytes - 1)
            except StorageError:
                continue
            return False
        return len(self._files) > 1


def refusal(inventory: Inventory) -> StorageError | None:
    """Why the checkpoint cannot be run, or None when it can. Says how much is there when files are unfinished."""
    blocking = inventory.blocking()
    if not blocking:
        return None
    error = blocking[0].error
    more = _progress(inventory)
    if not more and len(blocking) > 1:
        more = f"; and {len(blocking) - 1:,} more problems"
    return error.extended(more) if isinstance(error, CheckpointError) and more else error


def _progress(inventory: Inventory) -> str:
    """`; 2 of 16 shards are unfinished: a (3 of 5 bytes), b (missing); overall ...`, or "" when all are whole."""
    unfinished = [record for record in inventory.shards.values() if record.status in ("cut", "missing")]
    if not unfinished:
        return ""
    parts: list[str] = []
    for record in unfinished[:_LISTED_FILES]:
        of = "an unknown number of" if record.expected_bytes is None else f"{record.expected_bytes:,}"
        state = "missing" if record.status == "missing" else f"{record.present_bytes:,} of {of} bytes"
        parts.append(f"{shown(record.shard)} ({state})")
    if len(unfinished) > _LISTED_FILES:
        parts.append(f"{len(unfinished) - _LISTED_FILES:,} more")
    overall = f"overall {inventory.present_bytes:,} bytes are here"
    if inventory.expected_bytes is not None:
        share = inventory.present_bytes / inventory.expected_bytes if inventory.expected_bytes else 0.0
        overall = f"overall {inventory.present_bytes:,} of {inventory.expected_bytes:,} bytes ({share:.1%}) are here"
    return f"; {len(unfinished):,} of {len(inventory.shards):,} shards are unfinished: {', '.join(parts)}; {overall}"
