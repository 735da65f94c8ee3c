"""What a user says about drafting. No torch: the command line reads it before anything heavy loads."""

from dataclasses import dataclass
from typing import Literal

DraftMode = Literal["auto", "on", "off"]
"""`auto`: as many drafts as pay, none while none do. `on`: always as many as may be. `off`: the head is not loaded."""

DEFAULT_MIN_ACCEPT = 0.60
"""The share that others found to be the break-even on a cold drive (spec/speed-notes.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How drafts are used."""

    mode: DraftMode = "auto"
    max_drafts: int | None = None
    """Most drafts in one forward; None and everything above the head's block means the block."""
    min_accept: float = DEFAULT_MIN_ACCEPT
    """Of the last ten drafts so many must have been right, unless drafting is measured to be a clear gain; 0 to 1."""
