"""What an installed package holds: all that runs needs, and nothing else. From the build's own configuration."""

import tomllib
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

from app.paths import demo_folder
from app.report import artesian_version

ROOT = Path(__file__).parents[1]
OURS = ("app", "engine", "planner", "storage")
NATIVE = ("*.cpp", "*.hpp", "*.h", "*.so", "*.inc")
"""Sources of the native library, which go into the sdist, and the library, which the build puts in by itself."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def packages(project: dict[str, Any]) -> set[str]:
    return set(find_packages(str(ROOT), include=project["tool"]["setuptools"]["packages"]["find"]["include"]))


def test_every_folder_with_code_of_ours_is_installed_and_no_other(packages: set[str]) -> None:
    folders = {path.parent.relative_to(ROOT) for top in OURS for path in (ROOT / top).rglob("*.py")}
    assert packages == {".".join(folder.parts) for folder in folders} | {"assets"}
    assert not any(name.startswith(("tests", "assets.")) for name in packages)


def test_every_file_that_is_no_code_is_named_to_the_build(project: dict[str, Any]) -> None:
    named = project["tool"]["setuptools"]["package-data"]
    for top in OURS:
        files = [path.relative_to(ROOT / top) for path in (ROOT / top).rglob("*") if path.is_file()]
        loose = [file for file in files if file.suffix not in (".py", ".pyc")]
        for file in loose:
            patterns = [pattern.removeprefix("**/") for pattern in named[top]] + list(NATIVE)
            assert any(fnmatch(file.name, pattern) for pattern in patterns), f"{top}/{file} would not be installed"
        assert "py.typed" in {str(file) for file in loose}


def test_the_demo_is_installed_whole(project: dict[str, Any]) -> None:
    folder = demo_folder()
    found = {path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file()}
    named = {
        path.relative_to(folder.parent)
        for pattern in project["tool"]["setuptools"]["package-data"]["assets"]
        for path in folder.parent.glob(pattern)
        if path.is_file()
    }
    assert found == named and Path("demo/config.json") in found
    assert sum((folder.parent / path).stat().st_size for path in found) < 25_000_000


def test_the_command_version_and_licence_are_those_of_the_project(project: dict[str, Any]) -> None:
    about = project["project"]
    module, _, function = about["scripts"]["artesian"].partition(":")
    assert callable(getattr(import_module(module), function))
    assert artesian_version() == about["version"]
    installed = metadata("artesian")
    assert installed["License-Expression"] == about["license"] == "MIT"
    assert (ROOT / about["license-files"][0]).read_text(encoding="utf-8").startswith("MIT License")
