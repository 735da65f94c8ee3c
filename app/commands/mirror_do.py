"""`artesian mirror copy|check|repair|remove`: makes copies of a model's shards on another drive, and minds them."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.commands.mirror_look import JsonOption, ModelOption, SplitOption, make_desk
from app.errors import UsageError
from app.exits import ExitCode
from app.mirroring import UNWEIGHED, MirrorDesk
from app.paths import as_named
from app.progress import ProgressLine, WorkProgress
from app.report import envelope, format_bytes
from app.sanitize import one_line
from app.sizes import parse_bytes
from app.stopping import StopKey
from engine.errors import Stopped
from storage.errors import DriveError, NoSpace, TargetRefused, shown
from storage.mirroring.checking import CheckedShard, check_copies
from storage.mirroring.copying import CopyJob, CopyProgress
from storage.mirroring.manifest import Kind, Manifest, read_manifest
from storage.mirroring.places import Place
from storage.mirroring.undoing import remove_copies, repair_blocks

_GOES_ON = "copying was stopped; the same command goes on where it was"
FolderArgument = Annotated[Path, Parameter(name="DIR", help="The mirror's folder.")]
SplitArgument = Annotated[Path, Parameter(name="DIR", help="The split's folder.")]


def copy(
    *,
    to: Annotated[Path, Parameter(help="Folder on another drive; made when it is not there.")],
    model: ModelOption = None,
    split: SplitOption = None,
    budget: Annotated[
        str | None, Parameter(help="Most that copies there take, such as 200GB. [default: what fits]")
    ] = None,
    shards: Annotated[
        list[str] | None, Parameter(name="--shard", help="Copy this shard; may be repeated. [default: as proposed]")
    ] = None,
    reserve: Annotated[
        str | None, Parameter(help="What stays free on the drive. [default: a twentieth of it, at most 20GB]")
    ] = None,
    same_disk: Annotated[bool, Parameter(help="Copy though it is the model's own disk and gives no speed.")] = False,
    as_json: JsonOption = False,
) -> ExitCode:
    """Copy shards to another drive, read every copy back, and have later runs use it.

    Raises: UsageError; TargetRefused, NoSpace, MirrorBusy, NotVerified, WriteError; DriveError of the model's drive.
    """
    desk = make_desk(model, split)
    target = as_named(to).absolute()
    place = desk.place_of(target)
    if place.shares_with and not same_disk:
        raise UsageError(
            f"{shown(str(target))} is on the model's own disk ({', '.join(place.shares_with)}): a copy there takes "
            "space and gives no speed",
            hint="`artesian mirror scan` shows other drives; --same-disk copies all the same.",
        )
    limit = None if budget is None else parse_bytes(budget, "--budget")
    kept_free = None if reserve is None else parse_bytes(reserve, "--reserve")
    wanted = tuple(shards) if shards else desk.propose(place, target=target, budget_bytes=limit).shards
    known = read_manifest(target)
    jobs = desk.jobs([*dict.fromkeys([*(known.shards if known else ()), *wanted])] if not shards else wanted)
    if not jobs:
        raise NoSpace(
            f"no shard fits into {shown(str(target))}: {format_bytes(place.free_bytes)} are free there"
            + (f", {format_bytes(limit)} may be copied" if limit is not None else ""),
            file=target,
            errno=0,
            hint="`artesian mirror propose` says what fits where.",
        )
    made, stopped = _copy(desk, target, place, jobs, kind="mirror", reserve=kept_free, may_stop=True)
    noted = desk.use(target) if made or known else False
    _tell_of_weights(desk)
    n_bytes = sum(desk.headers[shard].file_bytes for shard in made)
    if as_json:
        print(envelope("mirror-copy", {
            "target": str(target), "shards": list(made), "copied_bytes": n_bytes, "complete": not stopped,
            "in_settings": noted,
        }))  # fmt: skip
    elif made:
        print(
            f"Copied {len(made)} shard{'' if len(made) == 1 else 's'}, {format_bytes(n_bytes)}, each read back equal."
        )
        print("Later runs read from both." if noted else f"To read from it: --mirror {shown(str(target))}")
    elif not stopped:
        print("Everything that was to be copied is there already.")
    if stopped:
        raise Stopped(_GOES_ON)
    return ExitCode.DONE


def split(
    *,
    to: Annotated[Path, Parameter(help="Folder on another drive; made when it is not there.")],
    model: ModelOption = None,
    shards: Annotated[
        list[str] | None,
        Parameter(
            name="--shard", help="Move this shard; may be repeated. [default: so that both drives share the reads]"
        ),
    ] = None,
    reserve: Annotated[
        str | None, Parameter(help="What stays free on the drive. [default: a twentieth of it, at most 20GB]")
    ] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Move shards to another drive: copied, read back, noted in the settings, and only then removed here.

    Raises: UsageError; TargetRefused, NoSpace, MirrorBusy, NotVerified, WriteError; DriveError of the model's drive.
    """
    desk = make_desk(model, None)
    target = as_named(to).absolute()
    place = desk.place_of(target)
    if place.shares_with:
        raise UsageError(f"{shown(str(target))} is on the model's own disk ({', '.join(place.shares_with)}): no gain")
    wanted = tuple(shards) if shards else desk.choose_split(place)
    if not wanted:
        raise NoSpace(
            f"no shard is worth moving to {shown(str(target))}: {format_bytes(place.free_bytes)} are free there",
            file=target,
            errno=0,
            hint="It is too full, or too slow beside the model's drive. `--shard NAME` moves one all the same.",
        )
    jobs = desk.jobs(wanted)
    desk.require_movable(wanted)
    kept_free = None if reserve is None else parse_bytes(reserve, "--reserve")
    made, _ = _copy(desk, target, place, jobs, kind="split", reserve=kept_free)
    _require_still_whole(target, [shard for shard in wanted if shard not in made])
    freed = desk.finish_split(target, wanted)
    _tell_of_weights(desk)
    if as_json:
        print(envelope("mirror-split", {"target": str(target), "shards": list(wanted), "freed_bytes": freed}))
    else:
        print(f"Moved {_shards(len(wanted))}, {format_bytes(freed)}. `artesian mirror join` moves them back.")
    return ExitCode.DONE


