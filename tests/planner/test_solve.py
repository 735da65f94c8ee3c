"""What is asked for, what gives way, and what is refused with the smallest change that would fit."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.planning import read_model
from planner.cards import moved_weights
from planner.errors import BadWish, DoesNotFit
from planner.explain import curve, explain
from planner.facts import Drive, Gpu, MachineFacts, Rates
from planner.footprint import Footprint
from planner.hits import Popularity
from planner.plan import Abilities, Plan, Size, Wishes
from planner.predict import Predictor
from planner.solve import default_reserve, make_plan, popularity
from planner.spreading import best_slots, spread
from tests.planner.released_sizes import released_sizes

GB = 1_000_000_000
ABLE = Abilities(drafts=True)
RATES = Rates(
    memory_bytes_s=50e9, fp4_bytes_s=40e9, fp8_bytes_s=40e9, plain_bytes_s=40e9, multiply_adds_s=500e9, source="given"
)


@pytest.fixture(scope="module")
def sizes() -> Footprint:
    return released_sizes()


def facts(gigabytes: float, *, n_drives: int = 1, rate_bytes_s: float = 4e9, gpus: Sequence[Gpu] = ()) -> MachineFacts:
    drives = tuple(Drive(name=f"d{i}", kind="nvme", rate_bytes_s=rate_bytes_s, source="given") for i in range(n_drives))
    return MachineFacts(
        total_bytes=round(gigabytes * GB),
        available_bytes=round(gigabytes * GB),
        ruled_by="system",
        n_cores=8,
        gpus=tuple(gpus),
        drives=drives,
        rates=RATES,
    )


def ram(gigabytes: float) -> Wishes:
    return Wishes(ram=Size(n_bytes=round(gigabytes * GB)))


def test_every_wish_acts_and_is_kept(sizes: Footprint) -> None:
    here = facts(64)
    plain = make_plan(here, sizes, abilities=ABLE)
    assert make_plan(here, sizes, ram(30), ABLE).ceiling_bytes == 30 * GB
    assert make_plan(here, sizes, Wishes(ram=Size(share=0.5)), ABLE).ceiling_bytes == 32 * GB
    assert make_plan(here, sizes, Wishes(reserve=Size(n_bytes=10 * GB)), ABLE).ceiling_bytes == 54 * GB
    assert make_plan(here, sizes, Wishes(reserve=Size(share=0.25)), ABLE).ceiling_bytes == 48 * GB
    assert make_plan(here, sizes, Wishes(context_tokens=200_000), ABLE).context_tokens == 200_000
    assert make_plan(here, sizes, Wishes(chunk_tokens=96), ABLE).chunk_tokens == 96
    assert make_plan(here, sizes, Wishes(cache_rows=0), ABLE).cache_rows == 0
    assert set(make_plan(here, sizes, Wishes(slots=7), ABLE).slots.values()) == {7}
    assert make_plan(here, sizes, Wishes(depth=3), ABLE).depth == {"d0": 3}
    assert plain.drafting and not make_plan(here, sizes, Wishes(drafting="off"), ABLE).drafting
    for other in (Wishes(context_tokens=200_000), Wishes(drafting="off"), Wishes(cache_rows=0)):
        # What one part gives up or takes, slots take or give up.
        assert make_plan(here, sizes, other, ABLE).n_slots != plain.n_slots


def test_a_ceiling_that_is_asked_for_leaves_no_more_than_is_asked_for(sizes: Footprint) -> None:
    plan = make_plan(facts(64), sizes, ram(63), ABLE)
    assert (plan.ceiling_bytes, plan.reserve_bytes) == (63 * GB, GB)
    both = Wishes(ram=Size(n_bytes=50 * GB), reserve=Size(n_bytes=12 * GB))
    assert make_plan(facts(64), sizes, both, ABLE).reserve_bytes == 12 * GB


def test_the_reserve_has_its_floor_and_its_top() -> None:
    expected = {2: 0.5, 8: 2, 16: 2, 24: 2.4, 64: 6.4, 128: 12.8, 512: 16}
    assert {gigabytes: default_reserve(gigabytes * GB) / GB for gigabytes in expected} == expected


def test_a_machine_that_others_have_filled_still_gives_half_of_what_is_left(sizes: Footprint) -> None:
    """Else a demo of half a gigabyte would be refused on a desktop of 32 GB with 3 GB available."""
    small = replace(sizes, layers=(), stride_bytes=4096)  # 2.1 GB, most of it the head
    busy = replace(facts(32), available_bytes=5 * GB)
    plan = make_plan(busy, small, abilities=Abilities())
    assert (plan.reserve_bytes, plan.ceiling_bytes) == (5 * GB // 2, 5 * GB // 2)


@pytest.mark.parametrize("gigabytes", [10.5, 11, 12, 13, 15, 17, 20, 33, 47.3, 100, 333])
def test_nothing_is_ever_planned_above_the_ceiling(sizes: Footprint, gigabytes: float) -> None:
    plan = make_plan(facts(400), sizes, ram(gigabytes), ABLE)
    assert plan.planned_bytes <= plan.ceiling_bytes == round(gigabytes * GB)
    full = sum(sizes.n_experts(drafting=plan.drafting).values())
    slot = sizes.slot_bytes(1)
    # Nor is a slot left over, unless there is one for every expert.
    assert sum(plan.slots.values()) == full or plan.planned_bytes > plan.ceiling_bytes - slot


def test_the_least_that_runs_is_refused_below_and_planned_at(sizes: Footprint) -> None:
    with pytest.raises(DoesNotFit) as refused:
        make_plan(facts(32), sizes, ram(5), ABLE)
    least = refused.value.needed_bytes
    # Resident weights of 8.5 GB, the program, and a slot for each of forty layers.
    assert 8.5e9 + 40 * 18.8e6 < least < 11e9
    plan = make_plan(facts(32), sizes, Wishes(ram=Size(n_bytes=least)), ABLE)
    assert set(plan.slots.values()) == {1} and plan.spare_slots == 2
    assert any("A token needs 6 experts of a layer and 3 fit" in note for note in plan.notes)
    with pytest.raises(DoesNotFit):
        make_plan(facts(32), sizes, Wishes(ram=Size(n_bytes=least - 1)), ABLE)


def refusal(wishes: Wishes, here: MachineFacts, sizes: Footprint) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as refused:
        make_plan(here, sizes, wishes, ABLE)
    return refused.value


def test_too_many_slots_are_refused_with_how_many_fit(sizes: Footprint) -> None:
    error = refusal(replace(ram(20), slots=100), facts(32), sizes)
    most = int(error.hint.partition("--slots ")[2].rstrip("."))
    assert make_plan(facts(32), sizes, replace(ram(20), slots=most), ABLE)
    assert refusal(replace(ram(20), slots=most + 1), facts(32), sizes)


def test_too_long_a_context_is_refused_with_how_much_fits(sizes: Footprint) -> None:
    error = refusal(replace(ram(12), context_tokens=1_000_000), facts(32), sizes)
    most = int(error.hint.partition("--context ")[2].rstrip("."))
    assert most > 4_096 and make_plan(facts(32), sizes, replace(ram(12), context_tokens=most), ABLE)
    assert refusal(replace(ram(12), context_tokens=most + 2_048), facts(32), sizes)


def test_too_large_a_chunk_is_refused_with_one_that_fits(sizes: Footprint) -> None:
    error = refusal(replace(ram(12), chunk_tokens=8_192), facts(32), sizes)
    assert error.hint == "It fits with --chunk-tokens 32."
    assert make_plan(facts(32), sizes, replace(ram(12), chunk_tokens=32), ABLE)


def test_too_large_a_reserve_is_refused_with_one_that_fits(sizes: Footprint) -> None:
    error = refusal(Wishes(reserve=Size(n_bytes=28 * GB)), facts(32), sizes)
    megabytes = error.hint.partition("--reserve ")[2].rstrip(".")
    size = round(float(megabytes.removesuffix("GB")) * GB)
    assert make_plan(facts(32), sizes, Wishes(reserve=Size(n_bytes=size)), ABLE)


def test_a_machine_that_is_too_small_is_told_by_how_much(sizes: Footprint) -> None:
    error = refusal(Wishes(), facts(8), sizes)
    assert error.needed_bytes > 8 * GB and "GB more would do. Close other programs" in error.hint
    nothing = replace(facts(8), total_bytes=0, available_bytes=0)
    assert refusal(Wishes(), nothing, sizes).ceiling_bytes == 0


def test_thirty_two_gigabytes_run_the_release(sizes: Footprint) -> None:
    """The fit check of another engine charged all experts as resident: "needs 183 GB, you have 48"."""
    plan = make_plan(facts(32), sizes, abilities=ABLE)
    assert min(plan.slots.values()) > 6 and plan.drafting


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (Wishes(context_tokens=2_000_000), "more than the model's"),
        (Wishes(vram=Size(n_bytes=GB)), "--vram has no effect"),
    ],
)
def test_what_no_memory_can_give_is_wrong_use(wishes: Wishes, told: str, sizes: Footprint) -> None:
    with pytest.raises(BadWish, match=told):
        make_plan(facts(64), sizes, wishes, ABLE)
    with pytest.raises(BadWish, match="does not draft"):
        make_plan(facts(64), sizes, Wishes(drafting="on"), Abilities())
    with pytest.raises(BadWish, match="no complete draft head"):
        make_plan(facts(64), replace(sizes, has_draft=False), Wishes(drafting="on"), ABLE)


def test_memory_a_gpu_shares_with_the_processor_is_not_counted_twice(sizes: Footprint) -> None:
    shared = Gpu(name="built in", total_bytes=64 * GB, free_bytes=60 * GB, unified=True)
    both = Abilities(cards=True, drafts=True)
    assert make_plan(facts(64, gpus=[shared]), sizes, abilities=both) == make_plan(facts(64), sizes, abilities=both)


def test_a_card_that_this_version_does_not_use_is_said_and_not_counted(sizes: Footprint) -> None:
    card = Gpu(name="card", total_bytes=24 * GB, free_bytes=24 * GB)
    plan = make_plan(facts(64, gpus=[card]), sizes, abilities=ABLE)
    assert plan.cards == () and any("GPUs are not used" in note for note in plan.notes)
    assert plan.slots == make_plan(facts(64), sizes, abilities=ABLE).slots


def test_a_card_is_used_only_where_it_was_asked_for_as_none_has_run_it(sizes: Footprint) -> None:
    card = Gpu(name="card", total_bytes=24 * GB, free_bytes=23 * GB)
    asked = Abilities(cards=True, cards_unasked=False, drafts=True)
    silent = make_plan(facts(64, gpus=[card]), sizes, abilities=asked)
    assert silent.cards == () and silent.slots == make_plan(facts(64), sizes, abilities=ABLE).slots
    assert any("only when --vram asks" in note for note in silent.notes)
    wished = make_plan(facts(64, gpus=[card]), sizes, Wishes(vram=Size(n_bytes=10 * GB)), asked)
    assert wished.cards[0].ceiling_bytes == 10 * GB and len(wished.cards[0].layers) == 40
    assert any("No card has run this version" in note for note in wished.notes)
    here = {part.name: part.n_bytes for part in wished.parts if part.place == "card 0"}
    assert sum(here.values()) <= 10 * GB and sum(wished.slots.values()) > sum(silent.slots.values())


def test_a_card_is_expected_to_answer_faster_and_never_more_than_its_bytes_allow(sizes: Footprint) -> None:
    """Beside eight cores at 40 GB/s, a card that goes through weights at 150 GB/s and takes all of them."""
    card = Gpu(name="card", total_bytes=24 * GB, free_bytes=23 * GB)
    both = Abilities(cards=True, drafts=True)
    with_it, without = facts(64, gpus=[card]), facts(64)
    laws = popularity(sizes, {}, drafting=False)
    plans = [make_plan(here, sizes, Wishes(drafting="off"), both) for here in (with_it, without)]
    fast, slow = (
        Predictor(here, sizes, plan, laws).answer(1) for here, plan in zip((with_it, without), plans, strict=True)
    )
    on_card = next(phase for phase in fast.phases if phase.name == "trunk on cards")
    assert on_card.n_bytes == moved_weights(plans[0].cards, sizes).n_bytes == sizes.trunk.n_bytes + sizes.head.n_bytes
    # To say 500 things a layer takes 5 us each, to wait for it 60 us, and again for the output layer.
    assert on_card.seconds == pytest.approx(on_card.n_bytes / 150e9 + 40 * (500 * 5e-6 + 60e-6) + 60e-6)
    assert fast.tokens_s > slow.tokens_s and fast.hit_rate > slow.hit_rate
    assert sum(p.n_bytes for p in fast.phases if p.name in ("trunk", "head", "trunk on cards")) == pytest.approx(
        sum(p.n_bytes for p in slow.phases if p.name in ("trunk", "head"))
    )


def test_the_draft_head_goes_onto_the_card_with_the_output_layer_where_it_is_asked_for(sizes: Footprint) -> None:
    """Left to itself the engine drafts nothing with a card, so nothing is kept there for it."""
    here = facts(64, gpus=[Gpu(name="card", total_bytes=24 * GB, free_bytes=23 * GB)])
    both = Abilities(cards=True, drafts=True)
    on, auto = (make_plan(here, sizes, Wishes(drafting=wish), both) for wish in ("on", "auto"))
    assert on.cards[0].drafts and not auto.cards[0].drafts
    parts = [{(part.place, part.name): part.n_bytes for part in plan.parts} for plan in (on, auto)]
    assert parts[0]["card 0", "draft head"] == parts[1]["RAM", "draft head"] == sizes.draft.n_bytes
    assert ("RAM", "draft head") not in parts[0] and ("card 0", "draft head") not in parts[1]
    laws = popularity(sizes, {}, drafting=True)
    drafted = [Predictor(here, sizes, plan, laws).answer(10, n_rounds=10).phases for plan in (on, auto)]
    seconds = [next(phase.seconds for phase in phases if phase.name == "draft") for phases in drafted]
    assert seconds[0] != seconds[1]


def test_a_longer_conversation_leaves_a_card_fewer_layers_and_a_card_with_none_keeps_nothing_of_it(
    sizes: Footprint,
) -> None:
    both, plans = Abilities(cards=True, drafts=True), []
    for context, free in ((8_192, 8 * GB), (262_144, 8 * GB), (8_192, 2_250_000_000)):
        here = facts(96, gpus=[Gpu(name="card", total_bytes=24 * GB, free_bytes=free)])
        plans.append(make_plan(here, sizes, Wishes(context_tokens=context), both))
    layers = [len(plan.cards[0].layers) for plan in plans]
    kept = [sum(p.n_bytes for p in plan.parts if (p.place, p.name) == ("card 0", "conversation")) for plan in plans]
    assert layers[0] > layers[1] > layers[2] == kept[2] == 0
    for plan, n_bytes in zip(plans[:2], kept, strict=False):
        assert n_bytes == sizes.card_kv_bytes(plan.cards[0].layers, plan.context_tokens) > 0


def skewed(n: int, hot: float) -> list[float]:
    """A few experts with `hot` of the traffic, the rest alike."""
    return [hot / 10] * 10 + [(1 - hot) / (n - 10)] * (n - 10)


def test_layers_get_slots_by_their_use_when_it_pays(sizes: Footprint) -> None:
    """Half of the layers ask for ten experts almost always, the others for any: the latter need the room."""
    shares = {layer: skewed(384, 0.99 if layer % 2 else 10 / 384) for layer in range(40)}
    uneven = make_plan(facts(48), sizes, abilities=ABLE, shares=shares)
    even = make_plan(facts(48), sizes, abilities=ABLE)
    assert sum(uneven.slots.values()) == sum(even.slots.values())
    assert max(uneven.slots[layer] for layer in range(1, 40, 2)) < min(uneven.slots[layer] for layer in range(0, 40, 2))
    assert min(uneven.slots.values()) >= min(even.slots.values()) // 4  # never starved: a profile is of the past
    assert any("by what your prompts use" in note for note in uneven.notes)

    def found(plan: Plan) -> float:
        laws = popularity(sizes, shares, drafting=True)
        return Predictor(facts(48), sizes, plan, laws).answer(1).hit_rate

    assert found(uneven) >= found(even) + 0.01
    alike = {layer: skewed(384, 0.5) for layer in range(40)}
    assert max(make_plan(facts(48), sizes, abilities=ABLE, shares=alike).slots.values()) - min(even.slots.values()) <= 1


def test_a_layer_whose_experts_are_all_on_a_card_needs_no_slot_whatever_was_watched() -> None:
    """A model so small that a card takes all of it, with a profile that gives layers slots by their use."""
    small = read_model(Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint").footprint
    config = small.config
    shares = {layer: skewed(config.n_routed_experts, 0.9) for layer in range(config.n_layers)}
    here = facts(4, gpus=[Gpu(name="card", total_bytes=24 * GB, free_bytes=24 * GB)])
    wishes, able = Wishes(vram=Size(share=0.9)), Abilities(cards=True, drafts=True)
    plan = make_plan(here, small, wishes, able, shares)
    on_card = {layer: n for card in plan.cards for layer, n in card.slots.items()}
    whole = [layer for layer in range(config.n_layers) if on_card.get(layer) == config.n_routed_experts]
    assert whole and all(plan.slots[layer] == 0 for layer in whole)
    assert explain(here, small, plan, wishes, able, shares).answer.hit_rate == 1


def test_spreading_is_even_and_whole() -> None:
    assert spread(10, {0: 9, 1: 9, 2: 9}) == {0: 4, 1: 3, 2: 3}
    assert spread(10, {0: 2, 1: 9, 2: 9}) == {0: 2, 1: 4, 2: 4}
    assert spread(99, {0: 2, 1: 9}) == {0: 2, 1: 9}
    assert spread(0, {0: 2, 1: 9}) == {0: 1, 1: 1}


def test_best_slots_are_best_by_trying_all() -> None:
    curves = {0: Popularity.zipf(6, 2, 1.5).by_slots(), 1: Popularity.zipf(6, 2, 0.2).by_slots()}
    best = best_slots(7, curves, {0: 1, 1: 1})
    tried = max(range(1, 7), key=lambda n: float(curves[0][n] + curves[1][7 - n]))
    assert best == {0: tried, 1: 7 - tried}


def test_a_token_costs_its_bytes_over_the_rates(sizes: Footprint) -> None:
    """All experts in memory: 240 of 18.8 MB and 8.5 GB of trunk and head at 40 GB/s, and no waiting."""
    plan = make_plan(facts(400), sizes, Wishes(drafting="off"), ABLE)
    assert plan.slots == dict.fromkeys(range(40), 384)
    token = Predictor(facts(400), sizes, plan, popularity(sizes, {}, drafting=False)).answer(1)
    phases = {phase.name: phase.seconds for phase in token.phases}
    assert token.hit_rate == 1 and phases["waiting for drives"] == 0
    assert phases["experts"] == pytest.approx(240 * 18_800_640 / 40e9)
    assert phases["trunk"] + phases["head"] == pytest.approx(8.52e9 / 40e9, rel=0.01)


def test_waiting_is_missed_bytes_over_all_drives(sizes: Footprint) -> None:
    for n_drives in (1, 2):
        here = facts(32, n_drives=n_drives)
        plan = make_plan(here, sizes, Wishes(drafting="off"), ABLE)
        token = Predictor(here, sizes, plan, popularity(sizes, {}, drafting=False)).answer(1)
        waited = next(phase for phase in token.phases if phase.name == "waiting for drives")
        missed = 240 * (1 - token.hit_rate) * 18_800_640
        assert waited.seconds == pytest.approx(missed / (n_drives * 4e9), rel=1e-3)
        assert token.read_bytes == pytest.approx(missed, rel=1e-6)


def test_a_prompt_reads_each_expert_once_a_chunk(sizes: Footprint) -> None:
    """A thousand tokens ask for nearly all 384 experts of a layer; in chunks of 100 they are read many times over."""
    here, laws = facts(32), popularity(sizes, {}, drafting=False)
    whole = make_plan(here, sizes, Wishes(drafting="off", chunk_tokens=1_000), ABLE)
    parts = make_plan(here, sizes, Wishes(drafting="off", chunk_tokens=100), ABLE)
    once = Predictor(here, sizes, whole, laws).prompt(1_000)
    often = Predictor(here, sizes, parts, laws).prompt(1_000)
    assert 0.8 * sizes.experts_bytes < once.read_bytes <= sizes.experts_bytes
    assert often.read_bytes > 3 * once.read_bytes and often.tokens_s < once.tokens_s


def test_more_of_anything_is_never_slower(sizes: Footprint) -> None:
    speeds = [speed for _, speed in curve(facts(64), sizes, Wishes(), ABLE, {}, 128 * GB)]
    assert len(speeds) == 16 and all(b >= a * 0.999 for a, b in pairwise(speeds))
    here, wishes = facts(64), Wishes()
    told = explain(here, sizes, make_plan(here, sizes, wishes, ABLE), wishes, ABLE, {})
    by_change = {advice.change: advice for advice in told.advice}
    assert by_change["16.0 GB more memory"].gain > 0.02 and by_change["one more drive as fast"].gain > 0.02
    assert by_change["8.0 GB more VRAM"].tokens_s is None
    assert "computes on the processor only" in by_change["8.0 GB more VRAM"].sentence
    card = Abilities(cards=True, drafts=True)
    told = explain(here, sizes, make_plan(here, sizes, wishes, card), wishes, card, {})
    assert next(a for a in told.advice if "VRAM" in a.change).tokens_s is not None


def test_no_figure_is_said_to_replace_the_same_figure(sizes: Footprint) -> None:
    n_said = 0
    for rate_bytes_s in (4e9, 40e9, 80e9, 160e9):  # the faster the drive, the less more memory buys
        here, wishes = facts(64, rate_bytes_s=rate_bytes_s), Wishes()
        told = explain(here, sizes, make_plan(here, sizes, wishes, ABLE), wishes, ABLE, {})
        for advice in told.advice:
            found = re.search(r"(\S+) instead of (\S+) tokens", advice.sentence)
            assert found is None or found[1] != found[2], advice.sentence
            n_said += found is not None
    assert n_said >= 4


def test_what_is_explained_is_what_is_planned(sizes: Footprint) -> None:
    here = facts(48, n_drives=2)
    plan = make_plan(here, sizes, abilities=ABLE)
    told = explain(here, sizes, plan, Wishes(), ABLE, {})
    memory, drives = told.places
    assert [(row.label, row.n_bytes) for row in memory.rows] == [(part.name, part.n_bytes) for part in plan.parts]
    assert memory.ceiling_bytes == plan.ceiling_bytes >= sum(row.n_bytes for row in memory.rows)
    # 289 GB of experts and 203 GB of tables with the embedding's 1.3 GB: the published figures.
    assert [round(row.n_bytes / 1e9) for row in drives.rows] == [289, 204]
    assert "4.0 GB left" not in memory.note and "48.0 GB available" in memory.note
