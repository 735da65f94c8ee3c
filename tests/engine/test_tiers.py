"""Where an expert lies never shows in what is said; cards that run out of memory; copies that never disturb a step.

On the processor a tier computes by the same kernels, so what is compared is every bit. On made-up cards torch computes:
beside torch in memory every bit is compared, beside the kernels tokens, and values to tolerance.
"""

import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.config import ModelConfig
from engine.errors import Stopped
from engine.kept import KeptStates
from engine.kernels.card_path import MOST_ROWS, matmul_on_card
from engine.kernels.fused import _ROWS
from engine.model import Model, never
from engine.numerics import NumericsName
from engine.state import Devices, State
from engine.tiers import card as card_module
from engine.tiers.card import Card, _pieces
from planner.cards import CALLS_A_LAYER, CARD_ROWS, PASS_ROWS
from planner.footprint import footprint
from planner.footprint import places as tensor_places
from storage.checkpoint import Checkpoint
from storage.ids import ExpertId
from storage.waves import WAVE_EXPERTS
from tests.engine.conftest import TINY
from tests.engine.drafting import opened
from tests.engine.made_up_card import DEVICE, MadeUpCard, OnCard, made_up_card
from tests.engine.tiering import (
    EVERYTHING,
    ON_CARDS,
    PROCESSOR,
    PROMPT,
    SHORT,
    SPREADS,
    Said,
    Spread,
    by_torch,
    choose,
    drafted,
    equal,
    greedy,
    spread_model,
)


@pytest.fixture(scope="module")
def plain(tiny_model: Model) -> Said:
    """What is said with every expert in memory and no card."""
    return greedy(tiny_model)


@pytest.mark.parametrize("name", SPREADS)
def test_where_an_expert_lies_never_shows(name: str, tiny_model: Model, plain: Said) -> None:
    spread = SPREADS[name]
    with spread_model(tiny_model, spread) as model:
        said = greedy(model)
        cards = model.streams.cards
        served = [] if cards is None else [card.n_served for card in cards.figures()]
        read = model.streams.experts.stats().total.n_misses
    assert equal(said, plain)
    assert all(served) and len(served) == len(spread.cards)
    if name == "card only":
        assert read == 0  # nothing was asked of memory


def test_in_reference_numerics_where_an_expert_lies_never_shows_either(tiny_model: Model) -> None:
    """Its roundings are torch's, expert by expert: the same rows make the same sums, wherever."""
    spreads = {
        "memory": Spread(numerics="reference"),
        "half": replace(SPREADS["half and half"], warm=True, numerics="reference"),
        "card": Spread(cards=(2,), warm=True, device=DEVICE, layers=(5,), head=True, numerics="reference"),
    }
    logits = []
    for name, spread in spreads.items():
        with made_up_card() if name == "card" else nullcontext(), spread_model(tiny_model, spread) as model:
            logits.append(model.forward(model.new_state(), PROMPT[:4], "prefill").logits)
    assert torch.equal(logits[1], logits[0])
    assert torch.equal(logits[2], logits[0])  # the made-up card computes by the same routines


def test_a_copy_that_fails_leaves_nothing_lent_or_on_its_way(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Card, parts: object, starts: object, target: object) -> None:
        raise RuntimeError("made up: the card has fallen off the bus")

    monkeypatch.setattr(Card, "copy_in", failing)
    with spread_model(tiny_model, Spread(memory=4, cards=(4,))) as model:
        cards = model.streams.cards
        assert cards is not None
        state = model.new_state()
        state.commit(model.forward(state, PROMPT[:3], "prefill").step)
        n_failed = 0
        while cards._copies:
            with pytest.raises(RuntimeError, match="fallen off"):
                cards.settle()
            n_failed += 1
        assert n_failed > 0 and not cards._cards[0].books.coming and cards.figures()[0].n_held == 0
        assert not model.streams.experts._lent


