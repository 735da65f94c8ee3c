"""Seconds of a forward and of a round of drafts, held against arithmetic done by hand from the released widths."""

import pytest

from planner.facts import Drive, MachineFacts, Rates
from planner.footprint import Footprint
from planner.plan import Abilities, Plan, Wishes
from planner.predict import DRAFTING, DRAW_S, WAITING, Forecast, Predictor
from planner.solve import make_plan, popularity
from tests.planner.released_sizes import released_sizes

GB = 10**9
ABLE = Abilities(drafts=True)
EXPERT = 18_800_640
"""Bytes of an expert: 3 x 5120 x 2304 weights, two a byte, and a scale for 32."""
EXPERT_ADDS = 3 * 5120 * 2304


def facts(ram_gb: int, *, multiply_adds_s: float = 1e15) -> MachineFacts:
    """Everything is consumed at 40 GB/s, multiplying is as good as free unless said otherwise."""
    rates = Rates(
        memory_bytes_s=40e9, fp4_bytes_s=40e9, fp8_bytes_s=40e9, plain_bytes_s=40e9, multiply_adds_s=multiply_adds_s,
        source="given",
    )  # fmt: skip
    drive = Drive(name="d", kind="nvme", rate_bytes_s=4e9, source="given")
    return MachineFacts(
        total_bytes=ram_gb * GB, available_bytes=ram_gb * GB, ruled_by="system", n_cores=8, drives=(drive,), rates=rates
    )


@pytest.fixture(scope="module")
def sizes() -> Footprint:
    return released_sizes()


@pytest.fixture(scope="module")
def drafting(sizes: Footprint) -> Plan:
    plan = make_plan(facts(400), sizes, Wishes(drafting="on"), ABLE)
    assert set(plan.slots.values()) == {384, 128}  # everything is in memory
    return plan


def predictor(here: MachineFacts, sizes: Footprint, plan: Plan) -> Predictor:
    return Predictor(here, sizes, plan, popularity(sizes, {}, drafting=plan.drafting))


def seconds(forecast: Forecast) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in forecast.phases}


def test_many_rows_cost_their_multiply_adds_where_those_take_longer(sizes: Footprint, drafting: Plan) -> None:
    """Six rows of six experts in 40 layers are 1,440 products of 35.4 million weights, whoever shares the bytes."""
    slow = facts(400, multiply_adds_s=80e9)
    rows = 6
    found = seconds(predictor(slow, sizes, drafting).answer(1, rows=rows))
    assert found["experts"] == pytest.approx(rows * 6 * 40 * EXPERT_ADDS / 80e9)
    assert found["head"] == pytest.approx(rows * 129_280 * 5120 / 80e9, rel=1e-4)
    alone = seconds(predictor(slow, sizes, drafting).answer(1))
    assert alone["experts"] == pytest.approx(240 * EXPERT / 40e9)  # 113 ms of bytes, 106 ms of multiplying


def test_a_token_is_drawn_from_every_row_that_may_be_an_answer(sizes: Footprint, drafting: Plan) -> None:
    """129,280 logits each: a row that verifies a draft is drawn from like the first; of a prompt's only the last is."""
    of = predictor(facts(400), sizes, drafting)
    one, six = (seconds(of.answer(1, rows=rows))["other"] for rows in (1, 6))
    assert six - one == pytest.approx(5 * 129_280 * DRAW_S)
    assert seconds(of.prompt(1_000))["other"] == pytest.approx(one)


def test_a_round_of_drafts_is_its_weights_the_output_layer_and_its_experts(sizes: Footprint, drafting: Plan) -> None:
    with_drafts = predictor(facts(400), sizes, drafting).answer(10, rows=4.0, n_rounds=7)
    without = predictor(facts(400), sizes, drafting).answer(10, rows=4.0)
    n_drafted = (with_drafts.n_asked - without.n_asked) / 7  # of three stages, for five rows of three experts
    assert 3 * 3 <= n_drafted <= 3 * 5 * 3
    head_bytes = 2 * 129_280 * 5120
    a_round = (714e6 + head_bytes + n_drafted * EXPERT) / 40e9  # 714 MB: the draft head's own, by its headers
    assert seconds(with_drafts)[DRAFTING] == pytest.approx(7 * a_round, rel=0.01)
    assert {**seconds(with_drafts), DRAFTING: 0.0} == {**seconds(without), DRAFTING: 0.0}
    assert with_drafts.arithmetic_s == without.arithmetic_s  # what a turn's factor is learnt from
    assert with_drafts.tokens_s < without.tokens_s and with_drafts.hit_rate == 1


def test_drafted_experts_that_are_not_in_memory_are_read(sizes: Footprint) -> None:
    here = facts(32)
    plan = make_plan(here, sizes, Wishes(drafting="on"), ABLE)
    warm, cold = (
        predictor(here, sizes, plan).answer(10, rows=4.0, n_rounds=7, fresh_rows=rows) for rows in (None, 200)
    )
    plain = predictor(here, sizes, plan).answer(10, rows=4.0)
    read = warm.read_bytes - plain.read_bytes
    assert 0 < read < (warm.n_asked - plain.n_asked) * EXPERT
    assert seconds(warm)[DRAFTING] > read / 4e9  # those reads are waited for in the draft head, and counted there
    assert seconds(warm)[WAITING] == pytest.approx(seconds(plain)[WAITING])
    assert seconds(cold)[DRAFTING] > seconds(warm)[DRAFTING]
