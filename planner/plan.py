"""What is wished for, what an engine can make use of, and the plan: records only.

A run takes every number from the plan it was given, and a dry run shows the same record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DraftWish = Literal["auto", "on", "off"]

DEFAULT_SPARE_SLOTS = 16
"""Lent to a prefill: two waves of eight experts, so that a long prompt leaves the experts decoding uses alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So much memory: bytes, or a share of what is available."""

    n_bytes: int | None = None
    share: float | None = None
    """Over 0, up to 1."""

    def of(self, available_bytes: int) -> int:
        """In bytes."""
        if self.n_bytes is not None:
            return self.n_bytes
        assert self.share is not None
        return int(self.share * available_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for. None leaves it to the plan."""

    ram: Size | None = None
    """The ceiling of the process's memory."""
    vram: Size | None = None
    """The same on every card."""
    reserve: Size | None = None
    """What is left to the system and other programs."""
    context_tokens: int | None = None
    least_context_tokens: int = 0
    """What the conversation at hand needs; a context that nobody asked for is not made smaller."""
    chunk_tokens: int | None = None
    slots: int | None = None
    """Experts of each layer kept in memory."""
    cache_rows: int | None = None
    depth: int | None = None
    drafting: DraftWish = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the engine that will run can make use of; a plan never counts on more."""

    cards: bool = False
    """Memory of GPUs, for the trunk and for experts."""
    cards_unasked: bool = True
    """Also where no wish names VRAM."""
    drafts: bool = False
    """The draft head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that takes memory, and where."""

    name: str
    """"runtime", "trunk", "head", "draft head", "conversation", "scratch", "rows", "experts", "experts lent"."""
    place: str
    """"RAM", or a card's name."""
    n_bytes: int
    note: str = ""
    """What it comes to: "24 of 384 in each layer"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """What goes onto one card."""

    card: int
    """Index of the device."""
    name: str
    ceiling_bytes: int
    layers: tuple[int, ...]
    """Backbone layers that are there, with what they keep of the conversation."""
    head: bool
    """Whether the output layer is there."""
    slots: Mapping[int, int]
    """Experts of each layer kept there, apart from those in RAM."""
    drafts: bool = False
    """Whether the draft head is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who gets how much. The sum of the parts in RAM is at most the ceiling."""

    ceiling_bytes: int
    """The process's memory never goes above."""
    available_bytes: int
    ruled_by: str
    """What says how much is available: `MachineFacts.ruled_by`."""
    reserve_bytes: int
    """Available memory below which slots are given back."""
    parts: tuple[Part, ...]
    slots: Mapping[int, int]
    """Experts of each layer kept in RAM; a draft stage is the layer behind the last."""
    spare_slots: int
    cache_rows: int
    """Of each engram table."""
    embedding_rows: int
    context_tokens: int
    """The most positions of a conversation."""
    chunk_tokens: int
    """Prompt tokens in one forward."""
    depth: Mapping[str, int]
    """Reads in flight, by drive."""
    threads: int
    drafting: bool
    cards: tuple[CardPlan, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user should know of it, in sentences."""

    @property
    def planned_bytes(self) -> int:
        """All that is planned in RAM."""
        return sum(part.n_bytes for part in self.parts if part.place == "RAM")

    @property
    def n_slots(self) -> int:
        """Slots in RAM, lent ones included."""
        return sum(self.slots.values()) + self.spare_slots
