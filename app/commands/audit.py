"""`artesian audit`: is this checkpoint whole and what it says it is? Decided from headers; no payload is read."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import holds_config
from app.reading import require_useful
from app.report import envelope, format_bytes, table
from app.sanitize import one_line
from app.slips import no_checkpoint_hint
from engine.audit import CheckResult, Outcome, Report, audit
from engine.errors import ConfigError
from storage.errors import DriveError, MissingFolder, NoIndex
from storage.headers import TensorEntry
from storage.inspection import inspect
from storage.inventory import Inventory

SHOWN_FAULTS = 5
"""Faults printed per check; `--json` carries more."""

_MANY_BLIND = 4
"""Checks that wait for one and the same thing are counted from this many on: a wrong config blinds fifty."""

_WORDS = {Outcome.PASS: "pass", Outcome.FAIL: "FAIL", Outcome.UNDECIDED: "open"}


def run(
    folder: Annotated[Path, Parameter(name="MODEL", help="The model's folder, or one of header prefixes.")],
    /,
    *,
    split: Annotated[
        list[Path] | None, Parameter(help="Folder with more shards of the checkpoint; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, Parameter(help="Config file to use, in either layout. [default: the model's own]")
    ] = None,
    require_complete: Annotated[bool, Parameter(help="What cannot be decided yet counts as failed.")] = False,
    json_output: Annotated[bool, Parameter(name="--json", help="Print the whole report as JSON.")] = False,
    list_pattern: Annotated[
        str | None, Parameter(name="--list", help='Only list tensors by name, such as "layers.1.engram.*".')
    ] = None,
    expect_fp8_block: Annotated[int, Parameter(help="Side of the block a dense fp8 scale covers.")] = 32,
) -> ExitCode:
    """Check from the shard headers whether a checkpoint is whole.

    The exit code is CHECKPOINT when a check failed, DEVICE when files could not be read, DONE otherwise.
    Raises: UsageError for an option that cannot be used, MissingFolder or ConfigError when there is nothing to look at.
    """
    if expect_fp8_block < 1:
        raise UsageError(f"--expect-fp8-block must be at least 1, not {expect_fp8_block}")
    if config is not None and not config.is_file():
        raise UsageError(f"--config: {config} is not a file")
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "not there"
        raise MissingFolder(f"{one_line(str(folder))} is {what}", hint="Give the folder that holds the shards.")
    splits = tuple(split or ())
    for more in splits:
        if not more.is_dir():
            raise MissingFolder(f"--split {one_line(str(more))} is not a folder", hint="Is its drive mounted?")
        if more.resolve() == folder.resolve() or splits.count(more) > 1:
            raise UsageError(f"--split {one_line(str(more))} was named before", hint="Each folder is named once.")
    require_useful(folder, splits)
    if list_pattern is not None:
        inventory = inspect(folder, splits=splits)
        _require_checkpoint(inventory)
        print(_listing(inventory, list_pattern, as_json=json_output))
        return ExitCode.DONE
    report = audit(folder, splits=splits, config=config, require_complete=require_complete, fp8_block=expect_fp8_block)
    _require_checkpoint(report.inventory)
    print(envelope("audit", report.as_json()) if json_output else "\n".join(_lines(report)))
    if report.sound:
        return ExitCode.DONE
    refused = any(isinstance(problem.error, DriveError) for problem in report.inventory.problems)
    return ExitCode.DEVICE if refused else ExitCode.CHECKPOINT


def _require_checkpoint(inventory: Inventory) -> None:
    """Raises: ConfigError for a folder with nothing of a checkpoint in it, of which there is nothing to report."""
    has_index = not isinstance(inventory.index_error, NoIndex)
    if not (has_index or inventory.shards or inventory.unfinished or holds_config(inventory.folder)):
        folder = inventory.folder
        raise ConfigError(
            f"{one_line(str(folder))} holds no config.json, no index and no .safetensors file, so no checkpoint",
            hint=no_checkpoint_hint(folder),
        )


def _listing(inventory: Inventory, pattern: str, *, as_json: bool) -> str:
    """The tensors whose names match, in order of shard and offset: name, dtype, shape, shard, offset, bytes."""
    tensors = [entry for name, entry in inventory.tensors.items() if fnmatchcase(name, pattern)]
    tensors.sort(key=lambda entry: (entry.extent.shard, entry.extent.offset))
    if as_json:
        return envelope("tensors", {"pattern": pattern, "tensors": [_as_json(entry) for entry in tensors]})
    rows = [("tensor", "dtype", "shape", "shard", "offset", "bytes")]
    rows += [
        (
            one_line(entry.name),
            entry.dtype,
            "x".join(str(size) for size in entry.shape) or "-",
            one_line(entry.extent.shard),
            str(entry.extent.offset),
            str(entry.extent.length),
        )
        for entry in tensors
    ]
    return table(rows, right=(4, 5))


def _as_json(entry: TensorEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "shard": entry.extent.shard,
        "offset_bytes": entry.extent.offset,
        "size_bytes": entry.extent.length,
    }


def _lines(report: Report) -> list[str]:
    """The report for a person: what lies there, what it is for, then one line a check.

    Checks that all wait for the same thing, which is no shard that may still come, are one line together.
    """
    inventory = report.inventory
    lines = [table(_facts(report)), ""]
    if report.groups:
        rows = [("tensors", "bytes", "", "for")]
        # GiB beside the exact bytes of a large model: it is what its page and most file tools count in.
        size = _gibibytes if report.n_bytes >= 1 << 30 else format_bytes
        totals = [(g.n_tensors, g.n_bytes, g.group or "no known use") for g in report.groups]
        for n_tensors, n_bytes, what in [*totals, (report.n_tensors, report.n_bytes, "in all")]:
            rows.append((f"{n_tensors:,}", f"{n_bytes:,}", size(n_bytes), what))
        lines += [table(rows, right=(0, 1, 2)), ""]
    lines += _shards_to_fetch(report)
    blind: dict[tuple[str, ...], list[CheckResult]] = {}
    for check in report.checks:
        if check.outcome is Outcome.UNDECIDED and not check.notes and set(check.waiting).isdisjoint(inventory.shards):
            blind.setdefault(check.waiting, []).append(check)
    for check in report.checks:
        if len(blind.get(check.waiting, ())) < _MANY_BLIND:
            lines += _check_lines(check)
    for waiting, checks in blind.items():
        if len(checks) >= _MANY_BLIND:
            lines.append(f"open  {len(checks)} checks wait for {_some(waiting)}; --json names them")
    counts = ", ".join(f"{report.count(outcome)} {word}" for outcome, word in _COUNTED)
    return [*lines, "", f"{len(report.checks)} checks: {counts}"]


def _gibibytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:,.2f} GiB"


_COUNTED = ((Outcome.PASS, "passed"), (Outcome.FAIL, "failed"), (Outcome.UNDECIDED, "undecided"))


def _facts(report: Report) -> list[tuple[str, str]]:
    inventory = report.inventory
    records = [record for record in inventory.shards.values() if record.duplicate_of is None]
    whole = sum(record.status == "complete" for record in records)
    shards = f"{whole} of {len(records)} complete"
    if report.prefixes:
        shards += f", {len(report.prefixes)} header prefixes"
    n_copies = len(inventory.shards) - len(records)
    if n_copies:
        shards += f", {n_copies} duplicate{'s' if n_copies > 1 else ''}"
    present = f"{inventory.present_bytes:,} bytes present"
    if inventory.expected_bytes is not None:
        present += f" of {inventory.expected_bytes:,} ({format_bytes(inventory.expected_bytes)})"
    configs = [str(file.path) for file in report.reading.files] if report.reading else ["none that can be read"]
    index = inventory.index.path.name if inventory.index else "none that can be used"
    return [
        ("folder", one_line(str(inventory.folder))),
        ("config", one_line(", ".join(configs))),
        ("index", index),
        ("shards", shards),
        ("files", present),
    ]


def _shards_to_fetch(report: Report) -> list[str]:
    """One line for each shard file that is not there in full, with the bytes that are and should be."""
    rows = []
    for record in report.inventory.shards.values():
        if record.status == "complete" or record.shard in report.prefixes:
            continue
        expected = f"of {record.expected_bytes:,}" if record.expected_bytes is not None else ""
        rows.append((record.status, one_line(record.shard), f"{record.present_bytes:,}", expected))
    return [table(rows, right=(2,)), ""] if rows else []


def _check_lines(check: CheckResult) -> list[str]:
    lines = [f"{_WORDS[check.outcome]}  {check.check:<28}  {check.title}"]
    lines += [f"        {one_line(fault.message)}" for fault in check.faults[:SHOWN_FAULTS]]
    if check.n_faults > SHOWN_FAULTS:
        lines.append(f"        and {check.n_faults - SHOWN_FAULTS:,} more")
    hints = dict.fromkeys(fault.hint for fault in check.faults[:SHOWN_FAULTS] if fault.hint)
    lines += [f"        {one_line(hint)}" for hint in hints]
    if check.waiting and check.outcome is not Outcome.PASS:
        lines.append(f"        waits for {_some(check.waiting)}")
    lines += [f"        note: {one_line(note)}" for note in check.notes]
    return lines


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(one_line(name) for name in names[:SHOWN_FAULTS])
    more = len(names) - SHOWN_FAULTS
    return f"{shown} and {more:,} more" if more > 0 else shown
