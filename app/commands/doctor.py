"""`artesian doctor`: what is installed, what the machine has, where things lie. It finds out and judges nothing."""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import Parameter

from app import machine, on_disk, paths
from app.errors import SettingsError
from app.exits import ExitCode
from app.model_choice import ModelChoice, choose_model
from app.reading import io_mode, saved_folders
from app.report import artesian_version, envelope, format_bytes, table
from app.sanitize import one_line
from app.settings import Settings, load_settings, to_toml
from planner.cgroups import quota_cores
from storage.direct import DirectFile, IoMode
from storage.drives import drive_of
from storage.errors import StorageError

_DEPENDENCIES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "deepseek-recipe",
    "textual",
    "markdown-it-py",
    "pygments",
    "cyclopts",
    "tomlkit",
    "platformdirs",
    "psutil",
)

_BUNDLED = "demo model, its tokenizer and texts: made by this project, under its licence"
_LONGEST_LICENCE = 60
"""Some put the whole text where its name belongs."""


def run(
    *,
    model: Annotated[str | None, Parameter(help="The model's folder. [default: as set, else the demo]")] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Show versions, CPU features, direct I/O, GPUs and paths. The exit code is 0 whatever is found."""
    try:
        settings, fault = load_settings(paths.settings_file()), ""
    except SettingsError as error:
        settings, fault = Settings(), f"{error} {error.hint}".strip()
    data = gather(choose_model(model, settings), settings, fault)
    print(envelope("doctor", data) if as_json else render(data))
    return ExitCode.DONE


def gather(choice: ModelChoice, settings: Settings, settings_fault: str) -> dict[str, Any]:
    """Everything the report says, with units in the key names."""
    cpuinfo = machine.read_cpuinfo()
    memory = psutil.virtual_memory()
    torch = _torch()
    return {
        "versions": {
            "artesian": artesian_version(),
            "python": platform.python_version(),
            "system": platform.platform(),
            **{name: _version(name) for name in _DEPENDENCIES},
        },
        "licences": {name: _licence(name) for name in ("artesian", *_DEPENDENCIES)},
        "cpu": {
            "name": machine.cpu_name(cpuinfo),
            "features": list(machine.cpu_features(cpuinfo)),
            "n_cores": os.cpu_count(),
            "n_cores_allowed": machine.affinity_cores(),
            "quota_cores": quota_cores(),
        },
        "memory": {"total_bytes": memory.total, "available_bytes": machine.available_bytes()},
        "gpus": torch["gpus"],
        "kernels": torch["kernels"],
        "torch_problem": torch["problem"],
        "model": {"folder": str(choice.folder), "named_by": choice.origin, "demo": choice.is_demo},
        "direct_io": _io_paths([choice.folder, *saved_folders(settings, choice)], io_mode(settings)),
        "settings": asdict(settings),
        "settings_problem": settings_fault,
        "paths": {
            name: {"path": str(path), "exists": path.exists()}
            for name, path in {
                "settings": paths.settings_file(),
                "data": paths.data_dir(),
                "cache": paths.cache_dir(),
                "log": paths.log_file(),
                "demo": paths.demo_folder(),
                "model": choice.folder,
            }.items()
        },
        "on_disk": [
            {"path": str(kept.path), "what": kept.what, "n_files": kept.n_files, "size_bytes": kept.n_bytes}
            for kept in on_disk.ours()
        ],
    }


def render(data: dict[str, Any]) -> str:
    """The report for a person: one table, a section's name in its first row."""
    rows: list[tuple[str, str, str]] = []

    def section(title: str, lines: list[tuple[str, str]]) -> None:
        rows.extend((title if i == 0 else "", name, one_line(value)) for i, (name, value) in enumerate(lines))

    licences = data["licences"]
    versions = [
        (name, f"{found or 'missing'}{f'  ({licences[name]})' if licences.get(name) else ''}")
        for name, found in data["versions"].items()
    ]
    section("versions", [*versions, ("bundled", _BUNDLED)])
    cpu = data["cpu"]
    quota = "" if cpu["quota_cores"] is None else f", limited to {cpu['quota_cores']:.1f} by its cgroup"
    section(
        "processor",
        [
            ("name", cpu["name"]),
            ("features", " ".join(cpu["features"]) or "none that a kernel uses"),
            ("cores", f"{cpu['n_cores_allowed']} of {cpu['n_cores']} may be used{quota}"),
            ("kernels", data["kernels"] or data["torch_problem"]),
        ],
    )
    memory = data["memory"]
    total = format_bytes(memory["total_bytes"])
    section("memory", [("available", f"{format_bytes(memory['available_bytes'])} of {total}")])
    section("gpus", [(gpu["name"], format_bytes(gpu["total_bytes"])) for gpu in data["gpus"]] or [("none", "")])
    named_by = "nothing, so it is the demo" if data["model"]["named_by"] == "demo" else data["model"]["named_by"]
    section("model", [("folder", data["model"]["folder"]), ("named by", named_by)])
    section("direct reads", _direct_lines(data["direct_io"]))
    lines = [(line, "") for line in to_toml(Settings(**data["settings"])).splitlines()] or [("nothing is set", "")]
    section("settings", [("problem", data["settings_problem"])] if data["settings_problem"] else lines)
    places = data["paths"].items()
    section("paths", [(name, at["path"] + ("" if at["exists"] else "  (not there)")) for name, at in places])
    section("kept on disk", _kept_lines(data["on_disk"]))
    return table(rows)


def _kept_lines(kept: list[dict[str, Any]]) -> list[tuple[str, str]]:
    lines = []
    for one in kept:
        files = f", {one['n_files']:,} files" if one["n_files"] != 1 else ""
        lines += [(one["what"], f"{format_bytes(one['size_bytes'])}{files}"), ("", one["path"])]
    return lines or [("nothing", "")]


def _direct_lines(paths: list[dict[str, Any]]) -> list[tuple[str, str]]:
    if not paths:
        return [("not tried", "there is no file to read in the model's folder")]
    lines = []
    for path in paths:
        where = f"{path['kind']}, {path['file_system']}" if path["file_system"] else path["kind"]
        if path["direct"]:
            lines.append((path["drive"], f"yes, in blocks of {path['block_bytes']:,} ({where}; {path['reason']})"))
        else:
            lines.append((path["drive"], f"no ({where}; {path['reason']})"))
        lines.append(("", path["file"]))
    return lines


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _licence(distribution: str) -> str | None:
    """As its metadata says it, in one of three ways; None when none does."""
    try:
        about = metadata(distribution)
    except PackageNotFoundError:
        return None
    named = [about[key].partition("\n")[0] for key in ("License-Expression", "License") if key in about]
    classes = (
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")
    )
    return next((one for one in (*named, *classes) if 0 < len(one) <= _LONGEST_LICENCE), None)


def _torch() -> dict[str, Any]:
    """What only torch can tell; a torch that cannot be loaded is a finding, not a failure."""
    try:
        import torch

        from engine.kernels import path

        gpus = [
            {"name": torch.cuda.get_device_name(i), "total_bytes": torch.cuda.get_device_properties(i).total_memory}
            for i in range(torch.cuda.device_count())
        ]
    except Exception as error:
        return {"gpus": [], "kernels": None, "problem": f"torch cannot be used: {type(error).__name__}: {error}"}
    if torch.backends.mps.is_available():
        gpus.append({"name": "Apple GPU", "total_bytes": psutil.virtual_memory().total})
    return {"gpus": gpus, "kernels": path(), "problem": ""}


def _io_paths(folders: Sequence[Path], io: IoMode) -> list[dict[str, Any]]:
    """How each drive of these folders is read, proven on its first shard, or on any file when there is none yet."""
    found: dict[str, dict[str, Any]] = {}
    for file in _trial_files(folders):
        try:
            drive = drive_of(file.resolve().parent)
            if drive.name in found:
                continue
            with DirectFile.open(file, io) as opened:
                path = opened.io_path
        except StorageError as error:
            found.setdefault(str(file.parent), _io_path(str(file.parent), "unknown", file, str(error)))
            continue
        found[drive.name] = _io_path(drive.name, drive.kind, file, path.reason) | {
            "direct": path.direct,
            "block_bytes": path.block_bytes,
            "file_system": path.file_system,
        }
    return list(found.values())


def _io_path(drive: str, kind: str, file: Path, reason: str) -> dict[str, Any]:
    return {
        "drive": drive,
        "kind": kind,
        "file_system": "",
        "direct": False,
        "block_bytes": 0,
        "reason": reason,
        "file": str(file),
    }


def _trial_files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            files = sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size)
        except OSError:
            continue
        yield from [path for path in files if path.suffix == ".safetensors"] or files[:1]
