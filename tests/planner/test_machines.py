"""Plans of the released model on a dozen machines, held against arithmetic done by hand from the published sizes.

Nothing of the planner's own sums is used on the side of the hand: every size follows from the widths of the released
config and the formats of its tensors. What is policy, not size, is written out where it is used.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from app.planning import Model, read_model
from planner.cards import CARD_RESERVE_BYTES
from planner.facts import Drive, Gpu, MachineFacts, assumed_rates
from planner.plan import Abilities, Plan
from planner.solve import make_plan
from tests.engine.released import write_released

GB = 1_000_000_000
BOTH = Abilities(cards=True, drafts=True)

# Widths of the release: model, expert, heads, head, query rank, output groups and rank, vocabulary, window, copies.
D, F, H, HD, RQ, G, RO, V, W, M = 5120, 2304, 64, 512, 1280, 8, 1024, 129_280, 128, 4
LAYERS, EXPERTS, USED, STAGES, DRAFT_EXPERTS, DRAFT_RANK = 40, 384, 6, 3, 128, 256
INDEX_HEADS, INDEX_WIDTH, TOP_K = 32, 128, 512


def fp8(n: int, k: int) -> int:
    """A byte a weight, and one a block of 32 x 32."""
    return n * k + -(-n // 32) * -(-k // 32)


def block_bytes(n_experts: int) -> int:
    """What every layer and every draft stage keeps: attention, router, shared expert, norms, hyper-connections."""
    attention = fp8(RQ, D) + fp8(H * HD, RQ) + fp8(HD, D) + fp8(G * RO, H * HD // G) + fp8(D, G * RO)
    norms = 4 * (D + D + RQ + HD)  # stored as bf16, kept as float32
    router = 2 * n_experts * D + 4 * n_experts
    shared = 3 * fp8(F, D)  # w2 is [D, F]: as many weights and blocks
    mixes = 2 * 4 * ((2 + M) * M * M * D + (2 + M) * M + 3)
    return attention + norms + 4 * H + router + shared + mixes


SOURCES = {2: 2, 8: 2, 14: 2, 20: 1}
"""Layers that make compressed positions, and of how many positions each."""
SELECTING = (2, 8, 14, 20, 24, 28, 32, 36)


def layer_bytes(layer: int) -> int:
    """A layer; four of them make compressed positions, eight select, two have an n-gram table."""
    total = block_bytes(EXPERTS)
    if layer in SOURCES:
        gates = 2 if SOURCES[layer] > 1 else 1
        total += gates * 2 * HD * D + 4 * HD + 2 * INDEX_WIDTH * HD + 4 * INDEX_WIDTH
    if layer in SELECTING:
        total += fp8(INDEX_HEADS * INDEX_WIDTH, RQ) + 2 * INDEX_HEADS * D
    return total + (fp8(5 * D, 3 * 8 * 256) + 2 * 4 * M * D if layer in (1, 14) else 0)


def trunk_bytes() -> int:
    """Forty layers."""
    return sum(map(layer_bytes, range(LAYERS)))


def card_bytes(layers: Sequence[int], context: int, rows: int) -> int:
    """Layers on a card, with what they keep of a conversation and what of a prompt's stream lies there whole.

    The latents of the sources below each layer, and all index keys where one selects, with a quarter to grow into; the
    largest source's latents again, while they are copied; windows as in memory. Of each row of a prompt the stream in
    four copies, seven vectors of its width, two low-rank queries, ten keys, and twice the chosen groups.
    """
    if not layers:
        return 0
    read = {max(source for source in SOURCES if source <= layer) for layer in layers if layer >= 2}
    values = sum(context // SOURCES[source] for source in read) * HD
    if set(layers) & set(SELECTING):
        values += sum(context // ratio for ratio in SOURCES.values()) * INDEX_WIDTH
    largest = max((context // SOURCES[source] for source in read), default=0) * HD
    kept = (values + values // 4 + largest + len(layers) * (2 * W + 32) * HD) * 4
    return sum(map(layer_bytes, layers)) + kept + stream_bytes(rows)


def stream_bytes(rows: int) -> int:
    return rows * (4 * ((M + 7) * D + 2 * RQ + 10 * HD) + 2 * 8 * TOP_K)


def draft_bytes() -> int:
    """Three stages; the first reads three layers, the last has a norm, a bigram term and a confidence."""
    ends = fp8(D, 3 * D) + 4 * D + 4 * D + 2 * 2 * V * DRAFT_RANK + 2 * (D + DRAFT_RANK)
    return STAGES * block_bytes(DRAFT_EXPERTS) + ends


HEAD = 2 * V * D + 4 * D
EXPERT = 3 * (D * F // 2 + D * F // 32)  # two fp4 values a byte, a scale for 32
# In this header set an expert's six tensors lie in one run; whole 4 KiB blocks around it at the worst offset.
SLOT = -(-EXPERT // 4096) * 4096 + 4096
CARD_SLOT = 18_874_368  # 9 x 2 MiB, the next above 18.8 MB


def test_the_hand_agrees_with_the_published_sizes() -> None:
    assert EXPERT == 18_800_640  # "15,360 x 18.8 MB"
    assert LAYERS * EXPERTS * EXPERT == 288_777_830_400  # "289 GB"
    assert round((trunk_bytes() + HEAD) / 1e8) == 85  # "8.5 GB of trunk", head included
    assert SLOT == 18_804_736


def kv_bytes(context: int, stages: int) -> int:
    """Latents of 512 and index keys of 128, float32, for every second position of three sources and all of the fourth.

    The largest is copied when it grows. A window of each layer with room for 32 rows of a step, and again while a
    prompt's is staged; of each stage a window of keys, and one of what they are made of, the stream at three layers.
    """
    rows = 3 * (context // 2) + context
    windows = LAYERS * (2 * W + 32) * HD * 4 + (W * (stages * HD + 3 * D) * 4 if stages else 0)
    return rows * (HD + INDEX_WIDTH) * 4 + context * HD * 4 + windows


def scratch_bytes(rows: int, context: int) -> int:
    """The widest moment: the stream in four copies as it was and as it will be, three vectors of the width, and the
    attention half's three arrays of all heads with its low ranks; 2 x 512 chosen groups of 8 bytes; a byte for eight
    positions of the context.
    """
    attention = 3 * H * HD + RQ + G * RO
    return rows * ((2 * M * D + 3 * D + attention) * 4 + 2 * 8 * TOP_K + context // 8) + 4 * V


def rows_bytes(cache_rows: int, embedding_rows: int) -> int:
    """Rows of two tables of 256 values and 8 scales, and of the embedding, with 400 bytes of books each."""
    return 2 * cache_rows * (264 + 400) + embedding_rows * (2 * D + 400)


# The program, 1 kB for each tensor's objects, 1.5 kB for each token's, and buffers that rows are read into.
RUNTIME = 330_000_000 + 1_000 * 96_085 + 1_500 * V + 64_000_000


class Machine(NamedTuple):
    """A machine, and what the rules give it: halve until a conversation takes at most a tenth of the ceiling and rows a
    fiftieth; then a chunk until it takes an eighth of what is left beside what must be there. No drafts where a layer
    would then have fewer slots than the six experts of a token.
    """

    name: str
    total: float
    available: float
    drives: int
    cards: tuple[float, ...]
    """Free VRAM, GB."""
    reserve: float
    context: int
    chunk: int
    cache_rows: int
    embedding_rows: int
    drafting: bool = True


MACHINES = (
    Machine("laptop, 16 GB", 16, 14.5, 1, (), 2, 65_536, 256, 65_536, 8_192, False),
    Machine("desktop, 24 GB", 24, 21, 2, (), 2.4, 65_536, 1_024, 65_536, 8_192),
    Machine("desktop, 32 GB", 32, 28, 1, (), 3.2, 65_536, 2_048, 65_536, 8_192),
    Machine("desktop, 48 GB, 3 drives", 48, 44, 3, (), 4.8, 65_536, 4_096, 65_536, 8_192),
    Machine("desktop, 64 GB", 64, 60, 1, (), 6.4, 65_536, 4_096, 65_536, 8_192),
    Machine("desktop, 96 GB", 96, 90, 2, (), 9.6, 65_536, 8_192, 65_536, 8_192),
    Machine("workstation, 128 GB", 128, 120, 3, (), 12.8, 65_536, 8_192, 65_536, 8_192),
    Machine("workstation, 256 GB", 256, 245, 2, (), 16, 65_536, 8_192, 65_536, 8_192),
    Machine("server, 512 GB", 512, 500, 3, (), 16, 65_536, 8_192, 65_536, 8_192),
    Machine("32 GB and a card of 12 GB", 32, 28, 1, (11,), 3.2, 65_536, 2_048, 65_536, 8_192),
    Machine("64 GB and a card of 24 GB", 64, 60, 2, (23,), 6.4, 65_536, 8_192, 65_536, 8_192),
    Machine("64 GB and two cards of 24 GB", 64, 60, 2, (23, 24), 6.4, 65_536, 8_192, 65_536, 8_192),
    Machine("8 GB and a card of 24 GB", 8, 7, 1, (23.5,), 2, 32_768, 512, 32_768, 4_096),
)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The header set of the whole release: 48 headers, 96,085 tensors, no payload."""
    model = read_model(write_released(tmp_path_factory.mktemp("released"), whole=False))
    assert model.footprint.n_tensors == 96_085 and model.note == ""
    return model


