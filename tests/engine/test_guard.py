"""When to draft: prices, chances and the guard, on a clock that is turned by hand."""

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine.draft import drafter as drafter_module
from engine.draft.confidence import Calibration, expected_tokens
from engine.draft.costs import Costs
from engine.draft.drafter import Drafter
from engine.draft.guard import FIRST_CREDIT, LONGEST_PAUSE_TOKENS, LOSS_SHARE, PAUSE_TOKENS, Guard
from engine.draft.settings import DraftMode, DraftSettings
from engine.draft.source import Proposal

# Prices.


def test_prices_are_means_of_what_was_measured() -> None:
    costs = Costs()
    assert costs.plain_s == 0
    for _ in range(5):
        costs.add_plain(2.0)
        costs.add_proposal(0.5)
        costs.add_verified(4, 3.0)
    assert costs.plain_s == pytest.approx(2.0)
    assert costs.round_s(4) == pytest.approx(0.5 + 3.0)  # as measured
    assert costs.round_s(2) == pytest.approx(0.5 + 2.5)  # a draft costs a quarter of a second


def test_recent_prices_count_more_and_one_long_wait_is_no_price() -> None:
    costs = Costs()
    for _ in range(10):
        costs.add_plain(4.0)
    for _ in range(8):
        costs.add_plain(1.0)  # a cache has warmed: after the half-life the new price has half the weight or more
    assert 1.0 < costs.plain_s < 2.5
    before = costs.plain_s
    costs.add_plain(1000.0)
    assert costs.plain_s < 1.5 * before


def test_more_drafts_never_cost_nothing() -> None:
    costs = Costs()
    costs.add_plain(2.0)
    costs.add_verified(5, 1.5)  # faster than a plain token, by luck
    assert costs.round_s(5) > costs.round_s(0)


# Chances.


def test_without_outcomes_the_head_is_believed() -> None:
    chances = Calibration()
    assert chances.chance(0.0) == pytest.approx(0.5)
    assert chances.chance(math.log(3)) == pytest.approx(0.75)  # the logistic function
    assert chances.chance(-800.0) < 1e-12 and chances.chance(800.0) > 1 - 1e-12
    assert chances.chance(math.nan) == 0


def test_outcomes_correct_the_head_class_by_class() -> None:
    chances = Calibration()
    for _ in range(60):
        chances.learn([2.5, -3.0], n_right=0)  # sure and wrong; what stands behind it says nothing
    assert chances.chance(2.5) < 0.1
    assert chances.chance(-3.0) == pytest.approx(1 / (1 + math.exp(3.0)))
    for _ in range(60):
        chances.learn([-3.0, 2.5], n_right=1)
    assert chances.chance(-3.0) > 0.9


def test_expected_tokens_are_the_chance_of_each_draft_being_reached_and_right() -> None:
    assert expected_tokens([]) == 1
    assert expected_tokens([0.5, 0.5]) == pytest.approx(1 + 0.5 + 0.25)
    assert expected_tokens([1.0] * 5) == 6


# The guard by itself: every plain token takes one second.


def test_drafts_that_pay_are_never_paused() -> None:
    guard = Guard(0.6)
    for _ in range(200):
        assert guard.round(5, 4, 5, 3.0, 1.0) is None


def test_a_low_accepted_share_is_no_reason_while_drafts_are_measured_to_pay() -> None:
    # Two in five right, and still 3 tokens for the price of 1.5.
    guard = Guard(0.6)
    for _ in range(50):
        assert guard.round(5, 2, 3, 1.5, 1.0) is None


def test_a_high_accepted_share_is_no_excuse_when_drafts_are_measured_to_lose() -> None:
    # Four in five right, and 5 tokens for the price of 7: some rounds are borne, then it stops.
    guard = Guard(0.6)
    pauses = [guard.round(5, 4, 5, 7.0, 1.0) for _ in range(6)]
    first = next(index for index, pause in enumerate(pauses) if pause is not None)
    assert 2 <= first <= 5
    assert "1.40 times as long" in pauses[first].reason  # type: ignore[union-attr]


def test_before_prices_are_known_the_share_over_ten_drafts_decides() -> None:
    guard = Guard(0.6)
    assert guard.round(5, 3, 4, 1.0, 0.0) is None  # five drafts are no window yet
    pause = guard.round(5, 2, 3, 1.0, 0.0)
    assert pause is not None and pause.tokens == PAUSE_TOKENS == 64
    assert pause.reason == "5 of the last 10 drafts were right"
    lenient = Guard(0.5)
    assert lenient.round(5, 3, 4, 1.0, 0.0) is None and lenient.round(5, 2, 3, 1.0, 0.0) is None


