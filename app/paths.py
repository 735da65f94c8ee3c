"""Where things live. Nothing is created here, neither on import nor by asking."""

import os
from importlib.resources import files
from pathlib import Path

import platformdirs

_APP = "artesian"


def as_named(name: str | Path) -> Path:
    """A path as a user named it. The home of nobody stays as it is written, and is then found by nobody: pathlib's own
    way raises what is no error of files.
    """
    return Path(os.path.expanduser(name))  # noqa: PTH111


def settings_file() -> Path:
    """The settings, a TOML file the user may edit."""
    return platformdirs.user_config_path(_APP, appauthor=False) / "settings.toml"


def data_dir() -> Path:
    """What must survive: transcripts."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def transcripts_dir() -> Path:
    """The conversations, one file each."""
    return data_dir() / "transcripts"


def cache_dir() -> Path:
    """What can be made again: usage profiles, measured rates, the index that transcripts are searched by."""
    return platformdirs.user_cache_path(_APP, appauthor=False)


def rates_file() -> Path:
    """What was measured of this machine."""
    return cache_dir() / "rates.json"


def runs_file() -> Path:
    """What was predicted of the last turns, and what then happened."""
    return cache_dir() / "last-runs.json"


def log_file() -> Path:
    """The newest log; older ones lie beside it with a number at the end."""
    return platformdirs.user_log_path(_APP, appauthor=False) / "artesian.log"


def demo_folder() -> Path:
    """The demo checkpoint that is installed with the package."""
    return Path(str(files("assets"))) / "demo"
