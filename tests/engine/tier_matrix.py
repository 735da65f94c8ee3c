"""Where layers, the conversation, the draft head and experts lie never shows: every placement, in both numeric modes.

Run as `python -m tests.engine.tier_matrix [exact|reference ...]`: a prompt in two chunks and tokens one by one, then a
prompt and rounds of drafts, on made-up cards; every logit, confidence and draft is compared with those of the same
arithmetic in memory. Minutes, as each operation of a made-up card goes through Python; the suite runs a part of it.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from engine.numerics import NumericsName
from tests.engine.conftest import TINY
from tests.engine.drafting import opened
from tests.engine.made_up_card import DEVICE, made_up_card
from tests.engine.tiering import ON_CARDS, Spread, by_torch, drafted, equal, greedy, spread_model


def main(modes: Sequence[str]) -> int:
    """How many placements differ."""
    n_differing = 0
    with opened(TINY / "checkpoint") as whole, by_torch():
        for numerics in (mode for mode in get_args(NumericsName) if mode in modes or not modes):
            with spread_model(whole, Spread(numerics=numerics, drafts=False)) as model:
                plain, rounds = greedy(model, 3), drafted(model, 2)
            for name, spread in ON_CARDS.items():
                with made_up_card(), spread_model(whole, replace(spread, device=DEVICE, numerics=numerics)) as model:
                    same = equal(greedy(model, 3), plain) and equal(drafted(model, 2), rounds)
                n_differing += not same
                print(f"{numerics}, {name}: {'the same' if same else 'DIFFERS'}", flush=True)
    return n_differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
