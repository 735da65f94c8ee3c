"""Slots over layers: evenly, or where they find most experts. Pure arithmetic."""

from collections.abc import Mapping

import numpy as np

from planner.hits import Floats

GAIN_DIGITS = 4
"""Of the hits a slot gains in a step; the curves are interpolated and know no more."""


def spread(n_slots: int, most: Mapping[int, int], *, least: int = 1) -> dict[int, int]:
    """`n_slots` over layers, as evenly as what each can use allows, the first layers one more where it does not come
    out even; no layer below `least`.
    """
    given = {layer: min(least, n) for layer, n in most.items()}
    left = n_slots - sum(given.values())
    open_layers = [layer for layer, n in most.items() if n > given[layer]]
    while left > 0 and open_layers:
        share = max(1, left // len(open_layers))
        for layer in open_layers:
            more = min(share, most[layer] - given[layer], left)
            given[layer] += more
            left -= more
        open_layers = [layer for layer in open_layers if most[layer] > given[layer]]
    return given


def best_slots(n_slots: int, curves: Mapping[int, Floats], floor: Mapping[int, int]) -> dict[int, int]:
    """`n_slots` over layers so that most experts are found, given each layer's hits by slots; none below `floor`.

    The curves are concave, so taking the largest gains one by one is best.
    """
    given = dict(floor)
    left = max(0, n_slots - sum(floor.values()))
    layers = np.concatenate([np.full(len(curve) - 1 - floor[layer], layer) for layer, curve in curves.items()])
    gains = np.concatenate([np.diff(curve)[floor[layer] :] for layer, curve in curves.items()])
    ranks = np.concatenate([np.arange(floor[layer], len(curve) - 1) for layer, curve in curves.items()])
    # Of gains that differ by nothing that matters, the layer with fewer slots comes first: alike layers get alike.
    order = np.lexsort((ranks, -np.round(gains, GAIN_DIGITS)))
    for layer in layers[order[:left]].tolist():
        given[layer] += 1
    return given
