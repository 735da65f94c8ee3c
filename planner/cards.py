"""What goes onto GPUs: resident weights layer by layer, the head behind the last of them, then experts.

The one thing a reader would get wrong: a layer's experts go where its resident weights are, so that what is on a card
is multiplied there; experts in memory stay in memory and are multiplied by the processor.
"""

from collections.abc import Mapping, Sequence

from planner.facts import Gpu
from planner.footprint import Footprint, Weights
from planner.plan import CardPlan, Part, Size
from planner.spreading import spread

CARD_RESERVE_BYTES = 2_000_000_000
"""Left free on every card: a desktop takes that much, and one without room for it halves its speed."""
CARD_ROWS = 32
"""Rows of a forward whose scratch a card has room for."""


def plan_cards(
    gpus: Sequence[Gpu],
    footprint: Footprint,
    wish: Size | None,
    context_tokens: int,
    n_experts: Mapping[int, int],
) -> tuple[CardPlan, ...]:
    """The plan of each card, in their order. `n_experts` are those of each layer."""
    laid = 0
    left_of = dict(n_experts)
    cards: list[CardPlan] = []
    for index, gpu in enumerate(gpus):
        ceiling = max(0, gpu.free_bytes - CARD_RESERVE_BYTES)
        if wish is not None:
            ceiling = min(wish.of(gpu.free_bytes), gpu.free_bytes)
        room = ceiling - footprint.scratch_bytes(CARD_ROWS, context_tokens)
        layers = []
        while laid < len(footprint.layers) and footprint.layers[laid].n_bytes <= room:
            room -= footprint.layers[laid].n_bytes
            layers.append(laid)
            laid += 1
        whole = laid == len(footprint.layers) and not any(card.head for card in cards)
        head = whole and footprint.head.n_bytes <= room
        room -= footprint.head.n_bytes if head else 0
        slots = {}
        if layers:
            slots = spread(max(0, room) // footprint.stride_bytes, {layer: left_of[layer] for layer in layers}, least=0)
        for layer, n in slots.items():
            left_of[layer] -= n
        cards.append(
            CardPlan(card=index, name=gpu.name, ceiling_bytes=ceiling, layers=tuple(layers), head=head, slots=slots)
        )
    return tuple(cards)


def moved_weights(cards: Sequence[CardPlan], footprint: Footprint) -> tuple[Weights, bool]:
    """Resident weights that are on cards and so not in memory, and whether the head is among them."""
    moved = sum((footprint.layers[layer] for card in cards for layer in card.layers), Weights())
    head = any(card.head for card in cards)
    return moved + footprint.head if head else moved, head


def card_parts(cards: Sequence[CardPlan], footprint: Footprint, context_tokens: int) -> tuple[Part, ...]:
    """What takes the cards' memory."""
    parts = []
    for card in cards:
        place = f"card {card.card}"
        trunk = sum((footprint.layers[layer] for layer in card.layers), Weights()).n_bytes
        scratch = footprint.scratch_bytes(CARD_ROWS, context_tokens) if card.layers else 0
        experts = footprint.stride_bytes * sum(card.slots.values())
        parts += [
            Part(name="scratch", place=place, n_bytes=scratch),
            Part(name="trunk", place=place, n_bytes=trunk, note=f"{len(card.layers)} layers"),
            Part(name="head", place=place, n_bytes=footprint.head.n_bytes if card.head else 0),
            Part(name="experts", place=place, n_bytes=experts, note=slots_note(card.slots, footprint)),
        ]
    return tuple(part for part in parts if part.n_bytes)


def slots_note(slots: Mapping[int, int], footprint: Footprint) -> str:
    """How many experts of how many: "24 of 384 in each layer"."""
    backbone = [n for layer, n in slots.items() if layer < footprint.config.n_layers]
    if not backbone:
        return ""
    low, high, of = min(backbone), max(backbone), footprint.config.n_routed_experts
    return f"{low} of {of} in each layer" if low == high else f"{low} to {high} of {of} in each layer"
