import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.find_models import find_checkpoints, judge, usual_places
from app.paths import demo_folder
from app.reading import MemoryOptions
from app.run_options import RunOptions
from app.settings import Settings
from tests.fakes import Clock

_NEVER = Clock()


def _copy(folder: Path) -> Path:
    shutil.copytree(demo_folder(), folder)
    return folder


def _find(*places: Path) -> list[Path]:
    return list(find_checkpoints(list(places), lambda: False, _NEVER))


def test_places_are_those_people_use_and_only_those_that_are_there(tmp_path: Path) -> None:
    home, drive = tmp_path / "home", tmp_path / "drive"
    for folder in (home / "models", home / ".cache/huggingface/hub", tmp_path / "set", tmp_path / "env", drive):
        folder.mkdir(parents=True)
    settings, environ = Settings(model=str(tmp_path / "set")), {"ARTESIAN_MODEL": str(tmp_path / "env")}
    found = usual_places(settings, home, environ, drives=lambda: [drive, tmp_path / "gone", home / "models"])
    assert found == [tmp_path / "set", tmp_path / "env", home / ".cache/huggingface/hub", home / "models", drive]


@pytest.mark.parametrize(
    ("environ", "hub"),
    [
        ({"HF_HUB_CACHE": "{}/own"}, "own"),
        ({"HF_HOME": "{}/hf"}, "hf/hub"),
        ({"XDG_CACHE_HOME": "{}/cache"}, "cache/huggingface/hub"),
    ],
)
def test_the_hubs_cache_is_where_the_hub_says(tmp_path: Path, environ: dict[str, str], hub: str) -> None:
    (tmp_path / hub).mkdir(parents=True)
    given = {name: value.format(tmp_path) for name, value in environ.items()}
    assert usual_places(Settings(), tmp_path / "home", given, drives=list) == [tmp_path / hub]


def test_a_checkpoint_is_found_in_the_hubs_layout_and_two_folders_down(tmp_path: Path) -> None:
    hub = _copy(tmp_path / "hub/models--deepseek-ai--DeepSeek-V4.1-Flash/snapshots/0123abcd")
    plain = _copy(tmp_path / "drive/ai/v41")
    assert set(_find(tmp_path / "hub", tmp_path / "drive")) == {plain, hub}


def test_other_models_hidden_folders_and_loops_are_passed_over(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    (other / "model.safetensors").write_bytes(b"\0" * 16)
    _copy(tmp_path / ".hidden")
    (tmp_path / "loop").symlink_to(tmp_path)
    good = _copy(tmp_path / "good")
    (tmp_path / "again").symlink_to(good)
    found = _find(tmp_path)
    assert len(found) == 1 and found[0].resolve() == good


def test_the_look_is_bounded_in_time_and_can_be_stopped(tmp_path: Path) -> None:
    _copy(tmp_path / "good")
    times = iter([0.0, *[6.0] * 100])
    assert list(find_checkpoints([tmp_path], lambda: False, lambda: next(times))) == []
    assert list(find_checkpoints([tmp_path], lambda: True, _NEVER)) == []


def test_a_folder_that_may_not_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, good = _copy(tmp_path / "closed"), _copy(tmp_path / "open")
    assert _find(tmp_path) == [closed, good]
    real = os.scandir

    def scandir(folder: Path) -> Any:
        if folder == closed:  # permissions would not keep root out
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert _find(tmp_path) == [good]


def test_a_whole_checkpoint_is_called_so_with_the_speed_to_expect() -> None:
    found = judge(demo_folder(), Settings(), RunOptions())
    assert found.state == "whole" and found.said.startswith("Whole: ") and found.said.endswith("shards complete.")
    assert found.speed.startswith("Expect about ") and "tokens a second once warm" in found.speed


def test_a_download_cut_short_is_called_incomplete(tmp_path: Path) -> None:
    folder = _copy(tmp_path / "cut")
    shard = sorted(folder.glob("*.safetensors"))[0]
    os.truncate(shard, shard.stat().st_size - 1)
    found = judge(folder, Settings(), RunOptions())
    assert found.state == "incomplete" and "artesian audit" in found.said


def test_a_folder_without_a_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    found = judge(tmp_path, Settings(), RunOptions())
    assert found.said.startswith("No checkpoint: ") and "config.json" in found.said


def test_what_does_not_fit_says_so_in_the_place_of_a_speed() -> None:
    found = judge(demo_folder(), Settings(ram="1MB"), RunOptions())
    assert found.state == "whole" and not found.speed.startswith("Expect") and found.speed


def test_the_options_of_the_command_line_count_above_the_settings() -> None:
    options = RunOptions(memory=MemoryOptions(ram="1MB"))
    found = judge(demo_folder(), Settings(ram="80%"), options)
    assert found.state == "whole" and not found.speed.startswith("Expect") and found.speed
