"""What storage reports on purpose.

Every class derives from `StorageError`, so one `except` in `app` shows any of them; `hint` is the next step for the
user. Two families need different advice and must never be mixed up: `CheckpointError` is about what a file says
(fetch it again), `DriveError` is about a file that cannot be read (fetching it again will not help).
"""

# ruff: noqa: N818 - a class is named for what is wrong: MissingShard, not MissingShardError

import copy
import errno as errnos
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self


def shown(text: str, limit: int = 120) -> str:
    """A name from a file, safe and short enough for a message: escaped when it has anything unprintable."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return short if short.isprintable() else ascii(short)[1:-1]


class StorageError(Exception):
    """Base of every failure storage reports on purpose.

    Attributes:
        hint: One sentence with what the user can do, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


# What the files of a checkpoint say


class CheckpointError(StorageError):
    """The checkpoint's files are missing, cut, contradictory, or not what they claim to be.

    Attributes:
        shard: Shard (or other file) name relative to the checkpoint folder, or "".
        tensor: The tensor concerned, or None.
        found: The value on disk that is wrong, or None.
        expected: What it should have been or was compared with, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        shard: str = "",
        tensor: str | None = None,
        found: object = None,
        expected: object = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.shard = shard
        self.tensor = tensor
        self.found = found
        self.expected = expected

    def extended(self, more: str) -> Self:
        """The same error with more at the end of its message."""
        longer = copy.copy(self)
        longer.args = (f"{self}{more}",)
        return longer


class MissingFolder(CheckpointError):
    """The checkpoint folder does not exist or is not a folder."""


class NoShards(CheckpointError):
    """The folder holds no shard at all."""


class UnknownTensor(CheckpointError):
    """A tensor was asked for that the checkpoint does not hold."""


class RowOutOfRange(CheckpointError):
    """A row was asked for that the tensor does not have."""


class ClosedCheckpoint(StorageError):
    """A read was asked of a checkpoint that was closed."""


# Index


class ShardIndexError(CheckpointError):
    """Base of what is wrong with `model.safetensors.index.json`."""


class NoIndex(ShardIndexError):
    """There is no index file: what is present is known, whether it is everything is not."""


class EmptyIndex(ShardIndexError):
    """The index file is empty or lists no tensor."""


class BadIndex(ShardIndexError):
    """The index is not JSON, or not the JSON of an index."""


class IndexesDiffer(ShardIndexError):
    """Two folders of one checkpoint have indexes that assign tensors differently."""


class UnsafeShardName(ShardIndexError):
    """The index names a shard outside the checkpoint folder, or one no file can have."""


class TensorNotInShard(ShardIndexError):
    """The index assigns a tensor to a shard whose header does not hold it."""


class TensorNotInIndex(ShardIndexError):
    """A shard the index names holds a tensor the index does not list."""


class ShardNotInIndex(ShardIndexError):
    """A shard file lies in the folder that the index does not name."""


class TotalBytesDiffer(ShardIndexError):
    """The total the index states is not the sum of the headers."""


# Whole shards


class ShardError(CheckpointError):
    """Base of what is wrong with one shard file as a whole."""


class MissingShard(ShardError):
    """A shard the index names is not there."""


class BrokenLink(MissingShard):
    """A shard is a symbolic link to a file that is not there."""


class RenamedShard(MissingShard):
    """A shard the index names is not there, and a file of another name holds its tensors."""


class NotAFile(ShardError):
    """A shard name belongs to a folder, pipe or device."""


class TruncatedShard(ShardError):
    """The file ends before its data does: a download that was cut short."""


class EmptyShard(TruncatedShard):
    """The file has no bytes."""


class HeaderCut(TruncatedShard):
    """The file ends before its header does."""


class ForeignTail(ShardError):
    """The file goes on after its data: bytes that belong to nothing."""


class ShardChanged(ShardError):
    """A shard changed size after the checkpoint was opened."""


class DuplicateTensor(ShardError):
    """Two different shards hold a tensor of the same name."""


class DuplicateShard(ShardError):
    """Two shards have byte-identical headers: one is a copy of the other."""


# Headers


class HeaderError(ShardError):
    """Base of what is wrong inside a shard's header."""


class HeaderTooLarge(HeaderError):
    """The header's stated length is more than any header has."""


class HeaderNotText(HeaderError):
    """The header is not UTF-8."""


class HeaderNotJson(HeaderError):
    """The header is not a JSON object, or one no writer makes (nesting, huge numbers)."""


class DuplicateKey(HeaderError):
    """The header has one key twice."""


class TooManyTensors(HeaderError):
    """The header has more entries than any shard has tensors."""


class BadMetadata(HeaderError):
    """`__metadata__` is not a map from text to text."""


class BadTensorName(HeaderError):
    """A tensor's name is empty, absurdly long or unprintable."""


class BadTensorEntry(HeaderError):
    """A tensor's entry lacks a field, has a strange one, or one of the wrong type."""


class UnknownDtype(HeaderError):
    """A tensor has a dtype the safetensors format does not know."""


class BadShape(HeaderError):
    """A tensor's shape has a negative or oversized number, or too many of them."""


class BadOffsets(HeaderError):
    """A tensor's offsets are negative, reversed or beyond 64 bits."""


class ExtentMismatch(HeaderError):
    """A tensor's shape and dtype do not multiply to its byte extent."""


class OverlappingTensors(HeaderError):
    """Two tensors claim the same bytes."""


