"""Small files that are not: pipes, devices, folders and more bytes than asked for are refused at once."""

import os
from pathlib import Path

import pytest

from engine.errors import ConfigError, GoldenError, TokenizerError
from engine.golden import compare
from engine.sampler_settings import default_settings
from engine.small_files import NotRegularError, TooLongError, read_regular
from engine.tokenizer_file import read_tokenizer_file
from tests.engine.conftest import TINY


def test_bytes_of_a_file_and_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 5) == read_regular(tmp_path / "link", 9) == b"12345"
    with pytest.raises(TooLongError):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 4)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    def put(name: str) -> Path:
        path = tmp_path / name
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return path

    with pytest.raises(NotRegularError):
        read_regular(put("any"), 100)
    with pytest.raises(TokenizerError, match="not a regular file"):
        read_tokenizer_file(put("tokenizer.json"))
    put("generation_config.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        default_settings(tmp_path)
    put("golden.json")
    with pytest.raises(GoldenError, match="not a regular file"):
        compare(TINY / "checkpoint", tmp_path)
    (tmp_path / "golden.json").unlink()
    (tmp_path / "golden.json").write_bytes((TINY / "golden" / "golden.json").read_bytes())
    put("exact.safetensors")
    with pytest.raises(GoldenError, match="not a regular file"):
        compare(TINY / "checkpoint", tmp_path)
