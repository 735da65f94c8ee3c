"""The exit codes, and the one table from exception class to code."""

import errno
from enum import IntEnum

from app.errors import AppError, NoCard, SettingsError, TranscriptMissing, UsageError
from app.short_memory import lacks_memory
from engine.errors import (
    CardFull,
    ConfigError,
    EngineError,
    FormatError,
    GoldenError,
    KernelError,
    PromptError,
    SamplerSettingsError,
    SavedStateError,
    Stopped,
    TokenizerError,
)
from planner.errors import BadWish, DoesNotFit, MissingParts, PlanError
from storage.errors import (
    CheckpointError,
    DirectReadsRefused,
    DriveError,
    NoSpace,
    NotVerified,
    StorageError,
    TargetRefused,
    WriteError,
)


class ExitCode(IntEnum):
    """How a command ended; `MEANINGS` says it in words."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TOO_BIG = 3
    CHECKPOINT = 4
    DEVICE = 5
    NO_CARD = 6
    STOPPED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the work failed",
    ExitCode.USAGE: "wrong use or settings",
    ExitCode.TOO_BIG: "does not fit in memory or on the drive",
    ExitCode.CHECKPOINT: "checkpoint missing or damaged",
    ExitCode.DEVICE: "drive or device failed",
    ExitCode.NO_CARD: "no graphics card to measure",
    ExitCode.STOPPED: "stopped by the user",
}
"""What `artesian --help` prints beside each code."""

_BY_CLASS: dict[type[BaseException], ExitCode] = {
    UsageError: ExitCode.USAGE,
    NoCard: ExitCode.NO_CARD,
    TranscriptMissing: ExitCode.USAGE,
    SettingsError: ExitCode.USAGE,
    PromptError: ExitCode.USAGE,
    SamplerSettingsError: ExitCode.USAGE,
    SavedStateError: ExitCode.FAILED,
    GoldenError: ExitCode.USAGE,
    KernelError: ExitCode.USAGE,
    DoesNotFit: ExitCode.TOO_BIG,
    BadWish: ExitCode.USAGE,
    MissingParts: ExitCode.CHECKPOINT,
    PlanError: ExitCode.FAILED,
    AppError: ExitCode.FAILED,
    ConfigError: ExitCode.CHECKPOINT,
    FormatError: ExitCode.CHECKPOINT,
    TokenizerError: ExitCode.CHECKPOINT,
    CardFull: ExitCode.TOO_BIG,
    Stopped: ExitCode.STOPPED,
    EngineError: ExitCode.FAILED,
    CheckpointError: ExitCode.CHECKPOINT,
    DriveError: ExitCode.DEVICE,
    DirectReadsRefused: ExitCode.USAGE,  # only `--io direct` asks for them or nothing
    NoSpace: ExitCode.TOO_BIG,
    WriteError: ExitCode.DEVICE,
    NotVerified: ExitCode.DEVICE,
    TargetRefused: ExitCode.USAGE,
    StorageError: ExitCode.FAILED,
    MemoryError: ExitCode.TOO_BIG,
    KeyboardInterrupt: ExitCode.STOPPED,
}

_DRIVE_ERRNOS = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ETIMEDOUT})
"""An operating-system error with one of these is the drive or the mount, not the file."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The code for `error`: that of its nearest listed base class; else TOO_BIG for a lack of memory, or FAILED."""
    if isinstance(error, OSError) and error.errno in _DRIVE_ERRNOS:
        return ExitCode.DEVICE
    for base in type(error).__mro__:
        if base in _BY_CLASS:
            return _BY_CLASS[base]
    return ExitCode.TOO_BIG if lacks_memory(error) else ExitCode.FAILED