class GapInData(HeaderError):
    """Bytes of the data section belong to no tensor."""


# Drives

_OF_THE_DRIVE = {
    getattr(errnos, name)
    for name in ("EIO", "ENXIO", "ENODEV", "ESTALE", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "EHOSTDOWN", "EUCLEAN")
    if hasattr(errnos, name)
}


class DriveError(StorageError):
    """The system refused to read a file.

    Attributes:
        file: The file that could not be read.
        offset: First byte that could not be read, or None when opening failed.
        errno: The system's error number, or 0 when it gave none.
    """

    def __init__(self, message: str, *, file: Path, offset: int | None, errno: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.offset = offset
        self.errno = errno

    @property
    def of_the_drive(self) -> bool:
        """Whether the drive or mount failed, as opposed to permissions, limits or a short file."""
        return self.errno in _OF_THE_DRIVE

    @classmethod
    def of(cls, error: OSError, file: Path, offset: int | None) -> "DriveError":
        """The typed form of what the system said about `file`, with advice by the kind of failure."""
        number = error.errno or 0
        name = errnos.errorcode.get(number, "no errno")
        where = "cannot be opened" if offset is None else f"cannot be read at byte {offset:,}"
        reason = os.strerror(number) if number else shown(str(error))
        if number in (errnos.EACCES, errnos.EPERM):
            hint = "Check the permissions of the file and of the folders above it."
        elif number in (errnos.EMFILE, errnos.ENFILE):
            hint = "Too many files are open; raise the limit with `ulimit -n`."
        elif number in _OF_THE_DRIVE:
            hint = (
                "The drive or its mount failed, not the file's content: fetching it again will not help. "
                "Look at the kernel log (`dmesg`) and the drive's health."
            )
        else:
            hint = "This is the system's answer, not the file's content; fetching it again will not help."
        return cls(f"{shown(str(file))} {where}: {reason} ({name})", file=file, offset=offset, errno=number, hint=hint)


class MountError(DriveError):
    """No shard of a folder can be read: the mount or the whole drive is gone, not one file."""

    @classmethod
    def over(cls, folder: Path, error: DriveError, n_files: int) -> "MountError":
        """What to report when every one of a folder's shards fails as `error` does."""
        return cls(
            f"{error}; so do the other shards of {shown(str(folder))} ({n_files} tried)",
            file=error.file,
            offset=error.offset,
            errno=error.errno,
            hint="The whole mount or drive is not answering: check that it is connected and mounted "
            "(`findmnt`, `dmesg`). The checkpoint need not be fetched again.",
        )


class ShortRead(DriveError):
    """A read returned nothing although the file should go on."""


class DirectReadsRefused(StorageError):
    """Direct reads were demanded of a file whose file system has none."""


# Reading


class ArenaTooLarge(StorageError):
    """The system will not give the address space that the slots need."""


class ReadCancelled(StorageError):
    """A read was taken back before it began."""


class ClosedReader(StorageError):
    """A read was asked of a batch reader that was closed, or was waiting in it when it was."""


# Replicas


class CopyDiffers(CheckpointError):
    """A mirror's file is not a copy of the shard: its size, its header or its payload differ."""


class SameFile(CheckpointError):
    """A mirror's file is the shard itself, through a link or a second mount: no copy."""


class BadWeights(StorageError):
    """Drive weights are missing for a folder, negative, or no numbers."""


# Making mirrors


class WriteError(StorageError):
    """The system refused to write a copy.

    Attributes:
        file: What could not be written.
        errno: The system's number, 0 when it gave none.
    """

    def __init__(self, message: str, *, file: Path, errno: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.errno = errno

    @classmethod
    def of(cls, error: OSError, file: Path, doing: str) -> "WriteError":
        """The typed form of what the system said while `doing` ("write", "rename") `file`."""
        number = error.errno or 0
        reason = os.strerror(number) if number else shown(str(error))
        if number in (errnos.ENOSPC, errnos.EDQUOT):
            kind: type[WriteError] = NoSpace
            hint = "Free some space, or copy fewer shards. What is complete stays, and the copy can be resumed."
        elif number == errnos.EROFS:
            kind, hint = WriteError, "The drive is mounted read-only; a drive with errors is often remounted so."
        elif number in (errnos.EACCES, errnos.EPERM):
            kind, hint = WriteError, "Check the permissions of the folder."
        else:
            kind, hint = WriteError, "Look at the kernel log (`dmesg`) and at whether the drive is still there."
        name = errnos.errorcode.get(number, "no errno")
        return kind(f"cannot {doing} {shown(str(file))}: {reason} ({name})", file=file, errno=number, hint=hint)


class NoSpace(WriteError):
    """A copy does not fit where it should go."""


class TargetRefused(StorageError):
    """A folder that must not be copied into: a drive that is not mounted, the model's own folder, another's mirror."""


class MirrorBusy(StorageError):
    """Another program is copying into the same folder."""


class BadManifest(StorageError):
    """The record of a mirror folder cannot be read or is not one."""


class NotVerified(StorageError):
    """A copy read back from its drive is not what was written, twice."""


# Traces


class TraceError(StorageError):
    """A trace file is not one, is cut short, or holds what no run records."""


def joined(names: Sequence[str], limit: int = 5) -> str:
    """`a, b, c and 4 more`, each name made safe."""
    head = ", ".join(shown(name) for name in names[:limit])
    return head if len(names) <= limit else f"{head} and {len(names) - limit:,} more"
