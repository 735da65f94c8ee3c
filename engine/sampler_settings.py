"""The sampling settings, their ranges, and the defaults a checkpoint brings. No torch: the command line checks them
before anything heavy loads.

The one thing a reader would get wrong: a setting either acts or is refused here. Nothing is clamped silently, and the
vendor service's habit of fixing temperature and top-p in thinking mode is not copied.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, SamplerSettingsError
from engine.small_files import read_regular

MAX_TEMPERATURE = 2.0
"""Upper end of the range the model's own request format allows (spec/prompt-format.md section 6)."""

_MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """How a token is drawn. The defaults are the vendor's: plain sampling at temperature 1."""

    temperature: float = 1.0
    """0 to 2; 0 takes the most likely token, ties to the lowest id."""
    top_p: float = 1.0
    """Above 0, up to 1: draw from the smallest set of best tokens that weighs at least this; 1 = off."""
    top_k: int = 0
    """Draw from this many best tokens; 0 = off."""
    min_p: float = 0.0
    """0 to 1: drop tokens less likely than this share of the best one; 0 = off."""
    seed: int | None = None
    """0 to 2^63-1: the same seed draws the same tokens again; None = a fresh one each time."""


def require_valid(settings: SamplerSettings) -> None:
    """Check every setting. Raises: SamplerSettingsError naming the setting, its value and its range."""
    _require_number("temperature", settings.temperature, 0 <= settings.temperature <= MAX_TEMPERATURE, "0 to 2")
    _require_number("top_p", settings.top_p, 0 < settings.top_p <= 1, "above 0, up to 1")
    _require_number("min_p", settings.min_p, 0 <= settings.min_p <= 1, "0 to 1")
    _require_whole("top_k", settings.top_k, 2**31 - 1)
    if settings.seed is not None:
        _require_whole("seed", settings.seed, 2**63 - 1)


def default_settings(folder: Path) -> SamplerSettings:
    """The settings of the folder's `generation_config.json`, or the vendor's when there is none.

    Keys that say nothing of sampling are passed over; `do_sample: false` means temperature 0.
    Raises: ConfigError if the file is there but unreadable, not a JSON object, or has a bad value.
    Source: spec/prompt-format.md section 6; the keys are those of Hugging Face's GenerationConfig.
    """
    path = folder / "generation_config.json"
    content = _read_object(path)
    given = {key: content[key] for key in ("temperature", "top_p", "top_k", "min_p") if content.get(key) is not None}
    if content.get("do_sample") is False:
        given["temperature"] = 0.0
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{path}: {key} is {value!r}, a number is needed")
    settings = SamplerSettings(**given)
    try:
        require_valid(settings)
    except SamplerSettingsError as error:
        raise ConfigError(f"{path}: {error}") from error
    return settings


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, _MAX_FILE_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: the top level is not a JSON object")
    return content


def _require_number(name: str, value: float, in_range: bool, range_text: str) -> None:
    # The range first: of an integer with hundreds of digits `isfinite` would make a float, and fail.
    if isinstance(value, bool) or not in_range or not math.isfinite(value):
        raise SamplerSettingsError(f"{name} is {value}, it must be {range_text}")


def _require_whole(name: str, value: int, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise SamplerSettingsError(f"{name} is {value}, it must be a whole number, 0 to {most:,}")
