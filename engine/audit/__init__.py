"""The audit: what can be said of a checkpoint from its config, its index and its shards' headers alone.

Payload is never read and no tensor is made, so it runs on a checkpoint of any size, on one still downloading, and on a
folder with only the beginning of each shard.
"""

from collections.abc import Sequence
from pathlib import Path

from engine.audit import (
    attention_checks,
    config_checks,
    draft_checks,
    engram_checks,
    file_checks,
    tensor_checks,
    text_checks,
    vision_checks,
)
from engine.audit.check import Check
from engine.audit.records import CheckResult, Fault, GroupTotal, Outcome, Report
from engine.audit.view import View
from engine.config import ConfigReading, read_config
from engine.errors import ConfigError
from storage.inspection import inspect

__all__ = ["CHECKS", "Check", "CheckResult", "Fault", "GroupTotal", "Outcome", "Report", "audit"]

CHECKS: tuple[Check, ...] = (
    *config_checks.CHECKS,
    *engram_checks.CHECKS,
    *attention_checks.CHECKS,
    *tensor_checks.CHECKS,
    *draft_checks.CHECKS,
    *vision_checks.CHECKS,
    *file_checks.CHECKS,
    *text_checks.CHECKS,
)
"""Every check, in the order of the report."""


def audit(
    folder: Path,
    *,
    splits: Sequence[Path] = (),
    config: Path | None = None,
    require_complete: bool = False,
    fp8_block: int = 32,
) -> Report:
    """Judge the checkpoint in `folder`; never raises for what is in it.

    `splits` are folders with further shards of it. `config` is a config file in either layout to use instead of the
    folder's. `fp8_block` is the side of the block one scale of a dense fp8 weight covers. With `require_complete` a
    check that cannot be decided has failed.
    Time: about two seconds for the release (96,085 tensors).
    """
    reading: ConfigReading | None = None
    error: ConfigError | None = None
    try:
        reading = read_config(folder, config=config)
    except ConfigError as raised:
        error = raised
    view = View(inspect(folder, splits=splits), reading, error, fp8_block=fp8_block)
    return Report(
        inventory=view.inventory,
        reading=reading,
        prefixes=view.prefixes,
        groups=view.groups,
        checks=tuple(check.run(view, require_complete=require_complete) for check in CHECKS),
    )
