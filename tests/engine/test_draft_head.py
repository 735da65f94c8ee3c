"""The draft head against the slow reference, on geometries that no golden file covers."""

from pathlib import Path

import pytest
import torch

from engine.draft.drafter import keeps_answers
from engine.draft.head import DraftTrace
from engine.draft.settings import DraftSettings
from engine.experts import expert_prefixes
from engine.model import never
from engine.streams import StreamSettings
from tests.engine.draft_timing import cycling, decode, successors
from tests.engine.drafting import GREEDY, opened, prefilled
from tests.engine.oracle import Oracle
from tests.geometries import CASES
from tests.maker import NO_TOWER, Geometry, make

N_PROMPT = 13
"""More than a window of 8, so that rings have wrapped. Each begins where the choices have margins."""


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("released-roles", 4),  # two stages that read the last two layers
        ("early-candidates", 3),  # two targets that are not the last layers
        ("two-copies", 0),  # the mean of two copies, and an engram before a target
        ("one-expert-active", 1),  # no renormalisation
        ("odd-dims", 2),  # scale blocks that straddle heads
    ],
)
def test_rounds_are_those_of_the_slow_reference(name: str, first: int, tmp_path: Path) -> None:
    case = CASES[name]
    folder = make(tmp_path, case.geometry, seed=case.seed)
    oracle = Oracle(folder)
    prompt = case.prompt()[first : first + N_PROMPT]
    rows = oracle.prefill(prompt)
    token = int(rows[-1].logits.argmax())
    with opened(folder) as model:
        assert model.head is not None
        state, _ = prefilled(model, prompt)
        for _ in range(2):  # right behind a prompt, and behind a decoded token
            want, trace = oracle.draft(token), DraftTrace()
            assert want.gaps["top1"] > 0.01 and want.gaps["router"] > 1e-4  # else nothing could be asked of float32
            ours = model.head.propose(state, token, 5, GREEDY.draw, never, trace)
            assert [token, *ours.ids] == want.ids
            assert ours.confidence == pytest.approx(want.confidence, abs=2e-4)
            assert trace.top_logits == pytest.approx(want.top_logit, abs=2e-4)
            for stage, experts in want.experts.items():
                assert [set(row) for row in trace.routing[stage].experts.tolist()] == [set(row) for row in experts]
            state.commit(model.forward(state, [token], "decode").step)
            token = int(oracle.decode(token).logits.argmax())


def test_fewer_drafts_are_the_first_of_more(tmp_path: Path) -> None:
    with opened(make(tmp_path, Geometry(), seed=2)) as model:
        assert model.head is not None
        state, _ = prefilled(model, [5, 6, 7, 8])
        every = model.head.propose(state, 9, 99, GREEDY.draw, never)
        assert len(every.ids) == len(every.confidence) == 5
        for n in range(1, 5):
            some = model.head.propose(state, 9, n, GREEDY.draw, never)
            assert some.ids == every.ids[:n]
            assert some.confidence == pytest.approx(every.confidence[:n], abs=1e-5)


def test_a_round_changes_nothing_and_needs_no_more_than_what_the_state_holds(tmp_path: Path) -> None:
    with opened(make(tmp_path, Geometry(), seed=2)) as model:
        assert model.head is not None
        state, _ = prefilled(model, list(range(3, 20)))
        before = state.contents()
        first = model.head.propose(state, 9, 5, GREEDY.draw, never)
        assert all(torch.equal(before[name], value) for name, value in state.contents().items())
        assert model.head.propose(state, 9, 5, GREEDY.draw, never) == first
        # A state taken over from a run without drafts has no keys yet: it drafts all the same, and fills as it goes.
        assert state.draft is not None
        state.draft.reset(state.n_tokens, None)
        assert len(model.head.propose(state, 9, 5, GREEDY.draw, never).ids) == 5
        assert state.contents()["draft.0"].shape == (0, 32)
        state.commit(model.forward(state, [9, 10, 11], "decode").step)
        assert state.contents()["draft.0"].shape == (3, 32)


def test_draft_stages_have_slots_of_their_own_behind_the_layers(tmp_path: Path) -> None:
    geometry = Geometry(n_layers=5, n_mtp_layers=2, dspark_n_routed_experts=6)
    with opened(make(tmp_path, geometry, seed=2), slots=4) as model:
        prefixes = expert_prefixes(model.config, drafts=True)
        assert prefixes[5] == ("mtp.0.ffn.experts.", 6) and prefixes[6] == ("mtp.1.ffn.experts.", 6)
        assert set(expert_prefixes(model.config)) == set(range(5))
        assert model.head is not None
        state, _ = prefilled(model, [5, 6, 7, 8])
        model.head.propose(state, 9, 5, GREEDY.draw, never)
        layers = model.streams.experts.stats().layers
        assert layers[5].n_misses > 0 and layers[6].n_misses > 0
    assert StreamSettings(slots_per_layer=4).spare_slots > 0  # a block's union may exceed a layer's own slots


def test_what_is_handed_over_is_the_copies_added_up_in_order(tmp_path: Path) -> None:
    with opened(make(tmp_path, Geometry(), seed=2)) as model:
        assert model.head is not None
        h = torch.randn(3, model.config.hc_mult, model.config.dim, generator=torch.Generator().manual_seed(1))
        want = h[:, 0].clone()
        for copy in range(1, model.config.hc_mult):
            want += h[:, copy]
        assert torch.equal(model.head.summed(h), want)
        assert torch.equal(model.head.summed(h[1:2]), want[1:2])


SMALL = Geometry(dim=128, head_dim=64, n_routed_experts=32, n_activated_experts=4, vision=NO_TOWER)


def test_a_head_that_agrees_saves_forwards_and_reads(tmp_path: Path) -> None:
    # `python -m tests.engine.draft_timing` measures the same against the clock, with experts a hundred times as large.
    folder = cycling(tmp_path, head_knows=True, geometry=SMALL)
    plain, alone = decode(folder, DraftSettings(mode="off"), 37)
    drafted, together = decode(folder, DraftSettings(mode="on"), 37)
    assert drafted == plain
    following = successors(512)
    assert [following[token] for token in plain[:-1]] == plain[1:]
    assert together.draft is not None
    assert together.draft.accepted == together.draft.drafted and together.draft.tokens_per_forward == 6
    # Four of 32 experts, six times over: a block needs 32 (1 - (28/32)^6) = 18 of them where single tokens need 24.
    assert together.expert_misses < alone.expert_misses
    assert together.expert_hits + together.expert_misses < 0.9 * (alone.expert_hits + alone.expert_misses)


def test_a_head_that_never_agrees_is_soon_left_alone(tmp_path: Path) -> None:
    folder = cycling(tmp_path, head_knows=False, geometry=SMALL)
    plain, _ = decode(folder, DraftSettings(mode="off"), 40)
    drafted, stats = decode(folder, DraftSettings(), 40)
    if not keeps_answers("exact"):
        pytest.skip("the torch path was asked for, on which nothing is drafted by itself")
    assert drafted == plain
    assert stats.draft is not None and stats.draft.accepted <= 1
    assert stats.draft.pauses and stats.draft.rounds <= 10