def test_rounds_from_before_the_price_was_known_are_judged_when_it_is() -> None:
    guard = Guard(0.0)
    assert guard.round(2, 0, 1, 3.0, 0.0) is None
    assert guard.round(2, 0, 1, 3.0, 1.0) is not None  # two useless rounds have lost four plain tokens


def sit_out(guard: Guard, n_tokens: int) -> None:
    """Decode through a pause, which has to last so long and no longer."""
    for _ in range(n_tokens - 1):
        guard.plain_token()
    assert guard.paused
    guard.plain_token()
    assert not guard.paused and guard.on_trial


def test_a_pause_lasts_its_tokens_and_until_the_losses_are_a_small_share() -> None:
    guard, lost, tokens = Guard(0.6), 0.0, 0
    while tokens < 10_000:
        pause = guard.round(2, 0, 1, 3.0, 1.0)  # two plain tokens are lost
        lost, tokens = lost + 2, tokens + 1
        if pause is None:
            continue
        sit_out(guard, pause.tokens)
        tokens += pause.tokens
        assert (lost - FIRST_CREDIT) / tokens <= LOSS_SHARE
        assert pause.tokens <= 2 / LOSS_SHARE  # a trial is one such round
    assert lost > 0.9 * LOSS_SHARE * tokens  # nor longer than that takes


def test_losses_within_the_credit_are_followed_by_a_short_pause_and_great_ones_by_no_endless_one() -> None:
    guard = Guard(0.0)
    assert [guard.round(2, 0, 1, 1.9, 1.0) for _ in range(2)] == [None] * 2
    pause = guard.round(2, 0, 1, 1.9, 1.0)
    assert pause is not None and pause.tokens == PAUSE_TOKENS  # 2.7 tokens are lost
    sit_out(guard, pause.tokens)
    pause = guard.round(5, 0, 1, 60.0, 1.0)
    assert pause is not None and pause.tokens == LONGEST_PAUSE_TOKENS


def test_what_drafting_costs_beside_its_rounds_makes_the_pause_longer_and_stops_nothing() -> None:
    guard = Guard(0.0)
    guard.spent(FIRST_CREDIT)
    assert [guard.round(2, 0, 1, 1.9, 1.0) for _ in range(2)] == [None] * 2  # as without
    pause = guard.round(2, 0, 1, 1.9, 1.0)
    assert pause is not None and pause.tokens == pytest.approx(2.7 / LOSS_SHARE, abs=1)


def test_two_bad_rounds_end_a_stretch_that_has_not_proved_anything_and_none_that_has() -> None:
    def lost(n_good: int) -> float:
        """Plain tokens lost until a pause."""
        guard = Guard(0.0)
        for _ in range(n_good):
            assert guard.round(5, 5, 6, 2.0, 1.0) is None  # ahead by four
        n = 0
        while guard.round(5, 0, 1, 2.4, 1.0) is None:
            n += 1
        return 1.4 * (n + 1)

    assert lost(0) == lost(1) == pytest.approx(2.8)  # more than 2.5
    assert lost(3) == lost(20) == pytest.approx(5.6)  # more than twice that


def test_a_trial_needs_a_clear_gain() -> None:
    def after_a_pause() -> Guard:
        guard = Guard(0.0)
        while (pause := guard.round(2, 0, 1, 3.0, 1.0)) is None:
            pass
        for _ in range(pause.tokens):
            guard.plain_token()
        return guard

    guard = after_a_pause()
    verdicts = [guard.round(2, 1, 2, 1.9, 1.0) for _ in range(4)]  # ahead by 0.4 plain tokens in all: not clear
    assert verdicts[:3] == [None] * 3 and "no clear gain" in verdicts[3].reason  # type: ignore[union-attr]
    guard = after_a_pause()
    assert [guard.round(2, 2, 3, 1.9, 1.0) for _ in range(4)] == [None] * 4
    assert not guard.on_trial


def test_after_a_good_stretch_the_next_pause_is_short_again() -> None:
    def lose(guard: Guard) -> int:
        while (pause := guard.round(2, 0, 1, 1.9, 1.0)) is None:  # 0.9 plain tokens each
            pass
        sit_out(guard, pause.tokens)
        return pause.tokens

    guard = Guard(0.0)
    assert lose(guard) == PAUSE_TOKENS < lose(guard)
    for _ in range(10):
        assert guard.round(5, 5, 6, 3.0, 1.0) is None
    assert lose(guard) == PAUSE_TOKENS