def join(folder: SplitArgument, /, *, model: ModelOption = None, as_json: JsonOption = False) -> ExitCode:
    """Move a split's shards back into the model's folder: copied, read back, and only then removed there.

    Raises: as `split`.
    """
    desk = make_desk(model, None)
    source = as_named(folder).absolute()
    manifest = desk.record_of(source)
    if manifest.kind != "split":
        raise TargetRefused(f"{shown(str(source))} is no split of this model")
    shards, own = tuple(manifest.shards), desk.choice.folder
    if source.resolve() == own.resolve():  # it has a record while a join is under way
        raise TargetRefused(f"{shown(str(source))} is the model's own folder", hint="Name the folder of the split.")
    made, _ = _copy(desk, own, None, desk.jobs(shards), kind="split", reserve=0)
    _require_still_whole(own, [shard for shard in shards if shard not in made])
    freed = desk.finish_join(source, shards)
    if as_json:
        print(envelope("mirror-join", {"from": str(source), "shards": list(shards), "freed_bytes": freed}))
    else:
        print(f"Moved {_shards(len(shards))} back, {format_bytes(freed)}.")
    return ExitCode.DONE


def check(
    folder: FolderArgument,
    /,
    *,
    model: ModelOption = None,
    split: SplitOption = None,
    everything: Annotated[
        bool, Parameter(name="--all", help="Read every byte. [default: both ends and four blocks of 67 MB a shard]")
    ] = False,
    as_json: JsonOption = False,
) -> ExitCode:
    """Compare a mirror's copies with what was copied, and name the first byte that differs.

    The exit code is CHECKPOINT when a copy differs, DEVICE when one cannot be read. Raises: UsageError; TargetRefused
    for a folder that was not made here.
    """
    desk = make_desk(model, split)
    target = as_named(folder).absolute()
    found = _check(desk, target, everything=everything)
    bad = [one for one in found if one.error is not None]
    if as_json:
        print(envelope("mirror-check", [_checked_json(one) for one in found]))
    else:
        for one in bad:
            print(one_line(str(one.error)))
        checked = format_bytes(sum(one.checked_bytes for one in found))
        print(f"{len(found) - len(bad)} of {len(found)} copies are as they were copied, {checked} read.")
        if bad:
            print(f"`artesian mirror repair {shown(str(folder))}` copies what is damaged again.")
    if not bad:
        return ExitCode.DONE
    return ExitCode.DEVICE if all(isinstance(one.error, DriveError) for one in bad) else ExitCode.CHECKPOINT


