import json
from pathlib import Path

import pytest

from app.cli import main
from app.commands import doctor
from app.paths import demo_folder, log_file, settings_file
from app.report import artesian_version

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
    assert data["memory"]["total_bytes"] >= data["memory"]["available_bytes"] > 0
    assert data["cpu"]["n_cores_allowed"] >= 1
    assert data["model"] == {"folder": str(demo_folder()), "named_by": "demo", "demo": True}
    assert data["direct_io"]["file"].endswith(".safetensors")
    assert data["paths"]["demo"]["exists"] and not data["paths"]["settings"]["exists"]


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
