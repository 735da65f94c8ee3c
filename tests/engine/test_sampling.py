"""Sampling against plain loops over Python floats, exact draws, and chi-square counts."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, LogitsError, SamplerSettingsError
from engine.sampler_settings import SamplerSettings, default_settings, require_valid
from engine.sampling import Sampler

DATA = Path(__file__).parents[1] / "data"


def plain_distribution(logits: list[float], chosen: SamplerSettings) -> list[float]:
    """The documented order, on lists: temperature, top-k, top-p, min-p, renormalised; ranked by (-p, id)."""
    best = max(logits)
    weights = [math.exp((logit - best) / chosen.temperature) for logit in logits]
    probs = [weight / math.fsum(weights) for weight in weights]
    ranked = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    if chosen.top_k:
        ranked = ranked[: chosen.top_k]
    total, kept, before = math.fsum(probs[token] for token in ranked), [], 0.0
    for token in ranked:
        if before / total < chosen.top_p or chosen.top_p == 1:
            kept.append(token)
        before += probs[token]
    kept = [token for token in kept if probs[token] >= chosen.min_p * probs[kept[0]]]
    total = math.fsum(probs[token] for token in kept)
    return [probs[token] / total if token in kept else 0.0 for token in range(len(probs))]


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(st.integers(-12, 12), min_size=1, max_size=40),  # integers, so that ties are common
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.123, 0.5017, 0.9, 0.95, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.0517, 0.5, 1.0]),
)
def test_the_distribution_equals_the_plain_one(
    logits: list[int], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    chosen = SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = Sampler(chosen).distribution(torch.tensor(logits, dtype=torch.float32))
    expected = torch.tensor(plain_distribution([float(logit) for logit in logits], chosen), dtype=torch.float64)
    # A set edge may fall either way when the weight meets top_p to the last bit; the values keep clear of that.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_each_setting_alone_by_hand() -> None:
    # Probabilities 0.5, 0.25, 0.125, 0.125.
    logits = torch.log(torch.tensor([0.125, 0.5, 0.125, 0.25]))

    def probs(**chosen: float) -> list[float]:
        return [round(float(p), 6) for p in Sampler(SamplerSettings(**chosen)).distribution(logits)]

    assert probs() == [0.125, 0.5, 0.125, 0.25]
    assert probs(temperature=0.5) == [0.045455, 0.727273, 0.045455, 0.181818]  # squares: 1/64 4/64 1/64 16/64 of 22/64
    assert probs(top_k=1) == [0, 1, 0, 0]
    assert probs(top_k=3) == [0.142857, 0.571429, 0, 0.285714]  # exactly 3: the tie goes to the lowest id
    assert probs(top_p=0.5) == [0, 1, 0, 0]
    assert probs(top_p=0.51) == [0, 0.666667, 0, 0.333333]
    assert probs(top_p=0.76) == [0.142857, 0.571429, 0, 0.285714]
    assert probs(min_p=0.3) == [0, 0.666667, 0, 0.333333]
    assert probs(min_p=1.0) == [0, 1, 0, 0]
    assert probs(temperature=0) == [0, 1, 0, 0]
    # Temperature acts before top-p: at 0.5 the best token already weighs 0.727.
    assert probs(temperature=0.5, top_p=0.7) == [0, 1, 0, 0]
    # Top-p sees what top-k left: 0.5 of 0.75 is two thirds.
    assert probs(top_k=2, top_p=0.6) == [0, 1, 0, 0]


def test_a_large_vocabulary_is_cut_as_the_plain_way_cuts_it() -> None:
    logits = torch.randn(20_000, generator=torch.Generator().manual_seed(5)) * 3
    for chosen in (SamplerSettings(top_p=0.95), SamplerSettings(top_p=0.999), SamplerSettings(top_k=50, top_p=0.9)):
        found = Sampler(chosen).distribution(logits)
        expected = plain_distribution_sorted(logits, chosen)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)


def plain_distribution_sorted(logits: torch.Tensor, chosen: SamplerSettings) -> torch.Tensor:
    """As `plain_distribution`, with one whole sort: the loop's membership test is quadratic."""
    probs = torch.softmax(logits.double() / chosen.temperature, 0)
    order = torch.sort(probs, descending=True, stable=True).indices[: chosen.top_k or None]
    ranked = probs[order] / probs[order].sum()
    keep = order[(torch.cumsum(ranked, 0) - ranked) < chosen.top_p]
    out = torch.zeros_like(probs)
    out[keep] = probs[keep]
    return out / out.sum()


# Greedy.