def test_a_model_whose_copies_fail_closes_all_the_same(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Card, parts: object, starts: object, target: object) -> None:
        raise RuntimeError("made up: the card has fallen off the bus")

    monkeypatch.setattr(Card, "copy_in", failing)
    before = set(threading.enumerate())
    with spread_model(tiny_model, Spread(memory=8, cards=(8,))) as model:
        cards = model.streams.cards
        assert cards is not None
        state = model.new_state()
        state.commit(model.forward(state, PROMPT, "prefill").step)
        assert len(cards._copies) > 1 and set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before and not model.streams.experts._lent


@pytest.fixture(scope="module")
def drafting() -> Iterator[Model]:
    """The golden checkpoint with its draft head."""
    with opened(TINY / "checkpoint") as model:
        yield model


@pytest.mark.parametrize(
    ("numerics", "names"),
    [
        ("exact", ("all on one card", "two cards and memory", "trunk on the card, few experts")),
        ("reference", ("two cards and memory",)),
    ],
)
def test_on_made_up_cards_every_logit_is_that_of_the_same_arithmetic_in_memory(
    numerics: NumericsName, names: Sequence[str], drafting: Model
) -> None:
    """A part of `python -m tests.engine.tier_matrix`: a prompt, then a round of drafts, verified and taken."""
    with by_torch(), spread_model(drafting, Spread(numerics=numerics, drafts=False)) as model:
        plain = drafted(model, 1, SHORT)
        assert model.head is not None and len(plain.logits) > 3
    for name in names:
        with by_torch(), made_up_card() as device:
            with spread_model(drafting, replace(ON_CARDS[name], device=DEVICE, numerics=numerics)) as model:
                assert model._trunk.blocks[0].device == DEVICE
                said, resident = drafted(model, 1, SHORT), device.live_bytes
            assert equal(said, plain), name
            assert not any(isinstance(logits, OnCard) for logits in said.logits) and resident > 300_000


def test_a_card_computes_what_the_kernels_do(drafting: Model, plain: Said) -> None:
    """To what float32 sums in another order differ by; the tokens are the same."""
    spread = replace(ON_CARDS["last layers"], device=DEVICE)
    with made_up_card(), spread_model(drafting, spread) as model:
        said = greedy(model, 2)
    assert said.tokens == plain.tokens[:2]
    for ours, theirs in zip(said.logits, plain.logits, strict=False):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "n_waits"),
    [
        ("all on one card", 8 + 1),
        ("trunk on the card, half of the experts", 8 + 1),
        ("two cards", 8 + 1),
        # The stream comes back to memory for layer 3, and so do the latent and the key of the group that layer 2
        # completes, which layers there read.
        ("first layers on the card", 3 + 1 + 2),
    ],
)
def test_a_layer_on_a_card_is_waited_for_once(name: str, n_waits: int, drafting: Model) -> None:
    """For what its router chose, and with it the rows for experts in memory; then once for the logits.

    Whatever a card is given it takes while the processor goes on, and one card gives to another.
    """
    spread = replace(ON_CARDS[name], device=DEVICE)
    with made_up_card() as device, spread_model(drafting, spread) as model:
        state, waited = model.new_state(), []
        for token in PROMPT[:4]:
            before = device.n_waits
            step = model.forward(state, [token], "decode").step
            waited.append(device.n_waits - before)
            state.commit(step)
            assert device.n_waits - before == waited[-1]
    assert waited[3] == n_waits  # the first step looks tables up


