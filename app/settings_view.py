"""Every setting with the value in force, and who said so: what the settings screen and line mode show."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from app.model_choice import ModelChoice
from app.sanitize import one_line
from app.settings import Settings, known_keys, toml_value
from engine.draft.settings import DEFAULT_MIN_ACCEPT
from storage.defaults import DEFAULT_DEPTH
from storage.policy import DEFAULT_POLICY

_BY_PLAN = "as the plan says"
_BY_MODEL = "as the model's folder says"

WORDS: Mapping[str, tuple[str, str]] = {
    "model": ("the bundled demo", "The model's folder."),
    "think": ("high; the demo: off", "How much it thinks before it answers."),
    "numerics": ("exact", "Float32 activations, or the vendor's roundings."),
    "max_tokens": ("8192; 65536 and more when thinking", "Most tokens of one reply, thinking included."),
    "save_state": ("false", "Whether the engine's state is saved beside each conversation."),
    "temperature": (_BY_MODEL, "0 to 2; 0 always takes the most likely token."),
    "top_p": (_BY_MODEL, "Keeps the likeliest tokens up to this share."),
    "top_k": (_BY_MODEL, "Keeps this many likeliest tokens; 0 keeps all."),
    "min_p": (_BY_MODEL, "Drops tokens below this share of the likeliest one."),
    "mirror": ("none", "Folders with copies of the model's shards."),
    "split": ("none", "Folders with more of the model's shards."),
    "drive_weight": ("measured", "DIR=W: each folder's share of the reads."),
    "verify_mirror": ("false", "Whether samples of the mirrors are compared at each start."),
    "io": ("auto", "Past the page cache, through it, or past it where that works."),
    "slots": (_BY_PLAN, "Experts of each layer kept in memory."),
    "depth": (str(DEFAULT_DEPTH), "Reads in flight on each drive."),
    "cache_rows": (_BY_PLAN, "Rows of each engram table kept in memory."),
    "cache_policy": (DEFAULT_POLICY, "Which expert makes room for another."),
    "draft": ("auto", "Whether the draft head proposes tokens; the answer is the same."),
    "draft_max": (_BY_MODEL, "Most drafts that one forward verifies."),
    "draft_min_accept": (f"{DEFAULT_MIN_ACCEPT:.2f}", "Share of right drafts below which drafting pauses."),
    "theme": ("artesian-dark; none with NO_COLOR", "How the screen looks."),
    "mouse": ("true", "Whether the chat takes the mouse; false leaves it to the terminal."),
    "keymap": ("none moved", "Keys of actions, by the names that help shows in brackets."),
    "ram": ("what is available, less the reserve", "Most memory of the process."),
    "vram": ("no GPU is used", "Likewise of every GPU."),
    "reserve": ("a share of all there is", "Memory left to the system."),
    "context": (_BY_PLAN, "Most tokens of a conversation."),
}
"""By key: the default in words, and what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One setting. Safe for a terminal."""

    key: str
    value: str
    """In force."""
    origin: str
    """"settings", "default", or what else said it."""
    about: str
    """One sentence."""
    is_set: bool
    """Whether the file has it."""


def effective(
    settings: Settings, choice: ModelChoice, environ: Mapping[str, str] = os.environ
) -> tuple[Effective, ...]:
    """All of them, in the order of the record."""
    found = []
    for key in known_keys():
        default, about = WORDS.get(key, ("", ""))
        value = getattr(settings, key)
        text, origin = (default, "default") if value is None else (_text(value), "settings")
        if key == "model":
            text, origin = str(choice.folder), choice.origin
            if choice.origin == "demo":
                text, origin = "the bundled demo", "default"
        elif key == "theme" and value is None and environ.get("NO_COLOR"):
            text, origin = "none", "NO_COLOR"
        found.append(Effective(key=key, value=one_line(text), origin=origin, about=about, is_set=value is not None))
    return tuple(found)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{action} = {keys}" for action, keys in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else toml_value(value)