def test_greedy_takes_the_best_and_ties_go_to_the_lowest_id() -> None:
    sampler = Sampler(SamplerSettings(temperature=0))
    assert sampler.greedy
    assert sampler.draw(torch.tensor([1.0, 3.0, 2.0]), 0) == 1
    logits = torch.zeros(129_280)
    logits[[77, 500, 129_279]] = 4.0
    assert sampler.draw(logits, 5) == 77
    assert int(sampler.distribution(logits).argmax()) == 77
    assert sampler.draw(torch.full((7,), -5.0), 0) == 0


def test_greedy_does_not_see_the_other_settings() -> None:
    logits = torch.tensor([0.0, 1.0, 0.5])
    assert Sampler(SamplerSettings(temperature=0, top_k=2, top_p=0.1, min_p=0.9)).draw(logits, 0) == 1


# Draws.


def test_seeded_runs_repeat_and_other_seeds_differ() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(1))

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(SamplerSettings(seed=seed))
        return [sampler.draw(logits, position) for position in range(50)]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)  # equal by chance less than once in 10^40


def test_an_unseeded_run_can_be_repeated_from_its_seed() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(1))
    first = Sampler(SamplerSettings())
    drawn = [first.draw(logits, position) for position in range(20)]
    again = Sampler(SamplerSettings(seed=first.seed))
    assert [again.draw(logits, position) for position in range(20)] == drawn


def test_a_draw_depends_on_seed_position_and_distribution_and_on_nothing_drawn_before() -> None:
    sampler, other = Sampler(SamplerSettings(seed=3)), Sampler(SamplerSettings(seed=3))
    logits = torch.randn(300, generator=torch.Generator().manual_seed(2))
    forwards = [sampler.draw(logits, position) for position in range(64)]
    assert [other.draw(logits, position) for position in reversed(range(64))][::-1] == forwards
    assert [sampler.draw(logits, position) for position in range(64)] == forwards
    assert len(set(forwards)) > 20


def test_a_pick_is_the_first_of_exponential_times_over_weights() -> None:
    # By hand from NumPy's Philox keyed by seed and position: 53 bits and a half, minus the logarithm, over the weight.
    sampler = Sampler(SamplerSettings(seed=3))
    weights = [0.0, 0.2, 0.0, 0.5, 0.3, 0.0]
    for position in (0, 1, 2**40):
        raw = np.random.Philox(key=np.array([3, position], dtype=np.uint64)).random_raw(6)
        times = [-math.log((int(bits >> 11) + 0.5) / 2**53) for bits in raw.tolist()]
        expected = min((i for i in range(6) if weights[i]), key=lambda i: times[i] / weights[i])
        assert sampler.pick(torch.tensor(weights, dtype=torch.float64), position) == expected
        assert sampler.times(position, 4).tolist() == sampler.times(position, 6).tolist()[:4]


def test_the_smallest_weights_can_be_drawn() -> None:
    sampler = Sampler(SamplerSettings(seed=1))
    for only in (1.0, 0.3, 5e-324):
        assert sampler.pick(torch.tensor([0.0, only, 0.0, 0.0], dtype=torch.float64), 9) == 1


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Pearson's statistic of the counts [V] against the probabilities [V]; nothing may lie where there is no weight."""
    kept = probs > 0
    assert int(counts[~kept].sum()) == 0
    expected = float(counts.sum()) * probs
    return float((((counts - expected) ** 2) / expected)[kept].sum())


def test_counts_fit_the_distribution() -> None:
    # Chi-square over 12 kept tokens: 11 degrees of freedom, 31.26 is the 0.1 % point (tables). The seed is fixed.
    sampler = Sampler(SamplerSettings(temperature=1.3, top_k=12, seed=2024))
    logits = torch.randn(200, generator=torch.Generator().manual_seed(9))
    probs = sampler.distribution(logits)
    assert int((probs > 0).sum()) == 12
    drawn = [sampler.pick(probs, position) for position in range(20_000)]
    assert chi_square(torch.bincount(torch.tensor(drawn), minlength=200), probs) < 31.26


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    # Pairs of draws from a fair four-sided distribution: 15 degrees of freedom, 37.70 is the 0.1 % point (tables).
    probs = torch.full((4,), 0.25, dtype=torch.float64)
    fair = torch.full((16,), 1 / 16, dtype=torch.float64)
    drawn = [Sampler(SamplerSettings(seed=8)).pick(probs, position) for position in range(12_001)]
    pairs = [4 * one + next_one for one, next_one in pairwise(drawn)]
    assert chi_square(torch.bincount(torch.tensor(pairs), minlength=16), fair) < 37.70
    drawn = [Sampler(SamplerSettings(seed=seed)).pick(probs, 100) for seed in range(12_001)]
    pairs = [4 * one + next_one for one, next_one in pairwise(drawn)]
    assert chi_square(torch.bincount(torch.tensor(pairs), minlength=16), fair) < 37.70


