"""Names for the integers that look alike: experts and slots.

A draft stage's layer number is the number of backbone layers plus the stage, so that one layer number says everything.
"""

from typing import NamedTuple, NewType

SlotIndex = NewType("SlotIndex", int)
"""A slot, counted from the first one of its table."""


class ExpertId(NamedTuple):
    """One routed expert. A tuple, because it is hashed and compared for every expert of every token."""

    layer: int
    """Backbone layer, or the number of backbone layers plus the draft stage."""
    expert: int
    """The expert, counted inside its layer."""
