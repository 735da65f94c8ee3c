"""Drafting on real models: the answer is the sequential one, wherever a block ends and whatever the drafts were."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import kernels
from engine.config import ModelConfig
from engine.draft.drafter import Drafter, keeps_answers, make_drafter
from engine.draft.settings import DraftMode, DraftSettings
from engine.draft.source import DraftSource
from engine.draft.verify import settle
from engine.errors import FormatError, Stopped
from engine.events import DraftStats, Event, Notice, TextDelta, TokenDrawn, TurnDone
from engine.generate import generate
from engine.kernels.native_path import library_file
from engine.model import Model, never
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.schedule import max_decode_rows
from engine.state import State
from engine.tokens import ChatTokenizer
from engine.turn import run_turn
from storage.errors import StorageError
from tests.engine.conftest import TINY
from tests.engine.draft_matrix import N_TOKENS, Seen, cases, run, tiny_prompt
from tests.engine.drafting import GREEDY, Forced, Sequential, opened, prefilled
from tests.maker import Geometry, find, make, poke

SOME = ("released-roles", "many-windows", "few-candidates", "ratio-2-4-1")
"""Cases run with the suite; `python -m tests.engine.draft_matrix` runs all of them, and more of each."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small model with a draft head of random weights."""
    folder = make(tmp_path_factory.mktemp("drafts"), Geometry(), seed=2)
    with opened(folder) as opened_model:
        yield opened_model


PROMPT = tiny_prompt(21)


@pytest.fixture(scope="module")
def known(model: Model) -> Sequential:
    """The greedy continuation of `PROMPT`."""
    return Sequential.of(model, PROMPT, 24)


def drafter_of(source: DraftSource, mode: DraftMode = "on", **options: Any) -> Drafter:
    return Drafter(source, DraftSettings(mode=mode), block_size=5, **options)


def said(events: Sequence[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenDrawn)]


def turn(model: Model, drafter: Drafter | None, **options: Any) -> tuple[list[Event], State]:
    state = model.new_state()
    arguments = {"sampler": GREEDY, "max_tokens": 24, "stop_ids": ()} | options
    return list(generate(model, state, PROMPT, drafter=drafter, **arguments)), state


def figures(events: Sequence[Event]) -> DraftStats:
    done = events[-1]
    assert isinstance(done, TurnDone) and done.stats.draft is not None
    return done.stats.draft


def same_bits() -> bool:
    return kernels.native() is not None


# Whole runs, bit for bit.


@pytest.mark.skipif(library_file() is None, reason="the native kernels were not built: no C++ compiler")
@pytest.mark.parametrize("name", SOME)
def test_blocks_give_the_sequential_text_logits_and_state(name: str, tmp_path: Path) -> None:
    if not same_bits():
        pytest.skip("the torch path was asked for, which promises no equal bits")
    case, seen = dict(cases())[name], Seen()
    with opened(make(tmp_path, case.geometry, seed=case.seed, tweak=case.tweak)) as opened_model:
        run(opened_model, case.prompt(), name, seen, whole=False)
    assert seen.differences == []
    assert set(seen.accepted) >= {0, 1, 2, 3, 4, 5}
    assert seen.rejected_after["open"] and seen.rejected_after["closed"] and seen.rejected_after["wrapped"]
    assert seen.rejected_after["cut"] and 2 * case.geometry.window_size < N_TOKENS


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_heads_own_drafts_change_no_token_and_leave_the_same_state(model: Model, temperature: float) -> None:
    sampler = Sampler(SamplerSettings(temperature=temperature, top_p=0.95, seed=4))
    plain, alone = turn(model, None, sampler=sampler)
    assert model.head is not None
    drafted, together = turn(model, drafter_of(model.head), sampler=sampler)
    assert said(drafted) == said(plain) and len(said(plain)) == 24
    assert figures(drafted).drafted > 0
    if same_bits():
        ours, theirs = together.contents(), alone.contents()
        assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_a_seeded_reply_can_be_stopped_and_gone_on_with_drafts_or_without(model: Model) -> None:
    sampler = Sampler(SamplerSettings(temperature=1.0, top_k=40, seed=11))
    whole = said(turn(model, None, sampler=sampler)[0])
    known = Sequential(PROMPT, whole)
    first, state = turn(model, drafter_of(Forced(known, 512)), sampler=sampler, max_tokens=10)
    assert said(first) == whole[:10]
    begun = said(first)[state.n_tokens - len(PROMPT) :]
    rest = list(generate(model, state, (), begun_ids=begun, sampler=sampler, max_tokens=14, stop_ids=()))
    assert said(rest) == whole[10:]


