from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.settings import Settings, load_settings, to_toml


def _write(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_no_file_means_nothing_is_set(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "settings.toml") == Settings()


def test_every_key_is_read(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        'model = "/models/v41"\nthink = 42\nnumerics = "reference"\nmax_tokens = 100\n'
        "temperature = 0.5\ntop_p = 0.9\ntop_k = 40\nmin_p = 0\n",
    )
    assert load_settings(path) == Settings(
        model="/models/v41",
        think="42",
        numerics="reference",
        max_tokens=100,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0,
    )


def test_every_key_of_reading_is_read_and_written(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        'model = "/m"\nmirror = ["/a", "/b"]\nsplit = ["/c"]\ndrive_weight = ["/m=1", "/a=2.5"]\n'
        'verify_mirror = true\nio = "direct"\nslots = 8\ndepth = 16\ncache_rows = 0\ncache_policy = "clock"\n',
    )
    settings = load_settings(path)
    assert settings == Settings(
        model="/m",
        mirror=("/a", "/b"),
        split=("/c",),
        drive_weight=("/m=1", "/a=2.5"),
        verify_mirror=True,
        io="direct",
        slots=8,
        depth=16,
        cache_rows=0,
        cache_policy="clock",
    )
    assert load_settings(_write(tmp_path, to_toml(settings))) == settings


@pytest.mark.parametrize("line", ['mirror = ["/a"]', 'split = ["/a"]', 'drive_weight = ["/a=1"]'])
def test_drives_of_no_model_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match="has no effect without model"):
        load_settings(_write(tmp_path, line))


def test_a_mistyped_key_is_answered_with_the_one_meant(tmp_path: Path) -> None:
    path = _write(tmp_path, 'modle = "/models/v41"\n')
    with pytest.raises(SettingsError, match="unknown key 'modle'") as caught:
        load_settings(path)
    assert caught.value.hint == "Did you mean model?"
    assert str(path) in str(caught.value)


def test_a_key_like_no_other_is_answered_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(_write(tmp_path, "zzz = 1\n"))
    assert caught.value.hint.startswith("The keys are model, think, ")


@pytest.mark.parametrize(
    "line",
    [
        "model = 3",
        'model = " "',
        "think = 0",
        "think = 101",
        'think = "lots"',
        "think = true",
        'numerics = "exakt"',
        "max_tokens = 0",
        "max_tokens = 1.5",
        "max_tokens = true",
        "temperature = 2.5",
        "temperature = nan",
        'temperature = "hot"',
        "top_p = 0",
        "top_k = -1",
        "top_k = 1.0",
        "min_p = 1.1",
        "min_p = false",
        'mirror = "/a"',
        "mirror = []",
        'mirror = ["/a", ""]',
        "split = [1]",
        'drive_weight = ["/a"]',
        'drive_weight = ["/a=-1"]',
        'drive_weight = ["/a=inf"]',
        "verify_mirror = 1",
        'io = "fast"',
        "slots = 0",
        "depth = 257",
        "cache_rows = -1",
        'cache_policy = "mru"',
        "cache_policy = []",
    ],
)
def test_a_value_that_cannot_act_is_refused_with_its_key(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match=line.split()[0]):
        load_settings(_write(tmp_path, line))


@pytest.mark.parametrize("content", ["model =", b"\xff\xfe", "a" * 1_000_001, "x = " + "[" * 100_000], ids=len)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: str | bytes) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(SettingsError, match=r"settings\.toml"):
        load_settings(path)


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path)


@given(
    model=st.none() | st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    max_tokens=st.none() | st.integers(1, 2**40),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, model: str | None, top_p: float | None, max_tokens: int | None
) -> None:
    settings = Settings(model=model, think="max", top_p=top_p, max_tokens=max_tokens)
    path = _write(tmp_path_factory.mktemp("settings"), to_toml(settings))
    assert load_settings(path) == settings
