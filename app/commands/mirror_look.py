"""`artesian mirror scan|propose|status`: where a model's copies could go, what they would buy, and those there are."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from app.exits import ExitCode
from app.mirror_text import facts_of, place_remark, state_text
from app.mirroring import MirrorDesk, MirrorState
from app.model_choice import choose_model
from app.paths import as_named, settings_file
from app.progress import CountProgress, ProgressLine
from app.reading import require_useful
from app.report import envelope, format_bytes, table
from app.sanitize import one_line
from app.settings import load_settings
from app.sizes import parse_bytes
from app.stopping import StopKey
from engine.errors import Stopped
from storage.errors import StorageError
from storage.mirroring.places import Place
from storage.mirroring.proposal import Proposal

ModelOption = Annotated[str | None, Parameter(help="The model's folder. [default: as set, else the demo]")]
SplitOption = Annotated[
    list[Path] | None, Parameter(help="Folder with more of the model's shards; may be repeated. [default: as set]")
]
JsonOption = Annotated[bool, Parameter(name="--json", help="Print one JSON object.")]


def make_desk(model: str | None, split: Sequence[Path] | None) -> MirrorDesk:
    """The desk for the chosen model, with the user's settings and this machine's rates.

    Raises: what choosing a model, reading the settings and opening the desk raise.
    """
    splits = None if split is None else [as_named(folder) for folder in split]
    choice = choose_model(model, load_settings(settings_file()))
    require_useful(choice.folder, splits or ())
    return MirrorDesk.of_user(choice, splits)


def scan(
    *,
    model: ModelOption = None,
    split: SplitOption = None,
    measure: Annotated[
        bool, Parameter(help="Measure every place first: writes 0.5 GB there, reads it, and removes it again.")
    ] = False,
    as_json: JsonOption = False,
) -> ExitCode:
    """List every mounted file system that could hold copies of the model's shards.

    Raises: UsageError; what opening the model raises.
    """
    desk = make_desk(model, split)
    places = desk.places()
    if measure:
        _measure(desk, [place for place in places if not place.obstacle])
    if as_json:
        print(envelope("mirror-scan", [_place_json(place, desk) for place in places]))
        return ExitCode.DONE
    rows = [("folder", "drive", "kind", "free", "of", "reads at", "")]
    for place in places:
        rate = desk.rate_of(place)
        rows.append(
            (
                one_line(str(place.folder)),
                one_line(place.drive.name),
                place.kind,
                format_bytes(place.free_bytes),
                format_bytes(place.total_bytes),
                "not measured" if rate is None else f"{format_bytes(rate)}/s",
                place_remark(place),
            )
        )
    print(table(rows, right=(3, 4)))
    if not any(not place.obstacle and not place.shares_with for place in places):
        print("\nNo other drive is mounted: a copy on the model's own disk would give no more speed.")
    return ExitCode.DONE


def propose(
    *,
    model: ModelOption = None,
    split: SplitOption = None,
    budget: Annotated[str | None, Parameter(help="Most to copy, such as 200GB. [default: what fits]")] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Say for each place what copies there would buy.

    Raises: UsageError; what opening the model raises.
    """
    limit = None if budget is None else parse_bytes(budget, "--budget")
    desk = make_desk(model, split)
    made = [desk.propose(place, budget_bytes=limit) for place in desk.places()]
    if as_json:
        print(envelope("mirror-proposals", [_proposal_json(one, desk) for one in made]))
        return ExitCode.DONE
    print("\n\n".join(proposal_text(one, desk) for one in made))
    if not desk.profiled:
        print("\nNo usage profile yet: every expert counts alike. After some chats the hottest are copied first.")
    return ExitCode.DONE


def status(
    *folder: Annotated[Path, Parameter(name="DIR", help="Further mirror folders to look at.")],
    model: ModelOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """List the model's mirrors and what each holds.

    Raises: UsageError; what opening the model raises.
    """
    desk = make_desk(model, split)
    states = desk.states([as_named(path) for path in folder])
    if as_json:
        print(envelope("mirror-status", [_state_json(state) for state in states]))
    elif not states:
        print("The model has no mirrors. `artesian mirror propose` shows what one would buy.")
    else:
        print("\n".join(state_text(state, desk) for state in states))
    return ExitCode.FAILED if any(state.problem for state in states) else ExitCode.DONE


def proposal_text(made: Proposal, desk: MirrorDesk) -> str:
    """One proposal, for a person."""
    place = made.place
    lines = [f"{one_line(str(desk.target_on(place)))}  ({one_line(place.drive.name)}, {place.kind})"]
    lines += [f"  {label:<7} {text}" for label, text in facts_of(made)]
    return "\n".join(lines)


def _measure(desk: MirrorDesk, places: Sequence[Place]) -> None:
    line, started = ProgressLine(sys.stderr), time.monotonic()
    with StopKey() as stop:
        for number, place in enumerate(places):
            what = f"measuring {one_line(str(place.folder))},"

            def stopping(what: str = what, done: int = number) -> bool:
                elapsed_s = time.monotonic() - started
                line.show(CountProgress(what=what, unit="places", done=done, total=len(places), elapsed_s=elapsed_s))
                return stop.pressed()

            try:
                desk.measure(place, stopping)
            except StorageError as error:
                line.clear()
                print(f"artesian: {one_line(str(error))}", file=sys.stderr)
            if stop.pressed():
                line.clear()
                raise Stopped("measuring was stopped")
    line.clear()


def _place_json(place: Place, desk: MirrorDesk) -> dict[str, Any]:
    return {
        "folder": str(place.folder),
        "mount_point": place.drive.mount_point,
        "drive": place.drive.name,
        "kind": place.kind,
        "file_system": place.drive.fs_type,
        "free_bytes": place.free_bytes,
        "total_bytes": place.total_bytes,
        "rate_bytes_s": desk.rate_of(place),
        "shares_disks_with_model": list(place.shares_with),
        "obstacle": place.obstacle,
    }


def _proposal_json(made: Proposal, desk: MirrorDesk) -> dict[str, Any]:
    return {
        "place": _place_json(made.place, desk),
        "target": str(desk.target_on(made.place)),
        "shards": list(made.shards),
        "copy_bytes": made.copy_bytes,
        "copy_s": made.copy_s,
        "read_share": made.read_share,
        "gain": made.gain,
        "whole": made.whole,
        "costs_ram": made.costs_ram,
        "why_not": made.why_not,
    }


def _state_json(state: MirrorState) -> dict[str, Any]:
    return {
        "folder": str(state.folder),
        "kind": state.kind,
        "drive": state.drive,
        "shards": list(state.shards),
        "copied_bytes": state.copied_bytes,
        "read_share": state.read_share,
        "rate_bytes_s": state.rate_bytes_s,
        "in_settings": state.in_settings,
        "problem": state.problem,
    }
