"""Whose index keys each row scores: the published index-key slot, as plain arithmetic.

The released runtime keeps one slot that refers to the index keys published last. A KV source publishes only when it
completed a group in the current call, and the slot survives between calls. In a prefill every source completes a
group, so each index source meets the keys of the nearest source; in decode it may meet those of a later layer, from
the previous token. That is part of the model: tidying it up changes what the model says.

Source: spec/architecture section 12.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.config import ModelConfig

Rule = Literal["prefill", "decode"]
"""How positions are processed. A position keeps the kind it was processed as."""

IndexOwner = Literal["published", "nearest"]
"""`published`: the slot as released. `nearest`: each index source always scores the keys of its own KV source."""

NO_OWNER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Key owners of one forward."""

    owners: Mapping[int, Sequence[int]]
    """Per index source: for each row the layer whose keys it scores, or -1 when no group is complete at the end of a
    prefill.
    """
    slot_after: Sequence[int]
    """What the slot refers to after each row."""


def _nearest(config: ModelConfig, layer: int) -> int:
    return max(source for source in config.kv_source_layers if source <= layer)


def schedule(config: ModelConfig, start: int, n_rows: int, rule: Rule, slot: int, reading: IndexOwner) -> Schedule:
    """Key owners for rows at positions `start .. start + n_rows - 1`, given the slot before them.

    `slot` is a layer id or -1. Prefill follows "each source's own keys" in every chunk, so chunks look like one
    prefill.
    """
    end = start + n_rows
    slots: list[int] = []
    if rule == "prefill" or reading == "nearest":
        owners = {}
        for layer in config.index_source_layers:
            visible = end // config.ratio(layer) > 0
            owners[layer] = [_nearest(config, layer) if visible else NO_OWNER] * n_rows
        for position in range(start, end):
            published = [s for s in config.kv_source_layers if config.ratio(s) <= position + 1]
            slot = published[-1] if published else slot
            slots.append(slot)
        return Schedule(owners=owners, slot_after=slots)
    rows: dict[int, list[int]] = {layer: [] for layer in config.index_source_layers}
    for position in range(start, end):
        published = [s for s in config.kv_source_layers if (position + 1) % config.ratio(s) == 0]
        for layer, owner in rows.items():
            fresh = [s for s in published if s <= layer]
            owner.append(fresh[-1] if fresh else slot)
        slot = published[-1] if published else slot
        slots.append(slot)
    return Schedule(owners=rows, slot_after=slots)


def n_scored(config: ModelConfig, layer: int, owner: int, position: int) -> int:
    """How many keys an index source scores for a query: the groups visible to the query, of its own ratio.

    Clamped to the keys the owner has by then, which only matters for layer orders in which a coarser source follows a
    finer one; the reference would read past its cache there.
    """
    if owner == NO_OWNER:
        return 0
    positions = position + 1 if owner <= layer else position
    return min((position + 1) // config.ratio(layer), positions // config.ratio(owner))


def max_decode_rows(config: ModelConfig, start: int, n_rows: int, slot: int, reading: IndexOwner) -> int:
    """The largest number of rows, at most `n_rows`, that one decode forward at `start` can take.

    A row that scores keys of a later layer needs those of positions before the forward; keys made by earlier rows of
    the same forward do not exist yet when the row's layer runs. In the release this only bites in the first few
    tokens.
    """
    plan = schedule(config, start, n_rows, "decode", slot, reading)
    for row in range(1, n_rows):
        for layer, owners in plan.owners.items():
            owner = owners[row]
            if owner > layer and n_scored(config, layer, owner, start + row) > start // config.ratio(owner):
                return row
    return n_rows
