"""What goes onto GPUs: layer after layer, the output layer behind the last of them and the draft head, then experts.

A layer lies on a card whole, with what it keeps of the conversation. The one thing a reader would get wrong: every card
takes experts of all layers, wherever the layers are; those in memory are multiplied by the processor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.facts import Gpu
from planner.footprint import Footprint, Weights
from planner.plan import CardPlan, Part, Size
from planner.spreading import spread

CARD_RESERVE_BYTES = 2_000_000_000
"""Left free on every card: a desktop takes that much, and one without room for it halves its speed."""
CARD_ROWS = 256
"""Rows of what is wider than the stream, whose scratch a card has room for: `engine.kernels.card_path.MOST_ROWS`."""
CARD_STREAM_SHARE = 8
"""One part in so many of the smallest card is for the stream of a prompt."""
ASSUMED_CARD_BYTES_S = 150e9
"""Stored weights that a card goes through in a second, of one that nobody has measured: under half of what the memory
of the slowest desktop card with 8 GB gives.
"""
TRIP_S = 60e-6
"""To wait for a card, and for what it then sends: assumed, as no card has been measured."""
CALL_S = 5e-6
"""To tell a card one thing; assumed likewise."""
CALLS_A_LAYER = 500
"""Things that torch tells a card for one layer of the release, most of them the 20 rounds of its two hyper-connections;
`tests/engine/test_tiers.py` counts them.
"""
PASS_ROWS = 8
"""Rows that share one reading of the weights on a card: `engine.kernels.fused`."""
_LARGE_PIECE_BYTES = 10 << 20
_PIECE_UNIT_BYTES = 2 << 20
"""Torch takes memory of a card in whole units of this for pieces of that size or more."""


def card_slot_bytes(footprint: Footprint) -> int:
    """What one expert takes of a card's memory."""
    unit = _PIECE_UNIT_BYTES if footprint.expert_bytes >= _LARGE_PIECE_BYTES else 512
    return -(-footprint.expert_bytes // unit) * unit


def card_ceiling(gpu: Gpu, wish: Size | None) -> int:
    """What may be taken of a card."""
    if wish is None:
        return max(0, gpu.free_bytes - CARD_RESERVE_BYTES)
    return min(wish.of(gpu.free_bytes), gpu.free_bytes)


def card_chunk(gpus: Sequence[Gpu], footprint: Footprint, wish: Size | None, most: int, least: int) -> int:
    """Prompt tokens in one forward through layers on cards: halved until what of them lies there whole takes no more
    than its share of the smallest card.
    """
    room = min(card_ceiling(gpu, wish) for gpu in gpus) // CARD_STREAM_SHARE
    while most > least and footprint.card_stream_bytes(most) > room:
        most //= 2
    return most


def plan_cards(
    gpus: Sequence[Gpu], footprint: Footprint, wish: Size | None, context_tokens: int, chunk_tokens: int,
    *, drafts: bool = False,
) -> tuple[CardPlan, ...]:  # fmt: skip
    """The plan of each card, in their order; with `drafts` the draft head goes where the output layer is."""
    laid, head_laid = 0, False
    left_of = footprint.n_experts(drafting=False)
    cards: list[CardPlan] = []
    for index, gpu in enumerate(gpus):
        ceiling = card_ceiling(gpu, wish)
        room = ceiling - footprint.scratch_bytes(CARD_ROWS, context_tokens)
        layers: tuple[int, ...] = ()
        while laid < len(footprint.layers):
            more = (*layers, laid)
            if _layers_bytes(more, footprint, context_tokens, chunk_tokens) > room:
                break
            layers, laid = more, laid + 1
        room -= _layers_bytes(layers, footprint, context_tokens, chunk_tokens)
        head = laid == len(footprint.layers) and not head_laid and footprint.head.n_bytes <= room
        head_laid |= head
        room -= footprint.head.n_bytes if head else 0
        has_drafts = drafts and head and _draft_bytes(footprint) <= room
        room -= _draft_bytes(footprint) if has_drafts else 0
        slots = spread(max(0, room) // card_slot_bytes(footprint), left_of, least=0)
        for layer, n in slots.items():
            left_of[layer] -= n
        cards.append(
            CardPlan(
                card=index,
                name=gpu.name,
                ceiling_bytes=ceiling,
                layers=layers,
                head=head,
                slots=slots,
                drafts=has_drafts,
            )
        )
    return tuple(cards)


def _layers_bytes(layers: Sequence[int], footprint: Footprint, context_tokens: int, chunk_tokens: int) -> int:
    """Layers on one card, with the conversation and what of a prompt lies there whole."""
    if not layers:
        return 0
    weights = sum(footprint.layers[layer].n_bytes for layer in layers)
    return weights + footprint.card_kv_bytes(layers, context_tokens) + footprint.card_stream_bytes(chunk_tokens)


def _draft_bytes(footprint: Footprint) -> int:
    return footprint.draft.n_bytes + footprint.draft_ring_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Resident weights that are on cards and so not in memory."""

    trunk: Weights
    head: Weights
    draft: Weights

    @property
    def n_bytes(self) -> int:
        """All of them."""
        return self.trunk.n_bytes + self.head.n_bytes + self.draft.n_bytes


def moved_weights(cards: Sequence[CardPlan], footprint: Footprint) -> Moved:
    """What cards take of the resident weights."""
    return Moved(
        trunk=sum((footprint.layers[layer] for card in cards for layer in card.layers), Weights()),
        head=footprint.head if any(card.head for card in cards) else Weights(),
        draft=footprint.draft if any(card.drafts for card in cards) else Weights(),
    )


def card_trunk_s(cards: Sequence[CardPlan], footprint: Footprint, rows: float) -> float:
    """Seconds of a forward of so many rows in the resident weights on cards, one layer after another.

    The processor tells a card what to do call by call, and waits for it once a layer.
    """
    moved = moved_weights(cards, footprint)
    n_layers, heads = sum(len(card.layers) for card in cards), any(card.head for card in cards)
    passes = max(1.0, rows / PASS_ROWS)
    n_bytes = moved.trunk.fp8_bytes * passes + moved.trunk.plain_bytes + moved.head.n_bytes
    return n_bytes / ASSUMED_CARD_BYTES_S + n_layers * (CALLS_A_LAYER * CALL_S + TRIP_S) + heads * TRIP_S


def card_draft_s(footprint: Footprint) -> float:
    """Seconds of a round of the draft head on a card, its experts and the output matrix aside: a wait for each stage
    and each draft.
    """
    config = footprint.config
    calls_s = config.n_mtp_layers * (CALLS_A_LAYER * CALL_S + TRIP_S) + config.dspark_block_size * TRIP_S
    return footprint.draft.n_bytes / ASSUMED_CARD_BYTES_S + calls_s


def card_parts(
    cards: Sequence[CardPlan], footprint: Footprint, context_tokens: int, chunk_tokens: int
) -> tuple[Part, ...]:
    """What takes the cards' memory."""
    parts = []
    for card in cards:
        place = f"card {card.card}"
        n_slots = sum(card.slots.values())
        scratch = footprint.scratch_bytes(CARD_ROWS, context_tokens) if card.layers or n_slots else 0
        kv = footprint.card_kv_bytes(card.layers, context_tokens)
        if card.layers:
            scratch += footprint.card_stream_bytes(chunk_tokens)
        if card.drafts:
            kv += footprint.draft_ring_bytes()
        parts += [
            Part(name="scratch", place=place, n_bytes=scratch),
            Part(
                name="trunk",
                place=place,
                n_bytes=sum(footprint.layers[layer].n_bytes for layer in card.layers),
                note=f"{len(card.layers)} layers",
            ),
            Part(name="conversation", place=place, n_bytes=kv, note=f"{context_tokens:,} tokens"),
            Part(name="head", place=place, n_bytes=footprint.head.n_bytes if card.head else 0),
            Part(name="draft head", place=place, n_bytes=footprint.draft.n_bytes if card.drafts else 0),
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
