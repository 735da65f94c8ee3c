"""The token loop: what ends a turn, what a stop leaves behind, what is counted."""

from collections.abc import Iterator

import pytest
import torch

from engine.config import ModelConfig
from engine.errors import PromptError, Stopped
from engine.events import Event, PrefillProgress, TextDelta, TokenDrawn, TurnDone
from engine.generate import generate
from engine.model import Model
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.streams import StreamSettings
from engine.tokens import ChatTokenizer
from engine.turn import run_turn
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY
from tests.engine.test_state import prefilled, same

PROMPT = [0, 285, 151, 303, 141, 22, 77, 78, 79, 80, 81]
GREEDY = SamplerSettings(temperature=0)


def run(model: Model, **options: object) -> list[Event]:
    arguments: dict[str, object] = {"sampler": Sampler(GREEDY), "max_tokens": 6, "stop_ids": frozenset()} | options
    return list(generate(model, model.new_state(), PROMPT, **arguments))  # type: ignore[arg-type]


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenDrawn)]


@pytest.fixture(scope="module")
def greedy(tiny_model: Model) -> list[int]:
    """The continuation by hand: prefill, argmax, one-token decodes."""
    state = tiny_model.new_state()
    result = tiny_model.forward(state, PROMPT, "prefill")
    found = []
    for _ in range(6):
        state.commit(result.step)
        found.append(int(result.logits[-1].argmax()))
        result = tiny_model.forward(state, found[-1:], "decode")
    return found


def test_greedy_tokens_are_the_argmax_of_each_forward(tiny_model: Model, greedy: list[int]) -> None:
    assert tokens(run(tiny_model)) == greedy


@pytest.mark.parametrize("chunk", [1, 3, 7, 32])
def test_chunks_do_not_change_the_tokens(tiny_model: Model, greedy: list[int], chunk: int) -> None:
    assert tokens(run(tiny_model, chunk_tokens=chunk)) == greedy


def test_progress_is_reported_before_the_first_chunk_and_after_each(tiny_model: Model) -> None:
    events = [e for e in run(tiny_model, chunk_tokens=4) if isinstance(e, PrefillProgress)]
    assert [(e.done_tokens, e.total_tokens) for e in events] == [(0, 11), (4, 11), (8, 11), (11, 11)]
    assert [e.read_bytes for e in events] == sorted(e.read_bytes for e in events)


def test_an_end_token_ends_the_turn_and_is_not_said(tiny_model: Model, greedy: list[int]) -> None:
    events = run(tiny_model, stop_ids=frozenset({greedy[3]}))
    assert tokens(events) == greedy[: greedy.index(greedy[3])]
    assert isinstance(events[-1], TurnDone) and events[-1].reason == "stop"


def test_the_token_limit_ends_the_turn(tiny_model: Model, greedy: list[int]) -> None:
    events = run(tiny_model, max_tokens=2)
    assert tokens(events) == greedy[:2]
    done = events[-1]
    assert isinstance(done, TurnDone) and done.reason == "length"
    assert (done.stats.prompt_tokens, done.stats.answer_tokens, done.stats.reused_tokens) == (11, 2, 0)


def test_the_figures_of_the_drives_are_those_of_this_turn(tiny_config: ModelConfig) -> None:
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        settings = StreamSettings(slots_per_layer=1, spare_slots=0, cache_rows=0)
        model = Model.open(checkpoint, tiny_config, streams=settings)
        run(model, max_tokens=2)  # what came before must not count
        (before,) = model.streams.drives()
        done = run(model, max_tokens=2)[-1]
        (after,) = model.streams.drives()
        model.close()
    assert isinstance(done, TurnDone)
    (figures,) = done.stats.drives
    assert (figures.drive, figures.n_errors) == (after.drive, 0)
    assert figures.n_reads == after.n_reads - before.n_reads > 0
    assert figures.read_bytes == after.read_bytes - before.read_bytes >= figures.payload_bytes
    assert figures.payload_bytes == done.stats.read_bytes > 0
    assert figures.rate_bytes_s == pytest.approx(figures.read_bytes / figures.busy_s)


def test_a_turn_that_reads_nothing_names_no_drive(tiny_model: Model) -> None:
    run(tiny_model, max_tokens=2)  # everything it needs is in memory after this
    done = run(tiny_model, max_tokens=2)[-1]
    assert isinstance(done, TurnDone) and done.stats.drives == () and done.stats.read_bytes == 0


def test_a_full_context_ends_the_turn_with_its_own_reason(tiny_model: Model, greedy: list[int]) -> None:
    events = run(tiny_model, context_tokens=13)
    done = events[-1]
    assert isinstance(done, TurnDone) and done.reason == "context"
    assert tokens(events) == greedy[:3]  # positions 11 and 12 are run, the third token has no place