def test_temperature_two_differs_from_temperature_one() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(4)) * 2
    one = Sampler(SamplerSettings(temperature=1.0, seed=5))
    two = Sampler(SamplerSettings(temperature=2.0, seed=5))
    assert [one.draw(logits, p) for p in range(40)] != [two.draw(logits, p) for p in range(40)]


def test_a_tiny_temperature_is_nearly_greedy_not_nan() -> None:
    sampler = Sampler(SamplerSettings(temperature=1e-300))
    assert sampler.distribution(torch.tensor([1.0, 2.0, 2.0, -3e38])).tolist() == [0, 0.5, 0.5, 0]


# What may not be drawn.


def test_barred_tokens_are_never_drawn() -> None:
    logits = torch.tensor([0.0, 9.0, 1.0, 2.0])
    assert Sampler(SamplerSettings(temperature=0), never=[1]).draw(logits, 0) == 3
    assert Sampler(SamplerSettings(), never=[1, 3, 700]).distribution(logits)[[1, 3]].tolist() == [0, 0]
    with pytest.raises(LogitsError, match="no token"):
        Sampler(SamplerSettings(), never=[0, 1, 2, 3]).draw(logits, 0)


def test_the_logits_are_not_changed() -> None:
    logits = torch.tensor([0.0, 9.0], dtype=torch.float64)
    Sampler(SamplerSettings(), never=[1]).draw(logits, 0)
    assert logits.tolist() == [0.0, 9.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_logit_is_named(temperature: float, bad: float) -> None:
    logits = torch.zeros(10)
    logits[6] = bad
    with pytest.raises(LogitsError, match=r"token 6 is (nan|inf)"):
        Sampler(SamplerSettings(temperature=temperature)).draw(logits, 0)


def test_a_minus_infinity_is_a_barred_token() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf])
    assert Sampler(SamplerSettings()).distribution(logits).tolist() == [0, 1, 0]
    with pytest.raises(LogitsError, match="no token"):
        Sampler(SamplerSettings(temperature=0)).draw(torch.full((3,), -math.inf), 0)


def test_a_distribution_without_weight_is_refused() -> None:
    with pytest.raises(LogitsError, match="no weight"):
        Sampler(SamplerSettings()).pick(torch.zeros(4, dtype=torch.float64), 0)


# Settings.


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("temperature", -0.1, "0 to 2"),
        ("temperature", 2.01, "0 to 2"),
        ("temperature", math.nan, "0 to 2"),
        ("temperature", math.inf, "0 to 2"),
        ("temperature", True, "0 to 2"),
        ("top_p", 0.0, "above 0, up to 1"),
        ("top_p", 1.1, "above 0, up to 1"),
        ("top_p", math.nan, "above 0, up to 1"),
        ("min_p", -0.1, "0 to 1"),
        ("min_p", 1.1, "0 to 1"),
        ("top_k", -1, "0 to 2,147,483,647"),
        ("top_k", 2.5, "0 to 2,147,483,647"),
        ("seed", -1, "0 to 9,223,372,036,854,775,807"),
        ("seed", 2**63, "0 to 9,223,372,036,854,775,807"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: float, range_text: str) -> None:
    with pytest.raises(SamplerSettingsError, match=rf"^{name} is .*{range_text}$"):
        Sampler(SamplerSettings(**{name: value}))


def test_the_ends_of_the_ranges_are_accepted() -> None:
    require_valid(SamplerSettings(temperature=0, top_p=1, min_p=0, top_k=0, seed=0))
    require_valid(SamplerSettings(temperature=2, top_p=1e-9, min_p=1, top_k=2**31 - 1, seed=2**63 - 1))
    assert Sampler(SamplerSettings(seed=2**63 - 1)).draw(torch.tensor([0.0, -torch.inf]), 2**63) == 0


def test_the_defaults_of_a_folder(tmp_path: Path) -> None:
    assert default_settings(tmp_path) == SamplerSettings()
    assert default_settings(DATA / "tiny-a" / "checkpoint") == SamplerSettings(temperature=1.0, top_p=1.0)
    file = tmp_path / "generation_config.json"
    file.write_text('{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": null, "eos_token_id": 1}')
    assert default_settings(tmp_path) == SamplerSettings(temperature=0.6, top_p=0.95)
    file.write_text('{"do_sample": false, "temperature": 0.6}')
    assert default_settings(tmp_path).temperature == 0


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, "\udcff"])
def test_a_broken_generation_config_is_a_typed_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "generation_config.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        default_settings(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"temperature": 7}', '{"top_k": "many"}', '{"top_p": true}', '{"top_k": 1.5}',
        f'{{"temperature": 1{"0" * 400}}}', f'{{"top_k": 1{"0" * 400}}}', '{"min_p": NaN}', '{"top_p": -Infinity}',
    ],
)  # fmt: skip
def test_a_bad_value_in_a_generation_config_is_named_with_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        default_settings(tmp_path)
