"""What goes onto GPUs: the fp8 matrices of layer after layer, the output matrix behind the last of them, then experts.

The one thing a reader would get wrong: a card only multiplies. Norms, routers and other small matrices stay in memory
with the conversation, so any layer can lie on any card or on none, and every card takes experts of all layers; those in
memory are multiplied by the processor.
"""

from collections.abc import Mapping, Sequence

from planner.facts import Gpu
from planner.footprint import FLOAT_BYTES, Footprint, Weights
from planner.plan import CardPlan, Part, Size
from planner.spreading import spread

CARD_RESERVE_BYTES = 2_000_000_000
"""Left free on every card: a desktop takes that much, and one without room for it halves its speed."""
CARD_ROWS = 256
"""Rows of one pass whose scratch a card has room for: `engine.kernels.card_path.MOST_ROWS`."""
ASSUMED_CARD_BYTES_S = 150e9
"""Stored weights that a card goes through in a second, of one that nobody has measured: under half of what the memory
of the slowest desktop card with 8 GB gives.
"""
TRIP_S = 60e-6
"""Rows to a card and back, and the call: assumed, as no card has been measured."""
TRIPS_A_LAYER = 7
PASS_ROWS = 8
"""Rows that share one reading of the weights on a card: `engine.kernels.fused`."""
_LARGE_PIECE_BYTES = 10 << 20
_PIECE_UNIT_BYTES = 2 << 20
"""Torch takes memory of a card in whole units of this for pieces of that size or more."""


def card_slot_bytes(footprint: Footprint) -> int:
    """What one expert takes of a card's memory."""
    unit = _PIECE_UNIT_BYTES if footprint.expert_bytes >= _LARGE_PIECE_BYTES else 512
    return -(-footprint.expert_bytes // unit) * unit


def head_matrix_bytes(footprint: Footprint) -> int:
    """The output matrix, without the norm before it."""
    return footprint.head.n_bytes - FLOAT_BYTES * footprint.config.dim


def plan_cards(
    gpus: Sequence[Gpu], footprint: Footprint, wish: Size | None, context_tokens: int
) -> tuple[CardPlan, ...]:
    """The plan of each card, in their order."""
    laid, head_laid = 0, False
    left_of = footprint.n_experts(drafting=False)
    cards: list[CardPlan] = []
    for index, gpu in enumerate(gpus):
        ceiling = max(0, gpu.free_bytes - CARD_RESERVE_BYTES)
        if wish is not None:
            ceiling = min(wish.of(gpu.free_bytes), gpu.free_bytes)
        room = ceiling - footprint.scratch_bytes(CARD_ROWS, context_tokens)
        layers = []
        while laid < len(footprint.layers) and footprint.layers[laid].fp8_bytes <= room:
            room -= footprint.layers[laid].fp8_bytes
            layers.append(laid)
            laid += 1
        head = laid == len(footprint.layers) and not head_laid and head_matrix_bytes(footprint) <= room
        head_laid |= head
        room -= head_matrix_bytes(footprint) if head else 0
        slots = spread(max(0, room) // card_slot_bytes(footprint), left_of, least=0)
        for layer, n in slots.items():
            left_of[layer] -= n
        cards.append(
            CardPlan(card=index, name=gpu.name, ceiling_bytes=ceiling, layers=tuple(layers), head=head, slots=slots)
        )
    return tuple(cards)


def moved_weights(cards: Sequence[CardPlan], footprint: Footprint) -> Weights:
    """Resident weights that are on cards and so not in memory; the plain ones are the output matrix."""
    fp8 = sum(footprint.layers[layer].fp8_bytes for card in cards for layer in card.layers)
    head = any(card.head for card in cards)
    return Weights(fp8_bytes=fp8, plain_bytes=head_matrix_bytes(footprint) if head else 0)


def card_trunk_s(cards: Sequence[CardPlan], footprint: Footprint, rows: float) -> float:
    """Seconds of a forward of so many rows in the resident weights on cards, one layer after another."""
    moved = moved_weights(cards, footprint)
    n_trips = TRIPS_A_LAYER * sum(len(card.layers) for card in cards) + any(card.head for card in cards)
    passes = max(1.0, rows / PASS_ROWS)
    return (moved.fp8_bytes * passes + moved.plain_bytes) / ASSUMED_CARD_BYTES_S + n_trips * TRIP_S


def card_parts(cards: Sequence[CardPlan], footprint: Footprint, context_tokens: int) -> tuple[Part, ...]:
    """What takes the cards' memory."""
    parts = []
    for card in cards:
        place = f"card {card.card}"
        trunk = sum(footprint.layers[layer].fp8_bytes for layer in card.layers)
        n_slots = sum(card.slots.values())
        is_used = bool(card.layers or n_slots)
        scratch = footprint.scratch_bytes(CARD_ROWS, context_tokens) if is_used else 0
        parts += [
            Part(name="scratch", place=place, n_bytes=scratch),
            Part(name="trunk", place=place, n_bytes=trunk, note=f"{len(card.layers)} layers"),
            Part(name="head", place=place, n_bytes=head_matrix_bytes(footprint) if card.head else 0),
            Part(
                name="experts",
                place=place,
                n_bytes=card_slot_bytes(footprint) * n_slots,
                note=slots_note(card.slots, footprint),
            ),
        ]
    return tuple(part for part in parts if part.n_bytes)


def slots_note(slots: Mapping[int, int], footprint: Footprint) -> str:
    """How many experts of how many: "24 of 384 in each layer"."""
    backbone = [n for layer, n in slots.items() if layer < footprint.config.n_layers]
    if not backbone:
        return ""
    low, high, of = min(backbone), max(backbone), footprint.config.n_routed_experts
    return f"{low} of {of} in each layer" if low == high else f"{low} to {high} of {of} in each layer"
