"""The settings file: TOML in and out, every value checked, unknown keys answered with "did you mean".

An option on the command line wins over the file, and the file over what the model's own folder says.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from app.errors import SettingsError
from app.keymap import problem_of
from app.values import RULES
from engine.errors import SamplerSettingsError
from engine.sampler_settings import SamplerSettings, require_valid
from engine.small_files import read_regular

_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user has set. None means: not set."""

    model: str | None = None
    """Folder of the checkpoint; `~` is the home folder."""
    think: str | None = None
    """off, low, high, max or a number from 1 to 100."""
    numerics: str | None = None
    """exact or reference."""
    max_tokens: int | None = None
    """Most tokens of one reply, thinking included."""
    save_state: bool | None = None
    """Whether the engine's state is saved beside each conversation, so that nothing is read again tomorrow."""
    temperature: float | None = None
    """0 to 2; 0 always takes the most likely token."""
    top_p: float | None = None
    """Over 0, up to 1."""
    top_k: int | None = None
    """0 means: all."""
    min_p: float | None = None
    """0 to 1."""
    mirror: tuple[str, ...] | None = None
    """Folders with copies of the model's shards."""
    split: tuple[str, ...] | None = None
    """Folders with more of the model's shards."""
    drive_weight: tuple[str, ...] | None = None
    """`DIR=W` for the model's folder and every other: its share of the reads."""
    verify_mirror: bool | None = None
    """Whether samples of the mirrors' bytes are compared at each start."""
    io: str | None = None
    """auto, direct or buffered."""
    slots: int | None = None
    """Experts of each layer kept in memory."""
    depth: int | None = None
    """Reads in flight on each drive."""
    cache_rows: int | None = None
    """Rows of each engram table kept in memory."""
    cache_policy: str | None = None
    """Which expert makes room for another: a name in `storage.policy.POLICIES`."""
    draft: str | None = None
    """auto, on or off: whether the draft head proposes tokens. The answer is the same."""
    draft_max: int | None = None
    """Most drafts that one forward verifies."""
    draft_min_accept: float | None = None
    """0 to 1: the share of right drafts below which drafting pauses, unless it is clearly faster."""
    theme: str | None = None
    """How the screen looks: one of `app.values.THEMES`."""
    mouse: bool | None = None
    """Whether the chat takes the mouse; false leaves it to the terminal."""
    keymap: Mapping[str, str] | None = None
    """Keys of actions, by the ids of `app.actions`."""

    ram: str | None = None
    """Most memory of the process: a size, or a share of what is available."""
    vram: str | None = None
    """Likewise of every GPU."""
    reserve: str | None = None
    """Memory left to the system: a size, or a share of all there is."""
    context: int | None = None
    """Most tokens of a conversation."""

    def sampling(self) -> dict[str, Any]:
        """The fields of `SamplerSettings` that are set."""
        names = ("temperature", "top_p", "top_k", "min_p")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def load_settings(path: Path) -> Settings:
    """Read `path`; a file that is not there means: nothing is set.

    Raises: SettingsError, with the file and the key, for anything that cannot be used.
    """
    try:
        raw = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise SettingsError(f"{path}: the settings cannot be read: {error.strerror}") from error
    try:
        values = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: the settings are not UTF-8 text (byte {error.start:,})") from error
    except (ValueError, RecursionError) as error:  # a number of ten thousand digits is a plain ValueError
        raise SettingsError(f"{path}: the settings are not valid TOML: {error}") from error
    return check_settings(values, source=str(path))


def known_keys() -> tuple[str, ...]:
    """Every key of the file, in the order of `Settings`."""
    return tuple(field.name for field in fields(Settings))


def meant_by(key: str) -> str:
    """For a key that there is not: the one that was probably meant, or all there are."""
    near = get_close_matches(key, known_keys(), n=1)
    return f"Did you mean {near[0]}?" if near else f"The keys are {', '.join(known_keys())}."


def check_settings(values: Mapping[str, object], *, source: str) -> Settings:
    """A record of `values`; `source` names the file in messages.

    Raises: SettingsError for an unknown key or a value of the wrong type or range.
    """
    good: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known_keys():
            raise SettingsError(f"{source}: unknown key {key!r}", hint=meant_by(key))
        if not RULES[key].accepts(value):
            raise SettingsError(f"{source}: {key} = {value!r} cannot be used", hint=f"It must be {RULES[key].wanted}.")
        if key == "keymap" and isinstance(value, dict) and (problem := problem_of(value)):
            raise SettingsError(f"{source}: keymap: {problem[0]}", hint=problem[1])
        good[key] = str(value) if key == "think" else tuple(value) if isinstance(value, list) else value
    settings = Settings(**good)
    for key in ("mirror", "split", "drive_weight"):
        if key in good and settings.model is None:
            raise SettingsError(f"{source}: {key} has no effect without model", hint="Say whose shards they are.")
    try:
        require_valid(SamplerSettings(**settings.sampling()))
    except SamplerSettingsError as error:
        raise SettingsError(f"{source}: {error}") from error
    return settings


def to_toml(settings: Settings) -> str:
    """The file that `load_settings` reads back as `settings`: one line for each key that is set."""
    lines = []
    for key, value in asdict(settings).items():
        if isinstance(value, Mapping):
            pairs = ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items())
            lines.append(f"{key} = {{ {pairs} }}\n")
        elif value is not None:
            lines.append(f"{key} = {toml_value(value)}\n")
    return "".join(lines)


def toml_value(value: object) -> str:
    """A number, a truth value, a text or a list of them as TOML."""
    # A JSON string is a TOML basic string once DEL is escaped too; JSON leaves that one as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
