"""Where the time goes: nothing is counted twice, nothing is lost."""

from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
import torch

from engine.config import load_config
from engine.events import Phase, TurnDone
from engine.experts import expert_bytes
from engine.generate import generate
from engine.model import Model, Trace
from engine.phases import PHASES, PhaseClock
from engine.sampling import Sampler, SamplerSettings
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from tests.maker import Geometry, make


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_every_moment_belongs_to_the_phase_whose_lap_ends_it() -> None:
    now = Clock()
    clock = PhaseClock(now)
    now.now_s = 5.0
    clock.begin()  # what came before belongs to nobody
    for phase, at_s, n_bytes in [("dense", 6.0, 10), ("attention", 8.0, 20), ("dense", 8.5, 1)]:
        now.now_s = at_s
        clock.lap(phase, n_bytes)
    totals = clock.totals()
    assert totals.seconds == dict.fromkeys(PHASES, 0.0) | {"dense": 1.5, "attention": 2.0}
    assert totals.bytes == dict.fromkeys(PHASES, 0) | {"dense": 11, "attention": 20}


def test_of_the_time_around_a_wave_only_the_wait_is_reading() -> None:
    now = Clock()
    clock = PhaseClock(now)
    now.now_s = 4.0
    clock.waited(3.0, 700)
    totals = clock.totals()
    assert (totals.seconds["expert_reads"], totals.seconds["other"]) == (3.0, 1.0)
    assert (totals.bytes["expert_reads"], totals.bytes["other"]) == (700, 0)


def test_figures_are_what_happened_since_and_the_rest_of_the_time_is_other() -> None:
    now = Clock()
    clock = PhaseClock(now)
    now.now_s = 1.0
    clock.lap("head", 50)
    before = clock.totals()
    now.now_s = 3.0
    clock.lap("head", 50)
    figures = {one.phase: one for one in clock.totals().since(before).figures("decode", 2.5)}
    assert list(figures) == list(PHASES) == list(get_args(Phase))
    assert (figures["head"].seconds, figures["head"].bytes, figures["head"].rate_bytes_s) == (2.0, 50, 25.0)
    assert figures["other"].seconds == 0.5
    assert figures["engram"].rate_bytes_s == 0.0
    assert {one.work for one in figures.values()} == {"decode"}


@pytest.fixture(scope="module")
def done(tiny_model: Model) -> TurnDone:
    """A turn of 40 prompt tokens in two chunks and 4 drawn, from cold slots."""
    tiny_model.streams.experts.clear()
    events = list(
        generate(
            tiny_model,
            tiny_model.new_state(),
            list(range(40)),
            sampler=Sampler(SamplerSettings(temperature=0.0)),
            max_tokens=4,
            stop_ids=frozenset(),
            chunk_tokens=25,
        )
    )
    last = events[-1]
    assert isinstance(last, TurnDone)
    return last


def test_the_phases_of_a_turn_add_up_to_its_time(done: TurnDone) -> None:
    for work, total_s in (("prefill", done.stats.prefill_s), ("decode", done.stats.decode_s)):
        seconds = [one.seconds for one in done.stats.phases if one.work == work]
        assert len(seconds) == len(PHASES)
        assert all(one >= 0 for one in seconds)
        assert sum(seconds) == pytest.approx(total_s, rel=0.01)


def test_bytes_are_those_of_the_weights_a_forward_goes_through(done: TurnDone, tiny_model: Model) -> None:
    """Two chunks; then three decode steps, as the last token is not run: head [512, 64] in bf16, experts as asked."""
    config = tiny_model.config
    bytes_of = {(one.work, one.phase): one.bytes for one in done.stats.phases}
    head = config.vocab_size * config.dim * 2
    assert (bytes_of["prefill", "head"], bytes_of["decode", "head"]) == (2 * head, 3 * head)
    # One row uses its k experts in every layer, no two of them the same.
    used = 3 * config.n_layers * config.n_activated_experts
    assert bytes_of["decode", "experts"] == used * expert_bytes(config)
    assert bytes_of["prefill", "expert_reads"] + bytes_of["decode", "expert_reads"] == (
        done.stats.expert_misses * expert_bytes(config)
    )
    # Attention by hand: fp8 matrices with a byte of scale for 32x32, and what only some layers have, make it at least
    # the low-rank query matrix of every layer.
    assert bytes_of["decode", "attention"] >= 3 * config.n_layers * config.q_lora_rank * config.dim
    assert bytes_of["prefill", "attention"] * 3 == bytes_of["decode", "attention"] * 2
    assert bytes_of["prefill", "other"] == bytes_of["decode", "other"] == 0


@pytest.mark.parametrize(("slots", "spare", "waves_ahead"), [(48, 0, 1), (5, 4, 1), (5, 0, 0)])
def test_a_prefill_reads_each_expert_it_uses_once_for_each_layer_and_chunk(
    tmp_path: Path, slots: int, spare: int, waves_ahead: int
) -> None:
    """Counted: from cold slots, fewer than experts or not, 512 tokens read each distinct expert once a layer."""
    folder = make(
        tmp_path / "toy",
        Geometry(
            n_routed_experts=48,
            n_layers=3,
            compress_ratios=(0, 2, 1),
            n_mtp_layers=0,
            kv_source_layers=(1, 2),
            index_source_layers=(1, 2),
            candidate_source_layer=2,
        ),
        seed=3,
    )
    config = load_config(folder).config
    settings = StreamSettings(slots_per_layer=slots, spare_slots=spare, waves_ahead=waves_ahead)
    with Checkpoint.open(folder) as checkpoint, closing(Model.open(checkpoint, config, streams=settings)) as model:
        trace = Trace()
        ids = torch.randint(0, config.vocab_size, (512,), generator=torch.Generator().manual_seed(1)).tolist()
        model.forward(model.new_state(), ids, "prefill", trace=trace)
        layers = model.streams.experts.stats().layers
        for layer, routing in trace.routing.items():
            distinct = routing.experts.unique().numel()
            assert distinct > 20
            assert layers[layer].n_misses == distinct
            assert layers[layer].read_bytes == distinct * expert_bytes(config)
            assert layers[layer].n_hits == 0
