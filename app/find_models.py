"""Looks for checkpoints where people keep them, and says of each what it is worth. Reads directories and headers only.

The one thing a reader would get wrong: this is a look around, not a search. It is bounded in folders and in time, and
never enters network file systems, where a server that is gone would hold it for minutes.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from app.errors import AppError
from app.model_choice import ModelChoice
from app.paths import as_named
from app.plan_report import explain_choice, speed_sentence
from app.report import format_bytes, said
from app.run_options import RunOptions
from app.sanitize import one_line
from app.settings import Settings
from engine.audit import Outcome, audit
from engine.config import load_config
from engine.errors import EngineError
from planner.errors import PlanError
from storage.errors import StorageError

MOST_FOLDERS = 4_000
MOST_S = 5.0
_DEPTH = 3
"""Folders below a place: a drive's top, a folder of models, an owner, a model."""
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "autofs", "fuse.sshfs", "afpfs"})

State = Literal["whole", "incomplete", "damaged", "none"]
"""Of what is in a folder; none: it is no checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint, judged by its headers. Safe for a terminal but for `folder`."""

    folder: Path
    state: State
    said: str
    """What is there, or what is wrong, in a sentence."""
    speed: str
    """What speed to expect, in a sentence; why it cannot run, when it does not fit."""


def usual_places(
    settings: Settings,
    home: Path,
    environ: Mapping[str, str] = os.environ,
    drives: Callable[[], list[Path]] | None = None,
) -> list[Path]:
    """Where checkpoints are looked for, the most likely first; each once, those that are not there left out."""
    named = [settings.model, environ.get("ARTESIAN_MODEL")]
    places = [as_named(name) for name in named if name and name.strip()]
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    hub_home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
    places.append(Path(hub) if hub else Path(hub_home) / "hub")
    places += [home / "models", home / "Models", home / "Downloads"]
    places += (drives or mounted_drives)()
    seen: dict[Path, Path] = {}
    for place in places:
        try:
            if place.is_dir():
                seen.setdefault(place.resolve(), place)
        except OSError:
            continue  # a drive that was pulled out
    return list(seen.values())


def mounted_drives() -> list[Path]:
    """The tops of all local drives but the system's own, and their folder of models."""
    found = []
    for mount in psutil.disk_partitions(all=False):
        top = Path(mount.mountpoint)
        if mount.fstype in _NETWORK or str(top).startswith(("/boot", "/snap", "/System", "/nix")):
            continue
        found += [top / "models"] if top == Path("/") else [top]
    return found


def find_checkpoints(
    places: list[Path], should_stop: Callable[[], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[Path]:
    """Folders that hold a config this engine reads and at least one shard, as they are found."""
    end_s = clock() + MOST_S
    seen: set[tuple[int, int]] = set()
    waiting = [(place, 0) for place in places]
    n_folders = 0
    while waiting and n_folders < MOST_FOLDERS and clock() < end_s and not should_stop():
        folder, depth = waiting.pop(0)
        n_folders += 1
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue  # the same by another name, or a loop of links
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                inside = sorted((entry.name, entry.is_dir()) for entry in entries)
        except OSError:
            continue  # not ours to read
        if any(name.endswith(".safetensors") for name, _ in inside) and _is_readable(folder):
            yield folder
        elif depth < _DEPTH + (folder.name.startswith("models--") or folder.name == "snapshots"):
            waiting += [(folder / name, depth + 1) for name, is_dir in inside if is_dir and name[0] != "."]


def judge(folder: Path, settings: Settings, options: RunOptions) -> Found:
    """What the headers say of a checkpoint, and the speed to expect of it here with the options that this chat has.

    Takes two seconds for a full one.
    """
    report = audit(folder)
    inventory = report.inventory
    shards = [record for record in inventory.shards.values() if record.duplicate_of is None]
    n_whole = sum(record.status == "complete" for record in shards)
    expected = f" of {format_bytes(inventory.expected_bytes)}" if inventory.expected_bytes is not None else ""
    size = f"{format_bytes(inventory.present_bytes)}{expected}, {n_whole} of {len(shards)} shards complete"
    faults = [fault for check in report.checks for fault in check.faults if check.outcome is Outcome.FAIL]
    state: State = "whole"
    text = f"Whole: {size}."
    if n_whole < len(shards):
        state, text = "incomplete", f"Incomplete: {size}. `artesian audit` names what is missing."
    elif faults:
        state, text = ("damaged", "Damaged") if shards else ("none", "No checkpoint")
        text = f"{text}: {faults[0].message}"
    speed = "" if state == "none" else _speed(folder, settings, options)  # which would only say it once more
    return Found(folder=folder, state=state, said=one_line(text), speed=one_line(speed))


def _speed(folder: Path, settings: Settings, options: RunOptions) -> str:
    choice = ModelChoice(folder=folder, origin="settings", is_demo=False)
    try:
        return speed_sentence(explain_choice(choice, settings, options))
    except (AppError, EngineError, PlanError, StorageError, OSError) as error:
        return said(error)


def _is_readable(folder: Path) -> bool:
    try:
        load_config(folder)
    except (EngineError, OSError):
        return False  # another kind of model
    return True
