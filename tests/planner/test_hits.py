"""The hit model, held against recorded and made-up requests replayed through the slot tables a run uses."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from planner.hits import Popularity
from storage.policy import DEFAULT_POLICY
from storage.replay import replay
from storage.synthetic import synthetic_requests
from storage.trace import Request, TraceReader

TRACE = Path(__file__).parents[1] / "data" / "demo-routing.trace"


@cache
def recorded() -> tuple[tuple[Request, ...], dict[int, int], int]:
    """The demo model's routing, its experts a layer and how many a token uses."""
    reader = TraceReader(TRACE)
    requests = tuple(request for request in reader if request.phase == "decode")
    return requests, dict(reader.n_experts), len(requests[0].experts)


def test_every_step_asks_for_as_many_experts_as_it_uses() -> None:
    for law in (Popularity.zipf(384, 6), Popularity.watched([9, 1, 1, 0, 0, 0, 0, 0], 3), Popularity.zipf(4, 9)):
        assert sum(law.chances) == pytest.approx(law.n_used, rel=1e-6)
        assert all(0 < chance <= 1 for chance in law.chances)


def test_hits_grow_with_slots_by_ever_less_up_to_all() -> None:
    law = Popularity.zipf(384, 6)
    curve = law.by_slots()
    gains = np.diff(curve)
    assert curve[0] == pytest.approx(0, abs=1e-9) and curve[-1] == 6
    assert (gains > 0).all() and (np.diff(gains[:-2]) < 1e-3).all()
    assert law.hits(384) == pytest.approx(1, abs=0.02)


def test_equal_popularity_finds_what_the_share_of_slots_says() -> None:
    """With all experts alike, a table of a quarter of them holds a quarter of what is asked for."""
    law = Popularity.zipf(384, 6, exponent=0.0)
    for n_slots in (24, 96, 192):
        assert law.hits(n_slots) == pytest.approx(n_slots / 384, abs=0.01)


@pytest.mark.parametrize("n_slots", [12, 24, 48, 96, 192])
def test_the_law_meets_made_up_requests_of_released_width(n_slots: int) -> None:
    """The exponent of the law is fitted here: within 3 points over a sixteenfold range of sizes."""
    n_experts = dict.fromkeys(range(2), 384)
    requests = list(synthetic_requests(1, n_layers=2, n_turns=6))
    found = replay(requests, n_experts, policy=DEFAULT_POLICY, slots_per_layer=n_slots, spare_slots=16).decode.hit_rate
    assert Popularity.zipf(384, 6).hits(n_slots) == pytest.approx(found, abs=0.03)


@pytest.mark.parametrize("n_slots", [8, 16, 24])
def test_a_profile_of_earlier_turns_meets_later_ones(n_slots: int) -> None:
    """Shares counted in the first half of the recorded trace, judged by the second half: within 4 points."""
    requests, n_experts, n_used = recorded()
    half = len(requests) // 2
    counts = {layer: np.zeros(n) for layer, n in n_experts.items()}
    for request in requests[:half]:
        counts[request.layer][list(request.experts)] += 1
    expected = np.mean([Popularity.watched(list(some), n_used).hits(n_slots) for some in counts.values()])
    found = replay(requests[half:], n_experts, policy=DEFAULT_POLICY, slots_per_layer=n_slots).decode.hit_rate
    assert expected == pytest.approx(found, abs=0.04)


def test_a_cold_start_misses_more_and_comes_to_the_warm_rate() -> None:
    law = Popularity.zipf(384, 6)
    warm = law.hits(48)
    short, long = law.hits_after(48, 0, 4), law.hits_after(48, 0, 2_000)
    assert short < 0.5 * warm and long == pytest.approx(warm, abs=0.01)


@pytest.mark.parametrize("prompt_rows", [1, 300])
def test_the_first_answer_meets_a_replay_from_empty_slots(prompt_rows: int) -> None:
    """Independent draws by the law itself, so that only the arithmetic of the start is judged."""
    law, random = Popularity.zipf(96, 4), np.random.default_rng(5)
    # A scan keeps the lowest numbers it read, so which numbers are popular is drawn too.
    weights = random.permutation(-np.log1p(-np.asarray(law.chances)))

    def drawn() -> tuple[int, ...]:
        return tuple(np.argsort(random.exponential(size=96) / weights)[:4].tolist())

    rates = []
    for _ in range(30):
        prompt = sorted({expert for _ in range(prompt_rows) for expert in drawn()})
        requests = [Request(step=0, phase="prefill", layer=0, experts=tuple(prompt))]
        requests += [Request(step=i, phase="decode", layer=0, experts=drawn()) for i in range(1, 25)]
        rates.append(replay(requests, {0: 96}, policy="lru", slots_per_layer=24).decode.hit_rate)
    assert law.hits_after(24, prompt_rows, 24) == pytest.approx(float(np.mean(rates)), abs=0.05)
