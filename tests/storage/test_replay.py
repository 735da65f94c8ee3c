"""Replays: counts worked out by hand, and the made-up trace they are tried on."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from storage.policy import DEFAULT_POLICY, POLICIES
from storage.replay import fewest_misses, replay
from storage.synthetic import synthetic_requests
from storage.trace import Request, TraceReader

DEMO_ROUTING = Path(__file__).parents[1] / "data" / "demo-routing.trace"
EIGHT = {0: 8}


def decode(*steps: str, layer: int = 0) -> list[Request]:
    return [Request(step=i, phase="decode", layer=layer, experts=tuple(map(int, step))) for i, step in enumerate(steps)]


def test_lru_misses_are_those_worked_out_by_hand() -> None:
    # slots of 3:      0 1    2     0     3 (out: 1)  1 (out: 2)
    requests = decode("01", "2", "0", "3", "1")
    result = replay(requests, EIGHT, policy="lru", slots_per_layer=3)
    assert (result.decode.n_steps, result.decode.n_requests, result.decode.n_misses) == (5, 6, 5)
    assert result.decode.misses_per_step == 1.0
    assert result.decode.hit_rate == pytest.approx(1 / 6)
    assert result.prefill.n_requests == 0 and result.prefill.hit_rate == 0.0


def test_layers_are_apart_and_a_step_counts_once() -> None:
    requests = [Request(step=i, phase="decode", layer=layer, experts=(1,)) for i in range(2) for layer in (0, 1)]
    result = replay(requests, {0: 8, 1: 8}, policy="lru", slots_per_layer=1)
    assert (result.decode.n_steps, result.decode.n_requests, result.decode.n_misses) == (2, 4, 2)


def test_phases_are_counted_apart() -> None:
    requests = [Request(step=0, phase="prefill", layer=0, experts=tuple(range(8))), *decode("01", "01")]
    result = replay(requests, EIGHT, policy="lru", slots_per_layer=8)
    assert (result.prefill.n_misses, result.decode.n_misses) == (8, 0)


def test_a_long_prefill_costs_decoding_nothing_when_slots_are_lent() -> None:
    hot = decode(*["0123"] * 3)
    scan = [Request(step=9, phase="prefill", layer=0, experts=tuple(range(8)))]
    requests = [*hot, *scan, *hot]
    assert replay(requests, EIGHT, policy="lru", slots_per_layer=4, spare_slots=4).decode.n_misses == 4
    assert replay(requests, EIGHT, policy="lru", slots_per_layer=4).decode.n_misses > 4


def test_knowing_the_future_is_the_fewest_misses_there_can_be() -> None:
    # slots of 2:      0     1     2 keeps 0  0     2     1
    requests = decode("0", "1", "2", "0", "2", "1")
    assert fewest_misses(requests, EIGHT, slots_per_layer=2).n_misses == 4
    made_up = [request for request in synthetic_requests(1, n_layers=2, n_turns=2) if request.phase == "decode"]
    for slots in (6, 30, 120):
        best = fewest_misses(made_up, dict.fromkeys(range(2), 384), slots_per_layer=slots)
        for policy in POLICIES:
            result = replay(made_up, dict.fromkeys(range(2), 384), policy=policy, slots_per_layer=slots)
            assert result.decode.n_requests == best.n_requests
            assert result.decode.n_misses >= best.n_misses


def test_the_made_up_trace_repeats_by_its_seed_and_looks_like_routing() -> None:
    requests = list(synthetic_requests(5, n_layers=2, n_turns=3))
    assert requests == list(synthetic_requests(5, n_layers=2, n_turns=3))
    assert requests != list(synthetic_requests(6, n_layers=2, n_turns=3))
    assert [request.phase for request in requests].count("prefill") == 6
    assert all(len(set(r.experts)) == len(r.experts) == 6 for r in requests if r.phase == "decode")
    assert all(later.step >= earlier.step for earlier, later in pairwise(requests))
    uses = Counter(expert for r in requests if r.phase == "decode" and r.layer == 0 for expert in r.experts)
    top_quarter = sum(n for _, n in uses.most_common(96)) / uses.total()
    assert 0.5 < top_quarter < 0.8  # the bundled demo model: 0.55 to 0.66 by layer


def test_the_default_policy_reads_the_fewest_experts_on_the_demo_models_routing() -> None:
    """Recorded while it answered 26 questions; the figures are those of `artesian bench cache --trace` on this file."""
    trace = TraceReader(DEMO_ROUTING)
    requests = list(trace)
    for slots, at_most in ((8, 12.93), (16, 5.99)):
        misses = {
            policy: replay(requests, trace.n_experts, policy=policy, slots_per_layer=slots, spare_slots=8).decode
            for policy in POLICIES
        }
        best = misses[DEFAULT_POLICY].misses_per_step
        assert best == min(tally.misses_per_step for tally in misses.values())
        assert best == pytest.approx(at_most, abs=0.005)
        assert best < 0.89 * misses["lru"].misses_per_step


def test_the_default_policy_holds_on_the_made_up_trace() -> None:
    """Never worse than LRU, and within 3% of the fewest misses of all policies, at every size."""
    requests = list(synthetic_requests(1, n_layers=1))
    for slots in (12, 24, 48, 96, 192):
        misses = {
            policy: replay(requests, {0: 384}, policy=policy, slots_per_layer=slots).decode.n_misses
            for policy in POLICIES
        }
        assert misses[DEFAULT_POLICY] <= misses["lru"]
        assert misses[DEFAULT_POLICY] <= 1.03 * min(misses.values())
