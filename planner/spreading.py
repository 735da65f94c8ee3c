"""Slots over layers: evenly, or where they find most experts. Pure arithmetic."""

from collections.abc import Mapping

from planner.hits import Curve

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


def best_slots(n_slots: int, curves: Mapping[int, Curve], floor: Mapping[int, int]) -> dict[int, int]:
    """`n_slots` over layers so that most experts are found, given each layer's hits by slots; none below `floor`.

    The curves are concave, so taking the largest gains one by one is best.
    """
    given = dict(floor)
    left = max(0, n_slots - sum(floor.values()))
    # Of gains that differ by nothing that matters, the layer with fewer slots comes first: alike layers get alike.
    gains = sorted(
        (-round(curve[n + 1] - curve[n], GAIN_DIGITS), n, layer)
        for layer, curve in curves.items()
        for n in range(floor[layer], len(curve) - 1)
    )
    for _, _, layer in gains[:left]:
        given[layer] += 1
    return given
