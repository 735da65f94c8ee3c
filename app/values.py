"""The values a user can give on the command line or in the settings, and what each must be."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from app.sizes import size_of
from storage.policy import POLICIES

Effort = str | int | None
"""How much the model thinks: None is not at all, else "low", "high", "max" or a number from 1 to 100."""

EFFORTS = "off, low, high, max or a number from 1 to 100"

Numerics = Literal["exact", "reference"]
"""Float32 activations, or the vendor's roundings."""
IndexOwner = Literal["published", "nearest"]
"""Whose index keys a layer scores."""

THEMES = ("artesian-dark", "artesian-light", "ansi", "none")
"""How the screen looks: our colours, the terminal's sixteen, or no colour."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be."""

    accepts: Callable[[object], bool]
    wanted: str
    """The same in words, to stand after "must be"."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a number; True and False are not."""
    return is_whole(value) or isinstance(value, float)


def is_effort(value: object) -> bool:
    """Whether `value` names an effort, a number also as text."""
    text = value if isinstance(value, str) else str(value) if is_whole(value) else ""
    return text in ("off", "low", "high", "max") or (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= 100)


def is_weight(value: object) -> bool:
    """Whether `value` is `DIR=W` with a number of at least 0."""
    if not isinstance(value, str):
        return False
    name, _, number = value.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        return False
    return bool(name.strip()) and math.isfinite(weight) and weight >= 0


def is_size(value: object) -> bool:
    """Whether `value` is a size such as 24GB, or a share such as 80%."""
    return isinstance(value, str) and size_of(value) is not None


def is_filled(value: object) -> bool:
    """Whether `value` is text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_list_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    """Whether a value is a list with something in it, all of which `accepts` takes."""
    return lambda value: isinstance(value, list) and bool(value) and all(map(accepts, value))


def parse_effort(value: str) -> Effort:
    """The effort that `value` names. `is_effort(value)` must hold."""
    if value == "off":
        return None
    return int(value) if value.isdigit() else value


def default_max_tokens(effort: Effort) -> int:
    """The most tokens of a reply, thinking included, when nobody says.

    Source: the vendor's prompt library: 8,192 in chat mode, 65,536 thinking, 131,072 thinking at max effort.
    """
    if effort is None:
        return 8_192
    return 131_072 if effort == "max" else 65_536


RULES: Mapping[str, Rule] = {
    "model": Rule(is_filled, "a model's folder"),
    "think": Rule(is_effort, EFFORTS),
    "numerics": Rule(lambda v: v in ("exact", "reference"), "exact or reference"),
    "max_tokens": Rule(lambda v: is_whole(v) and v >= 1, "a whole number, at least 1"),
    "chunk_tokens": Rule(lambda v: is_whole(v) and v >= 1, "a whole number, at least 1"),
    "save_state": Rule(lambda v: isinstance(v, bool), "true or false"),
    "temperature": Rule(is_number, "a number"),
    "top_p": Rule(is_number, "a number"),
    "top_k": Rule(is_whole, "a whole number"),
    "min_p": Rule(is_number, "a number"),
    "mirror": Rule(is_list_of(is_filled), "folders with copies of shards"),
    "split": Rule(is_list_of(is_filled), "folders with more shards"),
    "drive_weight": Rule(is_list_of(is_weight), "DIR=W with a number of at least 0 for each folder"),
    "verify_mirror": Rule(lambda v: isinstance(v, bool), "true or false"),
    "io": Rule(lambda v: v in ("auto", "direct", "buffered"), "auto, direct or buffered"),
    "slots": Rule(lambda v: is_whole(v) and v >= 1, "a whole number, at least 1"),
    "depth": Rule(lambda v: is_whole(v) and 1 <= v <= 256, "a whole number from 1 to 256"),
    "cache_rows": Rule(lambda v: is_whole(v) and v >= 0, "a whole number, at least 0"),
    "cache_policy": Rule(lambda v: isinstance(v, str) and v in POLICIES, f"one of {', '.join(POLICIES)}"),
    "theme": Rule(lambda v: v in THEMES, f"one of {', '.join(THEMES)}"),
    "keymap": Rule(lambda v: isinstance(v, dict), 'a table with lines such as regenerate = "ctrl+e"'),
    "mouse": Rule(lambda v: isinstance(v, bool), "true or false"),
    "record_trace": Rule(is_filled, "a file"),
    "draft": Rule(lambda v: v in ("auto", "on", "off"), "auto, on or off"),
    "draft_max": Rule(lambda v: is_whole(v) and 1 <= v <= 1024, "a whole number from 1 to 1024"),
    "draft_min_accept": Rule(lambda v: is_number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "ram": Rule(is_size, "a size such as 24GB, or a share such as 80%"),
    "vram": Rule(is_size, "a size such as 24GB, or a share such as 80%"),
    "reserve": Rule(is_size, "a size such as 4GB, or a share such as 10%"),
    "context": Rule(lambda v: is_whole(v) and v >= 1, "a whole number, at least 1"),
}
"""By setting name; an option is the same name with dashes. `require_valid` checks the ranges of the sampling."""
