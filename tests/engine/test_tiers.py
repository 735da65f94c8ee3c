"""Where an expert lies never shows in what is said; cards that run out of memory; copies that never disturb a step.

On the processor a tier computes by the same kernels, so what is compared is every bit. On the made-up card torch
computes, so tokens are compared, and values to tolerance: that is also what a real card can promise.
"""

import random
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import Stopped
from engine.kernels import Matrix
from engine.kernels.card_path import MOST_ROWS
from engine.kernels.fused import _ROWS
from engine.model import Model
from engine.tiers.card import Card, _pieces
from planner.cards import CARD_ROWS, PASS_ROWS, TRIPS_A_LAYER
from storage.ids import ExpertId
from storage.waves import WAVE_EXPERTS
from tests.engine.made_up_card import DEVICE, OnCard, made_up_card
from tests.engine.tiering import EVERYTHING, PROMPT, SPREADS, Said, Spread, greedy, spread_model


@pytest.fixture(scope="module")
def plain(tiny_model: Model) -> Said:
    """What is said with every expert in memory and no card."""
    return greedy(tiny_model)


def equal(one: Said, other: Said) -> bool:
    return one.tokens == other.tokens and all(map(torch.equal, one.logits, other.logits))


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


def test_on_a_made_up_device_the_tokens_are_the_same(tiny_model: Model, plain: Said) -> None:
    with made_up_card() as device:
        with spread_model(tiny_model, replace(SPREADS["two cards"], device=DEVICE)) as model:
            said = greedy(model, 2)
            assert model.streams.cards is not None
            assert all(card.n_served for card in model.streams.cards.figures())
            assert device.live_bytes > 0
        assert said.tokens == plain.tokens[:2]
        for ours, theirs in zip(said.logits, plain.logits, strict=False):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
            assert not isinstance(ours, OnCard)


@pytest.mark.parametrize("layers", [range(8), (0, 3, 5)], ids=["all layers", "some layers"])
def test_with_the_trunk_on_a_made_up_device_the_tokens_are_the_same(
    layers: Sequence[int], tiny_model: Model, plain: Said
) -> None:
    """Layers 1 and 4 have an n-gram table, 2, 4 and 5 compress, 2, 4, 5 and 7 select; the head goes along."""
    with made_up_card() as device:
        spread = Spread(memory=4, cards=(6,), device=DEVICE, layers=layers, head=True)
        with spread_model(tiny_model, spread) as model:
            resident = device.live_bytes
            said = greedy(model, 2)
            before, state = device.n_waits, model.new_state()
            model.forward(state, PROMPT[:1], "decode")
            # Low-rank queries, heads, keys, index queries, n-gram rows, output, shared and routed experts, each of
            # those layers that have it; the output layer once.
            assert 0 < device.n_waits - before <= TRIPS_A_LAYER * len(layers) + 8 - len(layers) + 1
        fp8 = sum(_fp8_bytes(model._trunk.blocks[layer]) for layer in layers)
        assert resident >= fp8 + model._trunk.head.weight.nbytes > 300_000
    assert said.tokens == plain.tokens[:2]
    for ours, theirs in zip(said.logits, plain.logits, strict=False):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4) and not isinstance(ours, OnCard)


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
        planned = _scratch_bytes(model.config, CARD_ROWS)
        assert 0 < device.peak_bytes - resident <= planned
    assert result.logits.shape == (1, model.config.vocab_size)


def _scratch_bytes(config: ModelConfig, rows: int) -> int:
    """The planner's own figure, by hand: the stream, three vectors of the width and the attention half's arrays."""
    attention = 3 * config.n_heads * config.head_dim + config.q_lora_rank + config.o_groups * config.o_lora_rank
    experts = (config.n_activated_experts + 3) * config.dim + 3 * config.moe_inter_dim
    looked_up = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
    stream = config.hc_mult * config.dim
    engram = 2 * looked_up + 4 * stream + config.dim
    return rows * 4 * (stream + 3 * config.dim + max(attention, experts, engram, 3 * stream))


def test_a_card_too_small_for_the_trunk_leaves_it_with_the_processor(tiny_model: Model, plain: Said) -> None:
    notices: deque[str] = deque()
    with made_up_card() as device:
        spread = Spread(cards=(4,), device=DEVICE, layers=range(8), head=True)
        with spread_model(tiny_model, spread, notices) as model:
            device.capacity_bytes = device.live_bytes + 1_000  # as if others had taken the rest
            said = greedy(model, 2)
            assert all(block.attention.wq_b.weight.is_cpu for block in model._trunk.blocks)
    assert said.tokens == plain.tokens[:2] and "processor" in notices[-1]


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
    """Every fifth transfer of rows fails, as on a real card when others took its memory."""
    calls = 0
    put = Card.put

    def failing(self: Card, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise torch.OutOfMemoryError("made up")
        return put(self, x)

    monkeypatch.setattr(Card, "put", failing)
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


def _fp8_bytes(weights: object) -> int:
    """Bytes of a record's fp8 matrices."""
    if isinstance(weights, Matrix):
        return weights.weight.nbytes if weights.kind == "fp8" else 0
    return sum(_fp8_bytes(getattr(weights, f.name)) for f in fields(weights)) if is_dataclass(weights) else 0


def _tensors(model: Model) -> list[Tensor]:
    (wave,) = model.streams.experts.waves(0, [0], phase="decode")
    weights = wave.experts[0].content
    return [part for m in (weights.w1, weights.w2, weights.w3) for part in (m.weight, m.scale) if part is not None]