# What ends a turn inside a block.


def ends(model: Model, known: Sequential, **options: Any) -> None:
    """A turn that ends somewhere: with drafts as without, in events and state."""
    plain, alone = turn(model, None, **options)
    for wrong in (lambda _: 99, lambda r: r % 6):
        drafted, together = turn(model, drafter_of(Forced(known, 512, wrong)), **options)
        assert said(drafted) == said(plain)
        ours, theirs = drafted[-1], plain[-1]
        assert isinstance(ours, TurnDone) and isinstance(theirs, TurnDone)
        assert (ours.reason, ours.stats.answer_tokens) == (theirs.reason, theirs.stats.answer_tokens)
        assert together.tokens == alone.tokens
        if same_bits():
            kept, wanted = together.contents(), alone.contents()
            assert [name for name in wanted if not torch.equal(kept[name], wanted[name])] == []


@pytest.mark.parametrize("at", range(2, 9))
def test_an_end_token_inside_a_block_ends_the_turn_there(model: Model, known: Sequential, at: int) -> None:
    ends(model, known, stop_ids=frozenset({known.tokens[at]}))


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 8, 12])
def test_a_token_limit_inside_a_block_ends_the_turn_there(model: Model, known: Sequential, limit: int) -> None:
    ends(model, known, max_tokens=limit)


@pytest.mark.parametrize("room", range(7))
def test_a_full_context_inside_a_block_ends_the_turn_there(model: Model, known: Sequential, room: int) -> None:
    ends(model, known, context_tokens=len(PROMPT) + room)