# Guard, prices, chances and drafter together, in a world with a clock of its own.


class World:
    """Decoding in which a plain token takes a second, the head 0.3 and every draft some more; drafts are right by lot.

    Args:
        right: Chance that a draft is right, by the tokens so far.
        draft_s: Price of verifying one more draft.
        confidence: What the head says of a draft.
        cold: How many times as long the first tokens take; it fades with the first hundred.
        stalls: Chance that a piece of work takes fifteen times as long.
    """

    def __init__(
        self, right: Callable[[int], float], draft_s: float, *, mode: DraftMode = "auto", seed: int = 0,
        confidence: Callable[[random.Random], float] = lambda lot: lot.gauss(0, 1.5), cold: float = 0.0,
        noise: float = 0.05, stalls: float = 0.0,
    ) -> None:  # fmt: skip
        self.lot = random.Random(seed)
        self.now = self.plain_s = 0.0
        self.n_tokens = 0
        self.n_drafts: list[int] = []
        self._right, self._draft_s, self._confidence, self._cold, self._noise = right, draft_s, confidence, cold, noise
        self._stalls = stalls
        self.drafter = Drafter(self, DraftSettings(mode=mode), block_size=5, clock=lambda: self.now)

    def _takes(self, seconds: float) -> float:
        seconds *= 15 if self._stalls and self.lot.random() < self._stalls else 1
        return seconds * (1 + self._cold * math.exp(-self.n_tokens / 40)) * max(0.3, self.lot.gauss(1, self._noise))

    def propose(self, state: object, token: int, n: int, choose: object, should_stop: object) -> Proposal:
        """See `DraftSource`."""
        self.now += self._takes(0.3)
        return Proposal(ids=tuple(range(n)), confidence=tuple(self._confidence(self.lot) for _ in range(n)))

    def run(self, n_tokens: int) -> float:
        """Decode; seconds of a token over those of a plain one."""
        state: Any = SimpleNamespace(n_tokens=0, draft=None)
        while self.n_tokens < n_tokens:
            drafts = self.drafter.drafts(state, 0, n_tokens - self.n_tokens - 1, lambda *_: 0, lambda: False)
            n_right = 0
            while n_right < len(drafts) and self.lot.random() < self._right(self.n_tokens):
                n_right += 1
            self.now += self._takes(1 + self._draft_s * len(drafts))
            for _ in range(n_right + 1):
                self.plain_s += 1 + self._cold * math.exp(-self.n_tokens / 40)
                self.n_tokens += 1
            verified: Any = SimpleNamespace(tokens=(0,) * (n_right + 1), n_right=n_right, n_drafts=len(drafts))
            self.drafter.done(verified)
            self.n_drafts.append(len(drafts))
        return self.now / self.plain_s


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no state in these worlds whose schedule could bound a block."""
    monkeypatch.setattr(drafter_module, "most_drafts", lambda state, n: n)


@pytest.mark.parametrize("cold", [0.0, 2.0])
@pytest.mark.parametrize("draft_s", [0.15, 0.8])  # experts in memory; every draft another read
@pytest.mark.parametrize("sure", [False, True])
def test_a_head_that_is_never_right_costs_under_three_percent_in_512_tokens(
    draft_s: float, cold: float, sure: bool
) -> None:
    for seed in range(10):
        options: dict[str, Any] = {"confidence": lambda lot: 3.5} if sure else {}
        world = World(lambda _: 1 / 512, draft_s, seed=seed, cold=cold, **options)
        assert world.run(512) < 1.03
        assert len(world.drafter.stats().pauses) <= 5


@pytest.mark.parametrize("draft_s", [0.05, 0.15, 0.8])
def test_a_stall_taken_for_the_price_of_a_plain_token_keeps_no_useless_drafts(draft_s: float) -> None:
    # A wait that falls on a price makes every round seem cheap. Counted here is what rounds cost without the waits.
    for seed in range(20):
        world = World(lambda _: 1 / 512, draft_s, seed=seed, confidence=lambda _: 3.5, noise=0.2, stalls=0.03)
        world.run(512)
        assert sum(0.3 + draft_s * n for n in world.n_drafts if n) < 0.03 * 512


def test_no_round_counts_as_cheaper_than_a_plain_token() -> None:
    guard = Guard(0.6)
    pauses = [guard.round(1, 0, 1, 1.0, 2.0) for _ in range(10)]  # one token for half the price of one: impossible
    assert pauses[:9] == [None] * 9
    assert pauses[9] is not None and pauses[9].reason == "0 of the last 10 drafts were right"


def test_a_head_that_is_right_is_worth_nearly_what_it_is_without_a_guard() -> None:
    guarded = World(lambda _: 0.95, 0.1, confidence=lambda _: 2.0).run(512)
    unguarded = World(lambda _: 0.95, 0.1, confidence=lambda _: 2.0, mode="on").run(512)
    assert unguarded < 0.36  # 1.8 s for 5.4 tokens
    assert guarded < 1.2 * unguarded


def test_confidence_that_means_something_beats_always_five_where_drafts_are_dear() -> None:
    # Half of the rounds are hopeless, and the head knows which.
    def run(mode: DraftMode) -> float:
        world = World(lambda _: 0.0, 0.5, mode=mode, confidence=lambda _: mood["sure"], seed=1)
        mood: dict[str, float] = {}
        world._right = lambda _: 0.97 if mood["sure"] > 0 else 0.02

        def propose(*arguments: Any) -> Proposal:
            mood["sure"] = 3.5 if world.lot.random() < 0.5 else -3.5
            return World.propose(world, *arguments)

        world.propose = propose  # type: ignore[method-assign]
        mood["sure"] = 3.5
        return world.run(600)

    assert run("auto") < 0.8 * run("on")


def test_a_text_that_turns_does_not_make_it_swing() -> None:
    world = World(lambda n: 0.95 if n // 128 % 2 == 0 else 0.02, 0.3, confidence=lambda _: 1.0)
    assert world.run(1024) < 1.0
    assert len(world.drafter.stats().pauses) <= 6  # four bad stretches


def test_a_text_that_begins_to_be_predictable_has_its_drafts_back_within_hundreds_of_tokens() -> None:
    for seed in range(10):
        world = World(lambda n: 0.9 if n > 1500 else 1 / 512, 0.2, seed=seed)
        assert world.run(1500) < 1.03
        before = len(world.n_drafts)
        world.run(2000)
        drafted = [n > 0 for n in world.n_drafts[before:]]
        # A trial loses at most 1.9 plain tokens here, which is a pause of 475; then most forwards have drafts.
        assert 0 < drafted.index(True) < 475 and sum(drafted[drafted.index(True) :]) > 20


def test_prices_stay_fresh_while_drafts_are_good() -> None:
    world = World(lambda _: 1.0, 0.1, confidence=lambda _: 3.0)
    world.run(2000)
    plain = [index for index, n in enumerate(world.n_drafts) if n == 0]
    assert 8 <= len(plain) <= 14  # often at first, then one in 256 tokens


def test_a_machine_that_stalls_now_and_then_does_not_talk_it_out_of_good_drafts() -> None:
    def run(mode: DraftMode) -> float:
        worlds = [
            World(lambda _: 0.9, 0.1, confidence=lambda _: 2.0, seed=s, mode=mode, stalls=0.03) for s in range(10)
        ]
        return sum(world.run(512) for world in worlds)

    assert run("auto") < 1.35 * run("on")


def test_on_always_drafts_the_most() -> None:
    world = World(lambda _: 0.0, 0.8, mode="on")
    world.run(40)
    assert set(world.n_drafts[:-6]) == {5}
    assert world.drafter.stats().pauses == ()


def test_the_figures_add_up() -> None:
    world = World(lambda _: 0.7, 0.1, seed=3)
    world.run(300)
    stats = world.drafter.stats()
    assert stats.forwards == len(world.n_drafts)
    assert stats.drafted == sum(world.n_drafts) == sum(stats.drafted_by_position)
    assert stats.accepted == sum(stats.accepted_by_position) == world.n_tokens - stats.forwards
    assert stats.tokens_per_forward == pytest.approx(world.n_tokens / stats.forwards)
    assert stats.mean_accepted == pytest.approx(stats.accepted / stats.rounds)
    assert all(
        right <= drafted for right, drafted in zip(stats.accepted_by_position, stats.drafted_by_position, strict=True)
    )
    assert list(stats.drafted_by_position) == sorted(stats.drafted_by_position, reverse=True)
    world.drafter.begin_turn()
    assert world.drafter.stats().forwards == 0
