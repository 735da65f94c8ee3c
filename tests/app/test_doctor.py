import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main
from app.commands import doctor
from app.paths import demo_folder, log_file, settings_file
from app.report import artesian_version
from storage.direct import DirectFile
from storage.drives import DriveFacts, drive_of
from storage.errors import DriveError

Output = pytest.CaptureFixture[str]


def _settings(text: str) -> None:
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text(text)


def test_the_report_names_versions_paths_and_the_model(capsys: Output) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert artesian_version() in out
    for word in ("torch", "deepseek-recipe", "cores", str(demo_folder()), str(settings_file()), str(log_file())):
        assert word in out


def test_json_has_the_same_facts_with_their_units(capsys: Output) -> None:
    assert main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "doctor"
    data = record["data"]
    assert data["versions"]["artesian"] == artesian_version()
    assert data["licences"]["artesian"] == "MIT" and "BSD" in data["licences"]["numpy"]
    assert data["memory"]["total_bytes"] >= data["memory"]["available_bytes"] > 0
    assert data["cpu"]["n_cores_allowed"] >= 1
    assert data["model"] == {"folder": str(demo_folder()), "named_by": "demo", "demo": True}
    (path,) = data["direct_io"]
    assert path["file"].endswith(".safetensors") and path["direct"] == (path["reason"].startswith("proven by"))
    assert data["paths"]["demo"]["exists"] and not data["paths"]["settings"]["exists"]


def test_each_drive_of_the_model_and_its_mirrors_says_how_it_is_read_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    for name in ("model", "mirror", "same"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.safetensors").write_bytes(bytes(8192))

    def disks(path: Path) -> DriveFacts:
        disk = "disk b" if path.name == "mirror" else "disk a"
        return replace(drive_of(path), disks=frozenset({disk}), kind="nvme")

    monkeypatch.setattr("app.commands.doctor.drive_of", disks)
    model, mirrors = tmp_path / "model", [str(tmp_path / "mirror"), str(tmp_path / "same")]
    _settings(f'model = "{model}"\nmirror = {json.dumps(mirrors)}\nio = "buffered"\n')
    assert main(["doctor", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)["data"]["direct_io"]
    assert [path["drive"] for path in paths] == ["disk a", "disk b"]
    assert [(path["direct"], path["reason"], path["kind"]) for path in paths] == [(False, "asked for", "nvme")] * 2
    assert paths[1]["file"] == str(tmp_path / "mirror" / "a.safetensors")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"direct reads +disk a +no \(nvme, \S*; asked for\)", out) and "disk b" in out


def test_a_shard_that_cannot_be_read_is_a_finding_and_an_empty_one_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (tmp_path / "a.safetensors").touch()
    (tmp_path / "b.safetensors").write_bytes(b"x")

    def fail(file: Path, io: str) -> None:
        raise DriveError.of(OSError(errno.EIO, "as the test wants"), file, 0)

    monkeypatch.setattr(DirectFile, "open", fail)
    assert main(["doctor", "--model", str(tmp_path), "--json"]) == 0
    (path,) = json.loads(capsys.readouterr().out)["data"]["direct_io"]
    assert path["direct"] is False and "EIO" in path["reason"]
    assert path["file"] == str(tmp_path / "b.safetensors")


def test_settings_that_cannot_be_used_are_a_finding_and_not_a_failure(capsys: Output) -> None:
    _settings('modle = "x"\n')
    assert main(["doctor"]) == 0
    assert "Did you mean model?" in capsys.readouterr().out


def test_settings_in_force_are_shown_and_the_model_they_name(tmp_path: Path, capsys: Output) -> None:
    folder = tmp_path / "no\x1bwhere"
    _settings(f'model = "{str(folder).encode("unicode_escape").decode().replace("x1b", "u001b")}"\n')
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "no\u241bwhere" in out and "\x1b" not in out
    assert "there is no file to read" in out


def test_a_missing_dependency_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(doctor, "_DEPENDENCIES", ("surely-not-installed",))
    assert main(["doctor"]) == 0
    assert "surely-not-installed  missing" in capsys.readouterr().out