def test_no_row_is_run_that_could_not_be_said(model: Model, known: Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    forward = Model.forward

    def counted(self: Model, state: State, ids: Sequence[int], rule: Any, **options: Any) -> Any:
        rows.append(len(ids) if rule == "decode" else 0)
        return forward(self, state, ids, rule, **options)

    monkeypatch.setattr(Model, "forward", counted)
    turn(model, drafter_of(Forced(known, 512)), max_tokens=9)
    # The first token comes with the prompt; six from a block, and two of which the last need not be run.
    assert rows == [0, 6, 2]


@pytest.mark.parametrize("asked", [1, 2, 4, 7, 9])
def test_a_stop_between_the_tokens_of_a_block_leaves_what_was_said(model: Model, known: Sequential, asked: int) -> None:
    events: list[Event] = []
    state = model.new_state()
    for event in generate(
        model, state, PROMPT, sampler=GREEDY, max_tokens=24, stop_ids=(), drafter=drafter_of(Forced(known, 512)),
        should_stop=lambda: len(said(events)) >= asked,
    ):  # fmt: skip
        events.append(event)
    done = events[-1]
    assert isinstance(done, TurnDone) and done.reason == "stopped"
    assert said(events) == known.tokens[:asked]
    assert state.tokens == [*PROMPT, *known.tokens[: asked - 1]]
    if same_bits():
        assert known.differences(state) == []


def test_a_consumer_that_leaves_in_a_block_leaves_a_whole_state(model: Model, known: Sequential) -> None:
    state = model.new_state()
    events = generate(
        model, state, PROMPT, sampler=GREEDY, max_tokens=24, stop_ids=(), drafter=drafter_of(Forced(known, 512))
    )
    n_said = 0
    for event in events:
        n_said += isinstance(event, TokenDrawn)
        if n_said == 4:
            break
    events.close()  # type: ignore[attr-defined]
    assert state.tokens == [*PROMPT, *known.tokens[:3]]


def test_a_stop_string_inside_a_block_ends_the_text_there(model: Model) -> None:
    tokenizer = ChatTokenizer.load(model.checkpoint.folder)
    known = Sequential.of(model, PROMPT, 16)
    whole = tokenizer.decode(known.tokens).lstrip("\n")
    cut = whole[5:7]

    def text(drafter: Drafter | None) -> tuple[str, list[int], State]:
        state = model.new_state()
        events = list(run_turn(
            model, state, tokenizer, PROMPT, sampler=GREEDY, max_tokens=16, thinking=False, stop_ids=(), stop=[cut],
            drafter=drafter,
        ))  # fmt: skip
        assert isinstance(events[-1], TurnDone) and events[-1].reason == "stop"
        return "".join(e.text for e in events if isinstance(e, TextDelta)), said(events), state

    plain, drafted = text(None), text(drafter_of(Forced(known, 512)))
    assert drafted[:2] == plain[:2] and drafted[0] == whole[: whole.index(cut)]
    assert drafted[2].tokens == plain[2].tokens


# Pauses.


def test_rings_stay_current_while_drafting_is_paused_and_the_text_stays_the_same(model: Model) -> None:
    known = Sequential.of(model, PROMPT, 90)
    lots = Forced(known, 512, lambda r: 0)  # never right, so that the guard stops it
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # every look at it: a round takes twice as long as a plain token
        return now[0]

    drafter = Drafter(lots, DraftSettings(), block_size=5, clock=clock)
    events, state = turn(model, drafter, max_tokens=90)
    stats = figures(events)
    assert said(events) == known.tokens
    assert stats.pauses and stats.pauses[0].tokens == 64 and stats.pauses[0].after_tokens < 10
    assert stats.forwards > stats.rounds >= 3  # before the pause and again behind it
    if same_bits():
        assert known.differences(state) == []  # the draft stages' rings included


# A head that is not there, cannot be read, or fails.


def reason(folder: Path) -> str:
    with opened(folder) as found:
        assert found.head is None and found.new_state().draft is None
        drafter = make_drafter(found, DraftSettings(mode="on"))
        assert drafter is not None
        events = list(generate(
            found, found.new_state(), PROMPT, sampler=GREEDY, max_tokens=3, stop_ids=(), drafter=drafter
        ))  # fmt: skip
        *_, notice = [event.text for event in events if isinstance(event, Notice)]
        stats = figures(events)
        assert notice.startswith(f"No drafts: {stats.off_reason}") and (stats.rounds, stats.drafted) == (0, 0)
        return stats.off_reason


def test_a_checkpoint_without_a_head_answers_and_says_why(tmp_path: Path) -> None:
    assert reason(make(tmp_path, Geometry(n_mtp_layers=0))) == "the checkpoint has no draft head"


def test_a_head_of_another_dtype_or_with_a_nan_is_not_used_in_silence(tmp_path: Path) -> None:
    folder = make(tmp_path / "nan", Geometry(), seed=2)
    poke(folder, "mtp.0.main_proj.weight", 9, b"\x7f")
    assert "mtp.0.main_proj" in reason(folder)
    folder = make(tmp_path / "dtype", Geometry(), seed=2)
    shard = find(folder, "mtp.1.markov_head.head.weight").path
    data = shard.read_bytes()
    # The same bytes under another type: two bytes each, as bf16 has.
    shard.write_bytes(data.replace(
        b'"mtp.1.markov_head.head.weight":{"dtype":"BF16"', b'"mtp.1.markov_head.head.weight":{"dtype":"F16" '
    ))  # fmt: skip
    assert "'mtp.1.markov_head.head.weight' is F16" in reason(folder)


def test_a_head_that_fails_in_the_middle_is_given_up_once_and_the_answer_goes_on(
    model: Model, known: Sequential
) -> None:
    class Failing(Forced):
        def propose(self, *arguments: Any) -> Any:
            if self.rounds == 2:
                raise StorageError("the drive is gone")
            return super().propose(*arguments)

    notices: deque[str] = model.notices
    drafter = drafter_of(Failing(known, 512), notices=notices)
    events, _ = turn(model, drafter)
    assert said(events) == known.tokens
    (notice,) = [event.text for event in events if isinstance(event, Notice)]
    assert notice.startswith("No more drafts: the draft head failed: the drive is gone.")
    assert figures(events).off_reason == "the draft head failed: the drive is gone"
    events, _ = turn(model, drafter)
    assert said(events) == known.tokens and not [event for event in events if isinstance(event, Notice)]


def test_a_damaged_expert_of_the_head_ends_the_drafts_and_not_the_answer(tmp_path: Path) -> None:
    folder = make(tmp_path, Geometry(dspark_n_routed_experts=2), seed=2)
    for expert in range(2):
        poke(folder, f"mtp.0.ffn.experts.{expert}.w1.scale", 0, b"\xff")
    with opened(folder) as damaged:
        known = Sequential.of(damaged, PROMPT, 6)
        assert damaged.head is not None
        with pytest.raises(FormatError):
            damaged.head.propose(prefilled(damaged, PROMPT)[0], 1, 5, GREEDY.draw, never)
        events, _ = turn(damaged, make_drafter(damaged, DraftSettings(mode="on")), max_tokens=6)
        assert said(events) == known.tokens
        assert figures(events).off_reason.startswith("the draft head failed: ")


def test_where_rows_depend_on_each_other_drafts_are_not_made_unless_asked_for(tmp_path: Path) -> None:
    with opened(make(tmp_path, Geometry(), seed=2), numerics="reference") as rounding:
        assert not keeps_answers("reference")
        drafter = make_drafter(rounding, DraftSettings())
        assert drafter is not None and "could change the answer" in drafter.off_reason
        events, _ = turn(rounding, drafter, max_tokens=3)
        assert figures(events).rounds == 0
        assert ["could change the answer" in e.text for e in events if isinstance(e, Notice)] == [True]
        events, _ = turn(rounding, make_drafter(rounding, DraftSettings(mode="on")), max_tokens=3)
        assert figures(events).rounds > 0


def test_a_stop_in_the_head_is_a_stop(model: Model) -> None:
    assert model.head is not None
    state, _ = prefilled(model, PROMPT)
    with pytest.raises(Stopped):
        model.head.propose(state, 1, 5, GREEDY.draw, lambda: True)


# Off.


def test_off_loads_nothing_and_asks_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(model.checkpoint.folder, drafts=False) as plain:
        assert plain.head is None and plain.new_state().draft is None
        assert make_drafter(plain, DraftSettings(mode="off")) is None
        assert set(plain.streams.experts.stats().layers) == set(range(plain.config.n_layers))
        assert not any(name.startswith("draft") for name in plain.new_state().contents())
        assert plain.streams.experts.ceiling_bytes < model.streams.experts.ceiling_bytes
        events, _ = turn(plain, None, max_tokens=5)
        done = events[-1]
        assert isinstance(done, TurnDone) and done.stats.draft is None
        assert not [event for event in events if isinstance(event, Notice)]


# Sampling.


def two_samples(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, int]:
    """Pearson's statistic of two equally large samples against their sum, and its degrees of freedom."""
    total = ours + theirs
    kept = total > 0
    statistic = ((ours - theirs).double() ** 2)[kept] / total[kept]
    return float(statistic.sum()), int(kept.sum()) - 1


CRITICAL = {4: 18.47, 5: 20.52, 6: 22.46, 7: 24.32, 8: 26.12, 9: 27.88, 10: 29.59, 11: 31.26}
"""The 0.1 % points of chi-square by degrees of freedom (tables)."""


@pytest.mark.parametrize(("temperature", "draft"), [(0.7, "drawn"), (1.4, "unlikely")])
def test_what_is_said_with_drafts_is_distributed_as_without(temperature: float, draft: str) -> None:
    # 20,000 times a draft, and what is said in its place: accepted or redrawn; top-p cuts the tail off.
    n = 20_000
    generator = torch.Generator().manual_seed(3)
    logits, nearly = (torch.randn(12, generator=generator) for _ in range(2))
    settings = SamplerSettings(temperature=temperature, top_p=0.9, seed=17)
    sampler = Sampler(settings)
    wanted, from_head = sampler.distribution(logits), sampler.distribution(logits + nearly)
    fifth = int(wanted.argsort(descending=True)[4])
    ours = torch.zeros(12, dtype=torch.int64)
    accepted = torch.zeros(12, dtype=torch.int64)
    for position in range(n):
        guess = sampler.pick(from_head, position) if draft == "drawn" else fifth
        tokens, n_right = settle((wanted, wanted), [guess], position, sampler.pick, ())
        assert (n_right == 1) == (tokens[0] == guess)  # what was rejected is not drawn again
        ours[tokens[0]] += 1
        accepted[guess] += n_right
    alone = Sampler(SamplerSettings(temperature=temperature, top_p=0.9, seed=18))
    theirs = torch.bincount(torch.tensor([alone.pick(wanted, position) for position in range(n)]), minlength=12)
    assert not ours[wanted == 0].any()
    statistic, freedom = two_samples(ours, theirs)
    assert statistic < CRITICAL[freedom]
    if draft == "unlikely":  # one that does not hang on chance is accepted as often as the model would say it
        expected = float(wanted[fifth])
        assert float(accepted[fifth]) / n == pytest.approx(expected, abs=4 * (expected / n) ** 0.5)
    else:  # drawn with the same chance numbers from a distribution at distance d, at least (1 - d) / (1 + d) agree
        distance = float((from_head - wanted).abs().sum() / 2)
        assert 0.1 < distance < 0.9
        assert float(accepted.sum()) / n > (1 - distance) / (1 + distance) - 0.02


def test_sampled_blocks_of_a_model_fit_its_own_distribution(model: Model) -> None:
    # 2,000 seeds: the second token behind a prompt, in a block whose first draft is right or not as chance has it.
    state, logits = prefilled(model, PROMPT)
    first = int(logits.argmax())
    result = model.forward(state, [first], "decode")
    settings = {"temperature": 1.0, "top_k": 8, "top_p": 0.9}
    wanted = Sampler(SamplerSettings(**settings)).distribution(result.logits[-1])
    guess = int(wanted.argmax())
    rows = model.forward(state, [first, guess], "decode", n_logits=2).logits
    n, counts = 2_000, torch.zeros(512, dtype=torch.int64)
    for seed in range(n):
        draw = Sampler(SamplerSettings(**settings, seed=seed)).draw
        counts[settle(rows, [guess], state.n_tokens + 1, draw, ())[0][0]] += 1
    kept = wanted > 0
    assert int(counts[~kept].sum()) == 0
    statistic = float((((counts - n * wanted) ** 2) / (n * wanted))[kept].sum())
    assert statistic < {1: 10.83, 2: 13.82, 3: 16.27, **CRITICAL}[int(kept.sum()) - 1]


def test_a_block_is_no_longer_than_the_schedule_lets_rows_be_decoded_together(tiny_config: ModelConfig) -> None:
    assert max_decode_rows(tiny_config, 1, 6, 5, "published") < 6  # in the first few tokens only
    with opened(TINY / "checkpoint") as tiny:
        known = Sequential.of(tiny, [3], 12)
        events = list(generate(
            tiny, tiny.new_state(), [3], sampler=GREEDY, max_tokens=12, stop_ids=(),
            drafter=drafter_of(Forced(known, 512)),
        ))  # fmt: skip
        assert said(events) == known.tokens