def planned(machine: Machine, model: Model) -> Plan:
    drives = tuple(
        Drive(name=f"nvme{i}n1", kind="nvme", rate_bytes_s=3e9, source="given") for i in range(machine.drives)
    )
    cards = tuple(
        Gpu(name=f"card {i}", total_bytes=round((free + 1) * GB), free_bytes=round(free * GB))
        for i, free in enumerate(machine.cards)
    )
    facts = MachineFacts(
        total_bytes=round(machine.total * GB),
        available_bytes=round(machine.available * GB),
        ruled_by="system",
        n_cores=8,
        gpus=cards,
        drives=drives,
        rates=assumed_rates(8),
    )
    return make_plan(facts, model.footprint, abilities=BOTH)


def in_ram(plan: Plan) -> Mapping[str, int]:
    return {part.name: part.n_bytes for part in plan.parts if part.place == "RAM"}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_plan_is_what_a_hand_calculation_gives(machine: Machine, released: Model) -> None:
    plan = planned(machine, released)
    ceiling = round((machine.available - machine.reserve) * GB)
    # Cards take layer after layer, then the output layer, and 2 GB of each are left free; an eighth of the smallest at
    # most is for a prompt's stream. The rest is experts, of all layers evenly, in whole units of 2 MiB, as torch takes
    # a card's memory.
    most_rows = min(8_192, machine.context)
    while machine.cards and stream_bytes(most_rows) > (round(min(machine.cards) * GB) - 2 * GB) // 8:
        most_rows //= 2
    moved, head_moved, on_cards, next_layer = 0, False, dict.fromkeys(range(LAYERS), 0), 0
    for free in machine.cards:
        left = round(free * GB) - 2 * GB - scratch_bytes(256, machine.context)
        first = next_layer
        while next_layer < LAYERS and card_bytes(range(first, next_layer + 1), machine.context, most_rows) <= left:
            next_layer += 1
        left -= card_bytes(range(first, next_layer), machine.context, most_rows)
        moved += sum(map(layer_bytes, range(first, next_layer)))
        if next_layer == LAYERS and not head_moved and left >= HEAD:
            left, moved, head_moved = left - HEAD, moved + HEAD, True
        each, more = divmod(left // CARD_SLOT, LAYERS)
        for layer in range(LAYERS):
            on_cards[layer] += each + (layer < more)
    fixed = RUNTIME + trunk_bytes() + HEAD - moved + (draft_bytes() if machine.drafting else 0)
    fixed += kv_bytes(machine.context, STAGES if machine.drafting else 0) + scratch_bytes(
        machine.chunk, machine.context
    )
    fixed += rows_bytes(machine.cache_rows, machine.embedding_rows)
    n_slots = (ceiling - fixed) // (SLOT + 12_000) - 16  # 16 are lent to a prompt

    assert (plan.ceiling_bytes, plan.reserve_bytes) == (ceiling, round(machine.reserve * GB))
    assert (plan.context_tokens, plan.chunk_tokens) == (machine.context, machine.chunk)
    assert (plan.cache_rows, plan.embedding_rows) == (machine.cache_rows, machine.embedding_rows)
    assert plan.drafting is machine.drafting and plan.spare_slots == 16
    parts = in_ram(plan)
    assert sum(parts.values()) - parts["experts"] - parts["experts lent"] == fixed
    room = {layer: EXPERTS - on_cards[layer] for layer in range(LAYERS)}
    room |= {LAYERS + stage: DRAFT_EXPERTS for stage in range(STAGES)} if machine.drafting else {}
    assert sum(plan.slots.values()) == min(n_slots, sum(room.values()))
    there = {layer: sum(card.slots.get(layer, 0) for card in plan.cards) for layer in range(LAYERS)}
    assert there == on_cards
    # Evenly, but for layers that want no more: nobody who could take two more has two fewer than another.
    open_layers = [layer for layer in plan.slots if plan.slots[layer] < room[layer]]
    assert all(plan.slots[layer] <= room[layer] for layer in room)
    if open_layers:
        assert max(plan.slots.values()) - min(plan.slots[layer] for layer in open_layers) <= 1


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_no_plan_is_above_its_ceiling_or_leaves_less_than_the_floor(machine: Machine, released: Model) -> None:
    plan = planned(machine, released)
    assert plan.planned_bytes <= plan.ceiling_bytes <= round(machine.available * GB) - plan.reserve_bytes
    # A tenth of the memory, between 2 and 16 GB, but never more than a quarter.
    assert plan.reserve_bytes >= min(2 * GB, round(machine.total * GB) // 4)
    assert plan.reserve_bytes <= 16 * GB
    for card, free in zip(plan.cards, machine.cards, strict=True):
        used = sum(part.n_bytes for part in plan.parts if part.place == f"card {card.card}")
        assert used <= card.ceiling_bytes == round(free * GB) - CARD_RESERVE_BYTES
    assert set(plan.depth) == {f"nvme{i}n1" for i in range(machine.drives)}


def test_a_desktop_that_uses_its_card_gets_a_smaller_plan_on_it(released: Model) -> None:
    """The rule is about free memory: a desktop that holds 1 GB of it takes 52 or 53 experts, and no layer."""
    idle = planned(MACHINES[10], released)
    busy = planned(MACHINES[10]._replace(cards=(22,)), released)
    gone = sum(idle.cards[0].slots.values()) - sum(busy.cards[0].slots.values())
    assert gone in (GB // CARD_SLOT, GB // CARD_SLOT + 1)
    assert idle.cards[0].layers == busy.cards[0].layers == tuple(range(LAYERS))
