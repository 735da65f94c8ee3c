"""What a person writes for a setting, as the value the file has."""

import re
import tomllib
from contextlib import suppress

from app.errors import SettingsError
from app.settings import known_keys, meant_by
from app.values import RULES

_LISTS = frozenset({"mirror", "split", "drive_weight"})
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def value_of(key: str, text: str) -> object:
    """What a person wrote for `key`, as the file has it: lists may be given with commas, truth as yes or no.

    Raises: SettingsError for an unknown key, with the one that was meant, or a value it cannot have.
    """
    require_known(key)
    text = text.strip()
    candidates: list[object] = []
    if RULES[key].accepts(True) and text.lower() in _WORDS:
        candidates.append(_WORDS[text.lower()])
    with suppress(ValueError, RecursionError, KeyError):  # plain words are no TOML
        candidates.append(tomllib.loads(f"value = {text}")["value"])
    if key in _LISTS:
        candidates.append([part.strip() for part in text.split(",") if part.strip()])
    if key == "keymap":
        candidates.append(_pairs(text))
    candidates.append(text)
    for value in candidates:
        if RULES[key].accepts(value):
            return value
    raise SettingsError(f"{key} cannot be {text!r}", hint=f"It must be {RULES[key].wanted}.")


def _pairs(text: str) -> dict[str, str] | str:
    """`action = keys, action = keys`, as the settings are shown; keys may have commas of their own."""
    parts = [part.partition("=") for part in re.split(r",\s*(?=\w+\s*=)", text)]
    return (
        {name.strip(): keys.strip().strip("\"'") for name, _, keys in parts}
        if all(sep for _, sep, _ in parts)
        else text
    )


def require_known(key: str) -> None:
    """Raises: SettingsError with the key that was probably meant."""
    if key not in known_keys():
        raise SettingsError(f"there is no setting {key!r}", hint=meant_by(key))
