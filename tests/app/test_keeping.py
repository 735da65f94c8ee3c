"""What is learnt from a turn for the next one."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from app.backends.keeping import LEAST_FORWARDS, Keeper
from app.last_run import Compared, LastRun, forecast, load_runs, save_run
from app.planning import Planned, plan_for
from app.rates import RateBook
from engine.events import DraftStats, Phase, PhaseFigures, TurnDone, TurnStats, Work
from engine.kernels import path
from planner.facts import Drive, MachineFacts, assumed_rates
from planner.plan import Wishes
from tests.planner.released_sizes import released_sizes

TIMES = 3.0
"""What the arithmetic takes over what is predicted of it."""


@pytest.fixture(scope="module")
def planned() -> Planned:
    drive = Drive(name="d", kind="nvme", rate_bytes_s=2e9, source="given")
    facts = MachineFacts(
        total_bytes=48 * 10**9, available_bytes=44 * 10**9, ruled_by="system", n_cores=8, drives=(drive,),
        rates=assumed_rates(8),
    )  # fmt: skip
    return plan_for(facts, released_sizes(), Wishes(), {})


def drafted(rounds: int, drafted: int, forwards: int, off_reason: str = "") -> DraftStats:
    return DraftStats(
        rounds=rounds, drafted=drafted, accepted=drafted // 2, drafted_by_position=(), accepted_by_position=(),
        mean_accepted=0.0, forwards=forwards, tokens_per_forward=1.0, propose_s=0.0, verify_s=0.0, pauses=(),
        off_reason=off_reason,
    )  # fmt: skip


def turn(planned: Planned, draft: DraftStats | None, answer_tokens: int = 40) -> TurnStats:
    """A turn whose arithmetic took `TIMES` what is predicted, beside waits and drafts of any length."""
    plain = TurnStats(
        prompt_tokens=100, reused_tokens=0, answer_tokens=answer_tokens, thinking_tokens=0, prefill_s=9.0, decode_s=9.0,
        read_bytes=10**9, draft=draft,
    )  # fmt: skip
    expected = forecast(planned, plain, warm=False)
    assert expected.prompt is not None

    def figure(work: Work, phase: Phase, seconds: float) -> PhaseFigures:
        return PhaseFigures(work=work, phase=phase, seconds=seconds, bytes=0, rate_bytes_s=0.0)

    phases = (
        figure("prefill", "attention", TIMES * expected.prompt.arithmetic_s),
        figure("prefill", "expert_reads", 50.0),
        figure("decode", "experts", TIMES * expected.answer.arithmetic_s / 2),
        figure("decode", "other", TIMES * expected.answer.arithmetic_s / 2),
        figure("decode", "expert_reads", 70.0),
        figure("decode", "draft", 90.0),
    )
    return TurnStats(
        prompt_tokens=100, reused_tokens=0, answer_tokens=answer_tokens, thinking_tokens=0, prefill_s=9.0, decode_s=9.0,
        read_bytes=10**9, draft=draft, phases=phases,
    )  # fmt: skip


@pytest.mark.parametrize(
    "draft",
    [
        None,
        drafted(rounds=0, drafted=0, forwards=39, off_reason="the checkpoint has no draft head"),
        drafted(rounds=9, drafted=36, forwards=12),
    ],
    ids=["drafting off", "no head", "drafted"],
)
def test_how_fast_the_arithmetic_was_is_believed_of_every_kind_of_turn(
    draft: DraftStats | None, planned: Planned, tmp_path: Path
) -> None:
    book, runs = RateBook(tmp_path / "rates.json"), tmp_path / "runs.json"
    keeper = Keeper(planned, book, model="m", runs=runs)
    book.note_arithmetic(planned.plan.threads, path(), planned.facts.rates)
    done = keeper.finish(TurnDone(reason="stop", stats=turn(planned, draft)))
    rates = keeper.planned.facts.rates
    assert [rates.answer_factor, rates.prompt_factor] == pytest.approx([TIMES, TIMES])
    assert done.stats.memory is not None and done.stats.memory.planned_bytes == planned.plan.planned_bytes
    both = {figure.label: (figure.predicted, figure.happened) for figure in load_runs(runs)[0].figures}
    assert both.keys() >= {"prompt", "answer", "prompt: trunk", "answer: experts", "answer: trunk", "answer: other"}
    assert both["prompt: waiting for drives"][1] == 50.0 and both["answer: draft"][1] == 90.0
    assert (both["answer: draft"][0] > 0) == (draft is not None and draft.rounds > 0)
    predicted_s = sum(both.get(f"answer: {name}", (0.0, 0.0))[0] for name in ("trunk", "experts", "head", "other"))
    assert both["answer: experts"][1] + both["answer: other"][1] == pytest.approx(TIMES * predicted_s, rel=0.02)


def test_a_few_tokens_say_nothing_of_the_speed(planned: Planned) -> None:
    book = RateBook(None)
    keeper = Keeper(planned, book, model="m", runs=None)
    book.note_arithmetic(planned.plan.threads, path(), planned.facts.rates)
    keeper.finish(TurnDone(reason="stop", stats=turn(planned, None, answer_tokens=LEAST_FORWARDS)))
    assert keeper.planned.facts.rates.answer_factor == 1.0  # one forward fewer than tokens: the prompt gives the first
    keeper.finish(TurnDone(reason="stop", stats=turn(planned, None, answer_tokens=LEAST_FORWARDS + 1)))
    assert keeper.planned.facts.rates.answer_factor == pytest.approx(TIMES)


@pytest.mark.parametrize(
    "damage",
    [
        {"at": float("nan")}, {"at": 1e300}, {"at": 10**400}, {"figures": [{}]},
        {"figures": [{"label": "prompt", "unit": "tokens/s", "predicted": 10**400, "happened": 1.0}]},
        {"figures": [{"label": "prompt", "unit": "seconds", "predicted": 1.0, "happened": float("inf")}]},
        {"figures": [{"label": "prompt", "unit": "miles", "predicted": 1.0, "happened": 1.0}]},
    ],
)  # fmt: skip
def test_last_runs_that_cannot_be_shown_are_begun_anew(tmp_path: Path, damage: dict[str, object]) -> None:
    runs = tmp_path / "runs.json"
    figure = Compared(label="prompt", unit="tokens/s", predicted=1.0, happened=2.0)
    whole = LastRun(model="/m", at=1.8e9, warm=False, figures=(figure,))
    save_run(runs, whole)
    assert load_runs(runs) == [whole]
    runs.write_text(json.dumps([asdict(whole) | damage]))
    assert load_runs(runs) == []
    save_run(runs, whole)
    assert load_runs(runs) == [whole]
