import errno
from pathlib import Path

import pytest

from app.errors import SettingsError, UsageError
from app.exits import MEANINGS, ExitCode, exit_code_of
from engine.errors import ConfigError, EngineError, PromptError, Stopped, TokenizerError
from storage.errors import DriveError, MissingFolder, StorageError, TruncatedShard


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (SettingsError("x"), 2),
        (PromptError("x"), 2),
        (MissingFolder("x"), 4),
        (TruncatedShard("x"), 4),
        (ConfigError("x"), 4),
        (TokenizerError("x"), 4),
        (DriveError("x", file=Path("f"), offset=0, errno=errno.EIO), 5),
        (OSError(errno.EIO, "Input/output error"), 5),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (MemoryError(), 3),
        (Stopped("x"), 130),
        (KeyboardInterrupt(), 130),
        (StorageError("x"), 1),
        (EngineError("x"), 1),
        (ValueError("x"), 1),
    ],
)
def test_every_kind_of_failure_has_the_code_of_the_table(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_a_subclass_has_the_code_of_its_nearest_listed_base() -> None:
    class OddPromptError(PromptError):
        pass

    assert exit_code_of(OddPromptError("x")) is ExitCode.USAGE


def test_every_code_has_its_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)
