"""Which keys do what, once the settings had their say. Knows the table of actions, not Textual."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from app.actions import ACTIONS, BY_ID, Scope

_KEY = re.compile(r"(?:(?:ctrl|shift|alt|super)\+){0,3}(?:[a-z0-9_]+|\S)", re.IGNORECASE)
_HEARD_TOGETHER: tuple[tuple[Scope, ...], ...] = (
    ("global", "chat", "turn"),
    ("global", "find"),
    ("global", "panel", "transcripts"),
    ("global", "panel", "settings"),
    ("global", "panel", "models"),
    ("global", "panel", "mirrors"),
)
"""Scopes whose keys are heard in the same place, so that one key cannot have two meanings there."""
_SIGNS = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}


def key_name(key: str) -> str:
    """The name a terminal library has for a key: "question_mark" for "?", anything longer as it is."""
    key = key.strip()
    if len(key) != 1 or key.isalnum():
        return key
    name = unicodedata.name(key, key).lower().replace("-", "_").replace(" ", "_")
    return _SIGNS.get(name, name)


def key_text(key: str) -> str:
    """A key for people: "?" for "question_mark", "Esc" for "escape"."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    named = {"escape": "Esc", "enter": "Enter", "question_mark": "?", "slash": "/", "delete": "Del", "end": "End",
             "left_square_bracket": "[", "right_square_bracket": "]", "up": "Up", "down": "Down"}  # fmt: skip
    last = named.get(last, last)
    return "+".join([*modifiers, last])


def keys_in_force(keymap: Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """By action id: its keys. `problem_of(keymap)` must be None."""
    moved = keymap or {}
    return {
        action.id: tuple(map(key_name, moved[action.id].split(","))) if action.id in moved else action.keys
        for action in ACTIONS
    }


def problem_of(keymap: Mapping[str, object]) -> tuple[str, str] | None:
    """What is wrong with a keymap, and the next step; None when it can be used."""
    for action_id, keys in keymap.items():
        if action_id not in BY_ID:
            near = get_close_matches(action_id, BY_ID, n=1)
            return (
                f"there is no action {action_id!r}",
                f"Did you mean {near[0]}?" if near else f"The actions are {', '.join(BY_ID)}.",
            )
        if not isinstance(keys, str) or not all(_KEY.fullmatch(key.strip()) for key in keys.split(",")):
            return f"{action_id} = {keys!r} cannot be used", 'Keys are named like "ctrl+r", "f2" or "?", with commas.'
    keys_of = keys_in_force({key: str(value) for key, value in keymap.items()})
    for scopes in _HEARD_TOGETHER:
        taken: dict[str, str] = {}
        for action in ACTIONS:
            for key in keys_of[action.id] if action.scope in scopes else ():
                if key in taken:
                    return f"{key} is a key of {taken[key]} and of {action.id}", "Give one of them another key."
                taken[key] = action.id
    return None


def shown_keys(keys: Iterable[str]) -> str:
    """Keys for people: "Enter", "f1 or ?"."""
    return " or ".join(map(key_text, keys))
