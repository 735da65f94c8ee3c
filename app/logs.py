"""The log file: tracebacks and warnings, bounded in size, never in the way of the work."""

import logging
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_LIMIT_BYTES = 1_000_000
_OLD_FILES = 2

log = logging.getLogger("artesian")


class _LazyFile(RotatingFileHandler):
    """Makes its folder with the first record; no failure of its own (full disk, read-only home) disturbs the work."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the base class's hook
        """Drop the record."""


def start(path: Path) -> None:
    """Send the log to `path`, at most three files of 1 MB. Nothing is created before the first record."""
    log.propagate = False
    log.setLevel(logging.INFO)
    for old in list(log.handlers):
        log.removeHandler(old)
        with suppress(OSError):  # what its drive has no room for is lost with it
            old.close()
    handler = _LazyFile(path, maxBytes=_LIMIT_BYTES, backupCount=_OLD_FILES, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