def test_a_layer_on_a_card_takes_as_many_calls_as_are_planned_for(
    drafting: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one for each product, as Triton makes it, and experts aside."""
    device_of: list[MadeUpCard] = []

    def one_call(*given: Any, **how: Any) -> Tensor:
        before = device_of[0].n_calls
        result = matmul_on_card(*given, **how)
        device_of[0].n_calls = before + 1
        return result

    monkeypatch.setattr(kernels, "matmul_on_card", one_call)
    spread = replace(ON_CARDS["trunk on the card, no expert"], device=DEVICE)
    with made_up_card() as device, spread_model(drafting, spread) as model:
        device_of.append(device)
        state = model.new_state()
        for token in PROMPT[:4]:
            before = device.n_calls
            state.commit(model.forward(state, [token], "decode").step)
    # The release has 20 rounds of six operations in each of two hyper-connections, this model has 5.
    a_layer = (device.n_calls - before) / 8 + 2 * 6 * (20 - 5)
    assert abs(a_layer - CALLS_A_LAYER) < 0.1 * CALLS_A_LAYER


def test_drafting_on_a_card_waits_for_each_stage_and_each_draft(drafting: Model) -> None:
    spread = Spread(memory=3, device=DEVICE, head=True, drafts=True)
    with made_up_card() as device, spread_model(drafting, spread) as model:
        state = model.new_state()
        state.commit(model.forward(state, SHORT[:2], "prefill").step)
        assert model.head is not None
        for _ in range(2):
            before = device.n_waits
            proposal = model.head.propose(state, 5, 4, choose, never)
        assert len(proposal.ids) == 4
        assert device.n_waits - before == model.config.n_mtp_layers + 4


@pytest.mark.parametrize("name", ["all on one card", "first layers and the draft head"])
def test_a_conversation_lies_where_its_layers_are_and_comes_back_from_there(name: str, drafting: Model) -> None:
    """Kept, left for another and taken up again, on cards as in memory."""
    said, sizes = [], []
    for spread in (Spread(drafts=False), replace(ON_CARDS[name], device=DEVICE)):
        with made_up_card() as device, spread_model(drafting, spread) as model:
            kept, resident = KeptStates(model.new_state()), device.live_bytes
            state = kept.state
            state.marks = frozenset({5})
            state.commit(model.forward(state, SHORT, "prefill").step)
            state.commit(model.forward(state, [40], "decode").step)
            kept.keep()
            sizes.append((state.n_bytes, device.live_bytes - resident))
            kept.go_to(kept.find(()))
            state.commit(model.forward(state, [7, 8, 9], "prefill").step)
            kept.keep()
            kept.go_to(kept.find([*SHORT[:5], 1, 2]))
            assert state.n_tokens == 5
            kept.go_to(kept.find([*SHORT, 40, 3], [(len(SHORT), len(SHORT) + 1)]))
            assert state.n_tokens == len(SHORT) + 1
            contents = state.contents()
            assert not any(isinstance(part, OnCard) for part in contents.values())
            said.append((contents, model.forward(state, [3], "decode").logits))
    (in_memory, nothing), (left, on_card) = sizes
    assert left == 0 if name == "all on one card" else 0 < left < in_memory
    assert nothing == 0 < on_card
    (expected, logits), (found, ours) = said
    assert torch.allclose(ours, logits, rtol=1e-4, atol=1e-4)
    for part, values in found.items():
        assert torch.allclose(values.float(), expected[part].float(), rtol=1e-4, atol=1e-4), part


def test_the_planner_has_room_for_what_a_conversation_takes_of_a_card(tiny_config: ModelConfig) -> None:
    """Groups of 64 rows at least, windows and open groups, with nothing computed: a state is only placed."""
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        sizes = footprint(tiny_config, tensor_places(checkpoint.tensors))
    with made_up_card() as device:
        card = torch.device(DEVICE)
        for layers in (range(8), range(3), range(3, 8), (0, 1)):
            state = State(tiny_config)
            state.place(Devices(layers=tuple(card if layer in layers else PROCESSOR for layer in range(8))))
            for source, cache in state.sources.items():
                for rows, width in ((cache.latents, tiny_config.head_dim), (cache.keys, tiny_config.index_head_dim)):
                    for first in range(0, 400 // tiny_config.ratio(source), 20):
                        rows.write(first, torch.zeros(20, width))
            windows = len(layers) * tiny_config.window_size * tiny_config.head_dim * 4  # a prompt's, staged
            open_groups = 2 * 2 * tiny_config.head_dim * 4
            planned = sizes.card_kv_bytes(layers, 400)
            assert 0.6 * planned < device.live_bytes + windows < planned + open_groups, layers
            del state, cache, rows


def test_pieces_hold_every_use_once_and_no_more_rows_than_they_may() -> None:
    chance = random.Random(3)
    for _ in range(50):
        uses = [chance.sample(range(1000), chance.randrange(1, 40)) for _ in range(chance.randrange(1, 9))]
        found: list[list[int]] = [[] for _ in uses]
        for some, places in _pieces(uses, 16):
            assert 0 < len(places) <= 16 and sum(map(len, some.values())) == len(places)
            for index, rows in some.items():
                found[index] += places[list(rows)].tolist()
        assert found == uses


def test_a_long_prompt_takes_no_more_of_a_card_than_is_planned_for_it(tiny_model: Model) -> None:
    """Two layers, the head and experts on the card, more rows than go there at once; what torch expands is aside."""
    assert CARD_ROWS == MOST_ROWS and PASS_ROWS == _ROWS  # the planner's figures are the engine's
    with made_up_card() as device:
        spread = Spread(cards=(4,), warm=True, device=DEVICE, layers=(2, 5), head=True)
        with spread_model(tiny_model, spread) as model:
            resident = device.live_bytes
            rows = MOST_ROWS + 20
            result = model.forward(model.new_state(), [i % 500 for i in range(rows)], "prefill")
            model.streams.cards.settle()  # type: ignore[union-attr]
        planned = _scratch_bytes(model.config, CARD_ROWS) + _stream_bytes(model.config, rows)
        assert 0 < device.peak_bytes - resident <= planned
    assert result.logits.shape == (1, model.config.vocab_size)


def _scratch_bytes(config: ModelConfig, rows: int) -> int:
    """The planner's own figure, by hand: the stream twice, three vectors of the width, the attention half's arrays."""
    attention = 3 * config.n_heads * config.head_dim + config.q_lora_rank + config.o_groups * config.o_lora_rank
    experts = (config.n_activated_experts + 3) * config.dim + 3 * config.moe_inter_dim
    looked_up = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
    stream = config.hc_mult * config.dim
    engram = 2 * looked_up + 4 * stream + config.dim
    return rows * 4 * (stream + 3 * config.dim + max(stream + attention, stream + experts, engram, 3 * stream))


def _stream_bytes(config: ModelConfig, rows: int) -> int:
    """Likewise what lies there whole: the stream, seven vectors of the width, two low-rank queries, ten keys and the
    groups chosen twice.
    """
    width = (config.hc_mult + 7) * config.dim + 2 * config.q_lora_rank + 10 * config.head_dim
    return rows * (4 * width + 16 * config.index_topk)


@pytest.mark.parametrize("n_before", [0, 1], ids=["from the start", "in the middle"])
def test_a_card_too_small_gives_everything_back_to_the_processor(n_before: int, drafting: Model, plain: Said) -> None:
    """The trunk, the output layer, the draft head and the conversation, of which nothing is lost."""
    notices: deque[str] = deque()
    with made_up_card() as device:
        spread = Spread(device=DEVICE, layers=range(8), head=True, drafts=True)
        with spread_model(drafting, spread, notices) as model:
            state = model.new_state()
            if n_before:
                state.commit(model.forward(state, PROMPT[:7], "prefill").step)
                assert not model._trunk.norm.is_cpu and not state.windows[0]._rows.is_cpu
            device.capacity_bytes = device.live_bytes + 1_000  # as if others had taken the rest
            tokens = []
            for ids in (PROMPT[7:], None) if n_before else (PROMPT[:7], PROMPT[7:], None):
                result = model.forward(state, ids or tokens[-1:], "prefill" if ids else "decode")
                state.commit(result.step)
                tokens.append(int(result.logits[-1].argmax()))
            assert all(block.device == PROCESSOR for block in model._trunk.blocks)
            assert model.head is not None and model.head.device == PROCESSOR
            assert state.windows[0]._rows.is_cpu and state.draft is not None and state.draft.keys().is_cpu
    assert tokens[-2:] == plain.tokens[:2]
    assert [text for text in notices if "processor" in text] == [notices[-1]]


def test_a_draft_head_without_room_drafts_on_the_processor(drafting: Model) -> None:
    notices: deque[str] = deque()
    spread = Spread(device=DEVICE, head=True, drafts=True)
    with made_up_card() as device, spread_model(drafting, spread, notices) as model:
        state = model.new_state()
        state.commit(model.forward(state, SHORT, "prefill").step)
        device.capacity_bytes = device.live_bytes + 1_000
        assert model.head is not None
        proposal = model.head.propose(state, 5, 5, choose, never)
        assert model.head.device == PROCESSOR and "processor" in notices[-1]
    with spread_model(drafting, Spread(drafts=False)) as model:
        state = model.new_state()
        state.commit(model.forward(state, SHORT, "prefill").step)
        assert model.head is not None
        assert model.head.propose(state, 5, 5, choose, never).ids == proposal.ids


def test_copies_are_bounded_and_go_on_until_the_card_is_full(tiny_model: Model) -> None:
    expert = sum(view.nbytes for view in _tensors(tiny_model))
    with spread_model(tiny_model, Spread(memory=16, cards=(2,), step_bytes=3 * expert)) as model:
        assert model.streams.cards is not None
        copied = [0]
        state = model.new_state()
        for token in PROMPT:
            state.commit(model.forward(state, [token], "decode").step)
            model.streams.cards.settle()
            (figures,) = model.streams.cards.figures()
            copied.append(figures.n_copied)
            assert figures.n_held <= 16
        assert max(after - before for before, after in pairwise(copied)) == 3
        assert figures.n_held == 16  # two of each of the eight layers


def test_a_card_that_runs_full_keeps_what_fits_and_says_so_once(tiny_model: Model, plain: Said) -> None:
    notices: deque[str] = deque()
    with made_up_card() as device, spread_model(tiny_model, Spread(cards=(16,), device=DEVICE), notices) as model:
        device.capacity_bytes = 2_000_000
        said = greedy(model)
        assert model.streams.cards is not None
        (figures,) = model.streams.cards.figures()
        assert device.live_bytes <= 2_000_000
    assert said.tokens == plain.tokens
    assert 0 < figures.n_slots < figures.n_planned == 128
    (notice,) = (text for text in notices if "card 0" in text)
    assert "computed by the processor" in notice


def test_a_card_may_run_full_again_and_again_while_copies_are_begun(
    tiny_model: Model, plain: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it keeps what it has, and what was chosen for the room given up is left where it is."""
    take, asked = Card.empty, 0

    def empty(card: Card, n_bytes: int) -> Tensor:
        nonlocal asked
        asked += 1
        if asked % 5 == 0:
            raise torch.OutOfMemoryError("no room")
        return take(card, n_bytes)

    monkeypatch.setattr(Card, "empty", empty)
    with spread_model(tiny_model, Spread(cards=(8,))) as model:
        assert equal(greedy(model), plain)
        assert model.streams.cards is not None
        (figures,) = model.streams.cards.figures()
        assert asked > 5 and 0 < figures.n_held <= figures.n_slots < figures.n_planned


def test_a_card_without_memory_for_a_computation_gives_experts_up(
    tiny_model: Model, plain: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every eleventh transfer of rows fails, as on a real card when others took its memory."""
    calls = 0
    bring = card_module.bring

    def failing(x: Tensor, device: torch.device) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 11 == 0:
            raise torch.OutOfMemoryError("made up")
        return bring(x, device)

    monkeypatch.setattr(card_module, "bring", failing)
    notices: deque[str] = deque()
    with spread_model(tiny_model, SPREADS["large card, tiny memory"], notices) as model:
        said = greedy(model)
        assert model.streams.cards is not None
        (figures,) = model.streams.cards.figures()
    assert equal(said, plain)
    assert figures.n_slots < figures.n_planned and figures.n_served > 0
    assert sum("card 0" in text for text in notices) == 1


def test_a_stop_in_the_middle_leaves_both_tiers_whole(tiny_model: Model, plain: Said) -> None:
    with spread_model(tiny_model, Spread(memory=3, cards=(3,))) as model:
        for stop_after in (3, 8, 17, 29):
            asked = 0

            def should_stop(limit: int = stop_after) -> bool:
                nonlocal asked
                asked += 1
                return asked > limit

            state = model.new_state()
            with pytest.raises(Stopped):
                for token in PROMPT:
                    state.commit(model.forward(state, [token], "decode", should_stop=should_stop).step)
            for table in model.streams.experts._slots.tables.values():
                table.check()
        assert equal(greedy(model), plain)
        assert model.streams.cards is not None
        model.streams.cards.settle()
        for table in model.streams.experts._slots.tables.values():
            assert not any(table._pins)  # nothing is lent, nothing in use


def test_a_card_shrinks_between_two_requests_and_never_shows_it(tiny_model: Model, plain: Said) -> None:
    """As when others take its memory: the observer looks in the middle of a forward, before a layer is served."""
    with spread_model(tiny_model, SPREADS["card only"]) as model:
        cards = model.streams.cards
        assert cards is not None
        sizes: list[int] = []

        def shrink(layer: int, experts: Sequence[int], phase: str) -> None:
            (figures,) = cards.figures()
            cards.resize(0, figures.n_slots - 1)
            sizes.append(cards.figures()[0].n_held)

        model.streams.experts._observers = (shrink,)
        assert equal(greedy(model), plain)
    assert sizes[0] <= 127 and sizes[-1] < sizes[0]


def test_observers_are_told_of_the_whole_request(tiny_model: Model) -> None:
    """The usage profile and traces know what was asked for, wherever it was served."""
    seen: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for name in ("memory only", "card only"):
        with spread_model(tiny_model, SPREADS[name]) as model:
            told = seen[name] = []

            def note(
                layer: int, experts: Sequence[int], phase: str, told: list[tuple[int, tuple[int, ...]]] = told
            ) -> None:
                told.append((layer, tuple(experts)))

            model.streams.experts._observers = (note,)
            greedy(model, 2)
    assert seen["memory only"] == seen["card only"] and len(seen["card only"]) == 4 * 8


def test_warming_fills_cards_first_and_memory_with_the_next(tiny_model: Model) -> None:
    with spread_model(tiny_model, Spread(memory=3, cards=(4,))) as model:
        wanted = {layer: list(reversed(range(n))) for layer, n in EVERYTHING.items()}
        n_read = model.streams.warm(wanted, lambda: False)
        cards = model.streams.cards
        assert cards is not None
        for layer in EVERYTHING:
            assert all(cards.holds(ExpertId(layer, expert)) for expert in (15, 14, 13, 12))
            assert not any(cards.holds(ExpertId(layer, expert)) for expert in range(12))
            assert {expert for expert in range(16) if ExpertId(layer, expert) in model.streams.experts} == {11, 10, 9}
        assert n_read == 8 * 7


def test_warming_reads_nothing_for_a_card_that_has_run_full(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    take, left = Card.empty, 8

    def empty(card: Card, n_bytes: int) -> Tensor:
        nonlocal left
        left -= 1
        if left < 0:
            raise torch.OutOfMemoryError("no room")
        return take(card, n_bytes)

    monkeypatch.setattr(Card, "empty", empty)
    with spread_model(tiny_model, Spread(memory=3, cards=(16,))) as model:
        n_read = model.streams.warm(EVERYTHING_RANKED, lambda: False)
        assert model.streams.cards is not None and model.streams.cards.figures()[0].n_slots == 8
    assert n_read <= WAVE_EXPERTS + 8 * 3, "one batch for the card, and what memory has room for"


EVERYTHING_RANKED = {layer: range(n) for layer, n in EVERYTHING.items()}
"""Experts of each layer, hottest first."""


def _tensors(model: Model) -> list[Tensor]:
    (wave,) = model.streams.experts.waves(0, [0], phase="decode")
    weights = wave.experts[0].content
    return [part for m in (weights.w1, weights.w2, weights.w3) for part in (m.weight, m.scale) if part is not None]
