"""Copies shards into a folder of another drive: block by block, resumable, read back from the drive before it counts.

The one thing a reader would get wrong: a shard gets its name only after every block was read back past the page cache
and hashed to what was read from the source. Until then it lies under a name no checkpoint reader looks at.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from storage.errors import MirrorBusy, NoSpace, NotVerified, ShardChanged, TargetRefused, WriteError, shown
from storage.headers import ShardHeader
from storage.mirroring.files import WRITE, WriteCalls
from storage.mirroring.manifest import CopiedShard, Manifest, read_manifest, with_shard, write_manifest
from storage.mirroring.part import (
    BLOCK_BYTES,
    Part,
    PartFacts,
    allocated_bytes,
    checked,
    journal_path,
    part_path,
)
from storage.reader import ShardFile, open_shard
from storage.sizes import format_bytes
from storage.syscalls import SYSTEM, Syscalls

LOCK_NAME = ".artesian-mirror.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """One shard and the file it is copied from."""

    header: ShardHeader
    source: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """How far a copy is. Bytes of shards that were complete before count in neither."""

    shard: str
    phase: str
    """"copying", "reading back", or "comparing" a source that was written since with what was copied of it."""
    done_bytes: int
    """Of all shards; every byte counts twice, once written and once read back."""
    total_bytes: int
    elapsed_s: float


class Copier:
    """Copies into one folder. From one thread; `pause` and `stop` may come from any."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        reserve_bytes: int,
        block_bytes: int = BLOCK_BYTES,
        on_progress: Callable[[CopyProgress], None] = lambda _: None,
        reads: Syscalls = SYSTEM,
        writes: WriteCalls = WRITE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`manifest` is what the folder's record is begun with when there is none; `reserve_bytes` stay free."""
        self._folder = folder
        self._manifest = manifest
        self._reserve_bytes = reserve_bytes
        self._block_bytes = block_bytes
        self._on_progress = on_progress
        self._reads = reads
        self._writes = writes
        self._clock = clock
        self._go_on = threading.Event()
        self._go_on.set()
        self._stopped = False

    def pause(self) -> None:
        """Begin no further block until `go_on`."""
        self._go_on.clear()

    def go_on(self) -> None:
        """End a pause."""
        self._go_on.set()

    def stop(self) -> None:
        """Leave everything to be resumed, after the block under way."""
        self._stopped = True
        self._go_on.set()

    def run(self, jobs: Sequence[CopyJob]) -> tuple[str, ...]:
        """Copy what is not there yet; the shards that were made whole, fewer than asked for after a `stop`.

        Raises: TargetRefused when the folder is another checkpoint's mirror, or has a file of a shard's name that was
        not copied here; MirrorBusy; NoSpace before anything is written when it cannot fit, and when space runs out on
        the way; WriteError; DriveError and ShardChanged of the source; NotVerified. What is whole stays, what is under
        way can be resumed. A folder that was made for it and stays empty is taken away again.
        """
        missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        checked(lambda: self._folder.mkdir(parents=True, exist_ok=True), self._folder, "make")
        with locked(self._folder, self._writes), _taken_away_if_empty(missing):
            found = read_manifest(self._folder)
            if found is not None and found.fingerprint != self._manifest.fingerprint:
                raise TargetRefused(
                    f"{shown(str(self._folder))} is the mirror of another checkpoint ({shown(found.source)})",
                    hint="Choose another folder, or remove that mirror first.",
                )
            manifest = found or self._manifest
            manifest, todo = self._sort_out(jobs, manifest)
            if self._stopped:
                return ()
            for job in todo:
                self._require_ours(job, manifest)
            self._require_space(todo)
            n_bytes = 2 * sum(job.header.file_bytes for job in todo)
            progress = _Progress(n_bytes, self._on_progress, self._clock)
            made = []
            for job in todo:
                copied = self._copy(job, progress)
                if copied is None:
                    break
                manifest = with_shard(manifest, job.header.shard, copied)
                write_manifest(self._folder, manifest, self._writes)
                abandon(self._folder, job.header.shard, self._writes)  # the journal is of no more use
                made.append(job.header.shard)
            return tuple(made)

    def _sort_out(self, jobs: Sequence[CopyJob], manifest: Manifest) -> tuple[Manifest, list[CopyJob]]:
        """The record, brought up to date, and the jobs whose shards are not there or are copies of what was there once.

        A shard that was fetched again has the header it had: only its bytes say whether the copy still is one.
        """
        there = {job.header.shard: job for job in jobs if self._is_there(job, manifest)}
        written = {shard: _written_ns(job.source) for shard, job in there.items()}
        doubtful = [shard for shard in there if manifest.shards[shard].source_mtime_ns != written[shard]]
        n_bytes = sum(there[shard].header.file_bytes for shard in doubtful)
        progress = _Progress(n_bytes, self._on_progress, self._clock)
        for shard in doubtful:
            known = manifest.shards[shard]
            if self._is_still_copied(there[shard], known, progress):
                manifest = with_shard(manifest, shard, replace(known, source_mtime_ns=written[shard]))
                write_manifest(self._folder, manifest, self._writes)
            else:
                del there[shard]
        return manifest, [job for job in jobs if job.header.shard not in there]

    def _is_still_copied(self, job: CopyJob, known: CopiedShard, progress: "_Progress") -> bool:
        """Whether the source's blocks are those of the record; False too when stopped on the way."""
        shard = job.header.shard
        progress.begin(shard, 0)
        buffer = bytearray(known.block_bytes)
        source = open_shard(job.source, shard, self._reads, expected_bytes=job.header.file_bytes)
        try:
            for index, sha256 in enumerate(known.blocks):
                if not self._may_go_on():
                    return False
                block, found = self._read_block(source, index, buffer)
                if found != sha256:
                    return False
                progress.add("comparing", len(block))
        finally:
            source.close()
        return True

    def _is_there(self, job: CopyJob, manifest: Manifest) -> bool:
        known = manifest.shards.get(job.header.shard)
        path = self._folder / job.header.shard
        try:
            size = path.stat().st_size
        except OSError:
            return False
        return known is not None and size == known.file_bytes and known.header_sha256 == job.header.digest.hex()

    def _require_ours(self, job: CopyJob, manifest: Manifest) -> None:
        """A copy takes no place of a file that was there before: every checkpoint's shards are named alike."""
        shard = job.header.shard
        path = self._folder / shard
        # With a journal, a crash came between a copy's name and its record.
        if not os.path.lexists(path) or shard in manifest.shards or journal_path(self._folder, shard).exists():
            return
        if path.exists() and path.samefile(job.source):
            return
        raise TargetRefused(
            f"{shown(str(path))} is there already and was not copied by Artesian: it is not overwritten",
            hint="Choose another folder, such as a new one beside it.",
        )

    def _require_space(self, jobs: Sequence[CopyJob]) -> None:
        needed = sum(job.header.file_bytes - allocated_bytes(self._folder, job.header.shard) for job in jobs)
        free = checked(lambda: self._writes.free_bytes(self._folder), self._folder, "ask for the free space of")
        if needed + self._reserve_bytes > free:
            raise NoSpace(
                f"{shown(str(self._folder))} has {format_bytes(free)} free; the copy takes {format_bytes(needed)} and "
                f"{format_bytes(self._reserve_bytes)} are to stay free: "
                f"{format_bytes(needed + self._reserve_bytes - free)} too little",
                file=self._folder,
                errno=0,
                hint="Copy fewer shards, free some space, or leave less of it free.",
            )

    def _copy(self, job: CopyJob, progress: "_Progress") -> CopiedShard | None:
        """Copy and verify one shard; None when stopped on the way."""
        header, written_ns = job.header, _written_ns(job.source)
        source = open_shard(job.source, header.shard, self._reads, expected_bytes=header.file_bytes)
        try:
            part = Part.open(self._folder, PartFacts.of(header, self._block_bytes, written_ns), self._writes)
            try:
                progress.begin(header.shard, len(part.hashes) * self._block_bytes)
                if not self._fill(source, part, progress) or not self._verify(source, part, progress):
                    return None
                self._require_same(job, source, written_ns)
                part.finish()
                if written_ns is not None:
                    with suppress(OSError):  # so that a copy of this copy is known to be of the same file
                        os.utime(self._folder / header.shard, ns=(written_ns, written_ns))
                return CopiedShard(
                    file_bytes=header.file_bytes,
                    header_sha256=header.digest.hex(),
                    block_bytes=self._block_bytes,
                    blocks=tuple(part.hashes),
                    source_mtime_ns=written_ns,
                )
            finally:
                part.close()
        finally:
            source.close()

    def _fill(self, source: ShardFile, part: Part, progress: "_Progress") -> bool:
        """Write the blocks that are missing, reading and hashing the next one meanwhile; whether all are there."""
        n_blocks = -(-source.file_bytes // self._block_bytes)
        buffers = [bytearray(self._block_bytes) for _ in range(2)]

        def read(index: int) -> tuple[memoryview, str]:
            return self._read_block(source, index, buffers[index % 2])

        first = len(part.hashes)
        with ThreadPoolExecutor(max_workers=1) as ahead:
            coming: Future[tuple[memoryview, str]] | None = None
            for index in range(first, n_blocks):
                if not self._may_go_on():
                    return False
                block, sha256 = (coming or ahead.submit(read, index)).result()
                coming = ahead.submit(read, index + 1) if index + 1 < n_blocks else None
                self._require_room(len(block))
                part.append(block, sha256)
                progress.add("copying", len(block))
        return True

    def _verify(self, source: ShardFile, part: Part, progress: "_Progress") -> bool:
        """Read every block back from the drive; one that differs is copied once more. Whether it went to the end."""
        copy = open_shard(part.path, source.shard, self._reads, expected_bytes=source.file_bytes)
        buffer = bytearray(self._block_bytes)
        try:
            for index, sha256 in enumerate(part.hashes):
                if not self._may_go_on():
                    return False
                block, found = self._read_block(copy, index, buffer)
                if found != sha256:
                    again, right = self._read_block(source, index, buffer)
                    part.write(index, again)
                    part.hashes[index] = right
                    block, found = self._read_block(copy, index, buffer)
                    if found != right:
                        raise NotVerified(
                            f"{shown(str(part.path))} reads back otherwise than it was written, twice, between bytes "
                            f"{index * self._block_bytes:,} and {index * self._block_bytes + len(block):,}",
                            hint="The drive that is copied to is failing; do not use it for this.",
                        )
                progress.add("reading back", len(block))
        finally:
            copy.close()
        return True

    def _read_block(self, file: ShardFile, index: int, buffer: bytearray) -> tuple[memoryview, str]:
        offset = index * len(buffer)
        block = memoryview(buffer)[: min(len(buffer), file.file_bytes - offset)]
        file.read_afresh(block, offset)
        return block, hashlib.sha256(block).hexdigest()

    def _require_room(self, n_bytes: int) -> None:
        free = checked(lambda: self._writes.free_bytes(self._folder), self._folder, "ask for the free space of")
        if free - n_bytes < self._reserve_bytes:
            raise NoSpace(
                f"{shown(str(self._folder))} has {format_bytes(free)} free and {format_bytes(self._reserve_bytes)} are "
                "to stay free: something else fills the drive",
                file=self._folder,
                errno=0,
                hint="Free some space and start the copy again; it goes on where it was.",
            )

    def _require_same(self, job: CopyJob, source: ShardFile, written_ns: int | None) -> None:
        """A source that was written to meanwhile, or has another file in its place, is no source."""
        header = job.header
        front = bytearray(source.file_bytes - header.data_bytes)
        source.read_exactly(memoryview(front), 0)
        if hashlib.sha256(front).digest() != header.digest or _written_ns(job.source) != written_ns:
            raise ShardChanged(
                f"{shown(header.shard)} changed while it was copied",
                shard=header.shard,
                hint="Something writes to the checkpoint. Let it finish, then copy again.",
            )

    def _may_go_on(self) -> bool:
        self._go_on.wait()
        return not self._stopped


@contextmanager
def locked(folder: Path, writes: WriteCalls = WRITE) -> Iterator[None]:
    """Be the only one that changes this mirror folder. Raises: MirrorBusy at once when another does; WriteError."""
    path = folder / LOCK_NAME
    fd = checked(lambda: writes.open(path), path, "open")
    try:
        try:
            writes.lock(fd)
        except BlockingIOError:
            raise MirrorBusy(
                f"another program is copying into {shown(str(folder))}", hint="Wait for it to end."
            ) from None
        except OSError as error:
            raise WriteError.of(error, path, "lock") from error
        yield
    finally:
        writes.close(fd)


@contextmanager
def _taken_away_if_empty(made: Sequence[Path]) -> Iterator[None]:
    """Remove folders made for a copy, the deepest first, when nothing but the lock, which is held, got into it."""
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # one that is not empty stays
                if [path.name for path in made[0].iterdir()] == [LOCK_NAME]:
                    (made[0] / LOCK_NAME).unlink()
                for folder in made:
                    folder.rmdir()


class _Progress:
    """Counts blocks of all jobs."""

    def __init__(self, n_bytes: int, tell: Callable[[CopyProgress], None], clock: Callable[[], float]) -> None:
        self._total = n_bytes
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._shard = ""

    def begin(self, shard: str, kept_bytes: int) -> None:
        """A shard's turn; what an interrupted copy left of it need not be done again."""
        self._shard = shard
        self._total -= kept_bytes

    def add(self, phase: str, n_bytes: int) -> None:
        self._done += n_bytes
        self._tell(
            CopyProgress(
                shard=self._shard,
                phase=phase,
                done_bytes=self._done,
                total_bytes=max(self._total, self._done),
                elapsed_s=self._clock() - self._began,
            )
        )


def _written_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def abandon(folder: Path, shard: str, writes: WriteCalls = WRITE) -> int:
    """Take away what an interrupted copy left of a shard; its bytes on the drive. Raises: WriteError."""
    freed = 0
    for path in (part_path(folder, shard), journal_path(folder, shard)):
        try:
            size = os.lstat(path).st_blocks * 512
            writes.unlink(path)
            freed += size
        except FileNotFoundError:
            continue
        except OSError as error:
            raise WriteError.of(error, path, "remove") from error
    return freed