def repair(
    folder: FolderArgument,
    /,
    *,
    model: ModelOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Read every byte of a mirror and copy again what differs or is missing.

    Raises: UsageError; TargetRefused; CopyDiffers when the model's own shard changed too; what copying raises.
    """
    desk = make_desk(model, split)
    target = as_named(folder).absolute()
    place = desk.place_of(target)
    manifest = desk.record_of(target)
    found = _check(desk, target, everything=True)
    bad = [(one, source) for one in found if one.error is not None and (source := desk.source_of(one.shard))]
    damaged = [(one.shard, one.bad_blocks, source) for one, source in bad if one.bad_blocks]
    n_bytes = _repair_blocks(target, manifest, damaged)
    again = [one.shard for one, _ in bad if not one.bad_blocks]  # missing or cut: the whole of it
    if again:  # those that are the same, though their source was written again, are not copied
        made, _ = _copy(desk, target, place, desk.jobs(again), kind=manifest.kind, reserve=None)
        again = list(made)
        n_bytes += sum(one.file_bytes for one in found if one.shard in again)
    for one, _ in bad:  # the drive gives nothing of it, and it is of the right size
        if isinstance(one.error, DriveError) and not one.bad_blocks and one.shard not in again:
            raise one.error
    if as_json:
        print(envelope("mirror-repair", {"target": str(target), "copied_bytes": n_bytes, "shards": again}))
    else:
        print(f"Copied {format_bytes(n_bytes)} again." if n_bytes else "Every copy is as it was copied.")
    return ExitCode.DONE


def remove(
    folder: FolderArgument,
    /,
    *,
    model: ModelOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Take a mirror away: its copies, its record, and its place in the settings. The model's own files stay.

    Raises: UsageError; TargetRefused for a folder that was not made here, or that holds the only copy of a shard.
    """
    desk = make_desk(model, split)
    target = as_named(folder).absolute()
    desk.record_of(target)
    removed = remove_copies(target, lambda shard: desk.has_other(shard, target))
    was_set = desk.disuse(target)
    if as_json:
        print(envelope("mirror-remove", {
            "target": str(target), "shards": list(removed.shards), "freed_bytes": removed.freed_bytes,
            "was_in_settings": was_set,
        }))  # fmt: skip
    else:
        n_shards = len(removed.shards)
        copies = f"{n_shards} cop{'y' if n_shards == 1 else 'ies'}"
        print(f"Removed {copies}, {format_bytes(removed.freed_bytes)} are free again.")
    return ExitCode.DONE


def _copy(
    desk: MirrorDesk,
    target: Path,
    place: Place | None,
    jobs: Sequence[CopyJob],
    *,
    kind: Kind,
    reserve: int | None,
    may_stop: bool = False,
) -> tuple[tuple[str, ...], bool]:
    """Copy with a progress line; what was made, and whether the user stopped it.

    Raises: Stopped unless `may_stop`.
    """
    line = ProgressLine(sys.stderr)

    def show(progress: CopyProgress) -> None:
        line.show(
            WorkProgress(
                what=f"{progress.phase} {one_line(progress.shard)},",
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                elapsed_s=progress.elapsed_s,
            )
        )
        if stop.pressed():
            copier.stop()

    copier = desk.copier(target, place, kind=kind, reserve=reserve, on_progress=show)
    with StopKey() as stop:
        try:
            made = copier.run(jobs)
        finally:
            line.clear()
        if stop.pressed() and not may_stop:
            raise Stopped(_GOES_ON)
        return made, stop.pressed()


def _repair_blocks(target: Path, manifest: Manifest, damaged: Sequence[tuple[str, Sequence[int], Path]]) -> int:
    """Copy damaged blocks of shards again, each from its source, with a progress line; the bytes written."""
    line, started, done_bytes = ProgressLine(sys.stderr), time.monotonic(), 0
    total_bytes = sum(len(blocks) * manifest.shards[shard].block_bytes for shard, blocks, _ in damaged)

    def show(n_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += n_bytes
        elapsed_s = time.monotonic() - started
        line.show(WorkProgress(what="repairing", done_bytes=done_bytes, total_bytes=total_bytes, elapsed_s=elapsed_s))

    try:
        return sum(repair_blocks(target, shard, blocks, source, on_bytes=show) for shard, blocks, source in damaged)
    finally:
        line.clear()


def _tell_of_weights(desk: MirrorDesk) -> None:
    if desk.unweighed:
        print(f"artesian: {UNWEIGHED}", file=sys.stderr)


def _require_still_whole(folder: Path, shards: Sequence[str]) -> None:
    """Copies of an earlier run are read once more before what they were made of goes.

    Raises: CopyDiffers; DriveError.
    """
    manifest = read_manifest(folder)
    for one in check_copies(folder, manifest, everything=True, shards=shards) if manifest is not None else ():
        if one.error is not None:
            raise one.error


def _shards(n: int) -> str:
    return f"{n} shard{'' if n == 1 else 's'}"


def _check(desk: MirrorDesk, target: Path, *, everything: bool) -> Sequence[CheckedShard]:
    line = ProgressLine(sys.stderr)
    with StopKey() as stop:
        try:
            return desk.check(target, everything=everything, on_progress=line.show, should_stop=stop.pressed)
        finally:
            line.clear()


def _checked_json(one: CheckedShard) -> dict[str, object]:
    return {
        "shard": one.shard,
        "path": str(one.path),
        "checked_bytes": one.checked_bytes,
        "file_bytes": one.file_bytes,
        "problem": None if one.error is None else str(one.error),
        "first_difference": one.first_difference,
    }