@pytest.mark.parametrize("allowed_layers", [0, 3, 8, 9, 20])
def test_a_stop_leaves_the_state_at_a_token_boundary_and_going_on_gives_the_same(
    tiny_model: Model, greedy: list[int], allowed_layers: int
) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 8 * 4 + allowed_layers  # somewhere after the prefill

    state = tiny_model.new_state()
    events: Iterator[Event] = generate(
        tiny_model, state, PROMPT, sampler=Sampler(GREEDY), max_tokens=6, stop_ids=(), should_stop=stop
    )
    said = list(events)
    done = said[-1]
    assert isinstance(done, TurnDone) and done.reason == "stopped"
    drawn = tokens(said)
    assert drawn == greedy[: len(drawn)]
    # What is in the state is the prompt and the tokens that were run; the last one drawn may not have been.
    n_run = state.n_tokens - len(PROMPT)
    if state.n_tokens >= len(PROMPT):
        replay = prefilled(tiny_model, PROMPT)
        for token in greedy[:n_run]:
            replay.commit(tiny_model.forward(replay, [token], "decode").step)
        assert same(state, replay)
    else:
        assert state.n_tokens == 0


def test_a_stop_in_the_prompt_drops_the_chunk_in_the_works(tiny_model: Model) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 40

    state = tiny_model.new_state()
    said = list(generate(
        tiny_model, state, PROMPT, sampler=Sampler(GREEDY), max_tokens=6, stop_ids=(), chunk_tokens=4, should_stop=stop
    ))  # fmt: skip
    assert isinstance(said[-1], TurnDone) and said[-1].reason == "stopped"
    assert state.n_tokens in (0, 4, 8)
    assert state.tokens == PROMPT[: state.n_tokens]


def test_loading_can_be_stopped(tiny_model: Model, tiny_config: ModelConfig) -> None:
    seen: list[int] = []
    with pytest.raises(Stopped):
        Model.open(
            tiny_model.checkpoint,
            tiny_config,
            streams=StreamSettings(slots_per_layer=1),
            on_progress=lambda e: seen.append(e.done_bytes),
            should_stop=lambda: len(seen) > 4,
        )
    assert len(seen) == 5 and seen == sorted(seen)


def test_an_empty_prompt_and_ids_outside_the_vocabulary_are_refused(tiny_model: Model) -> None:
    with pytest.raises(PromptError, match="no tokens"):
        list(generate(tiny_model, tiny_model.new_state(), [], sampler=Sampler(GREEDY), max_tokens=1, stop_ids=()))
    for bad in (512, -1):
        with pytest.raises(PromptError, match=f"token id {bad} is outside the vocabulary of 512"):
            tiny_model.forward(tiny_model.new_state(), [0, bad], "prefill")


def test_a_seed_repeats_and_another_differs(tiny_model: Model) -> None:
    def sampled(seed: int) -> list[int]:
        return tokens(run(tiny_model, sampler=Sampler(SamplerSettings(temperature=1.5, seed=seed))))

    assert sampled(11) == sampled(11)
    assert sampled(11) != sampled(12)


def test_a_turn_gives_the_text_of_its_tokens(tiny_model: Model, greedy: list[int]) -> None:
    tokenizer = ChatTokenizer.load(TINY / "checkpoint")
    events = list(run_turn(
        tiny_model, tiny_model.new_state(), tokenizer, PROMPT, sampler=Sampler(GREEDY), max_tokens=6, thinking=False,
        stop_ids=(),
    ))  # fmt: skip
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert tokens(events) == greedy
    assert text == b"".join(tokenizer.token_bytes(t) or b"" for t in greedy).decode("utf-8", "replace").lstrip("\n")
    assert isinstance(events[-1], TurnDone)


def test_a_stop_string_ends_the_turn(tiny_model: Model, greedy: list[int]) -> None:
    tokenizer = ChatTokenizer.load(TINY / "checkpoint")
    whole = tokenizer.decode(greedy).lstrip("\n")
    cut = whole[2:4]
    events = list(run_turn(
        tiny_model, tiny_model.new_state(), tokenizer, PROMPT, sampler=Sampler(GREEDY), max_tokens=6, thinking=False,
        stop_ids=(), stop=[cut],
    ))  # fmt: skip
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == whole[: whole.index(cut)]
    assert isinstance(events[-1], TurnDone) and events[-1].reason == "stop"


def test_logits_are_float32_of_the_last_rows(tiny_model: Model) -> None:
    state = tiny_model.new_state()
    every = tiny_model.forward(state, PROMPT, "prefill", n_logits=len(PROMPT)).logits
    last = tiny_model.forward(state, PROMPT, "prefill").logits
    assert every.shape == (11, 512) and last.shape == (1, 512) and last.dtype == torch.float32
    assert torch.allclose(every[-1], last[0], atol=1e-4)
