"""Staging and commit: whatever is not committed never happened."""

import pytest
import torch

from engine.caches import Growing
from engine.config import ModelConfig
from engine.model import Model
from engine.schedule import max_decode_rows
from engine.state import State
from tests.engine.drafting import opened
from tests.geometries import CASES
from tests.maker import make


def same(a: State, b: State) -> bool:
    ours, theirs = a.contents(), b.contents()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def prefilled(model: Model, ids: list[int]) -> State:
    state = model.new_state()
    state.commit(model.forward(state, ids, "prefill").step)
    return state


def test_rows_survive_growth() -> None:
    rows = Growing(3)
    want = torch.arange(3 * 700, dtype=torch.float32).view(700, 3)
    for first in range(0, 700, 7):
        rows.write(first, want[first : first + 7])
    assert torch.equal(rows.upto(700), want)
    rows.write(5, want[:2])  # after a cut back
    assert torch.equal(rows.upto(7)[5:], want[:2])


def test_a_forward_that_is_not_committed_changes_nothing(tiny_model: Model) -> None:
    ids = [0, 5, 17, 300, 8, 9, 44, 45, 46, 47, 48]
    state, untouched = prefilled(tiny_model, ids), prefilled(tiny_model, ids)
    tiny_model.forward(state, [1, 2, 3], "decode")
    tiny_model.forward(state, list(range(40)), "prefill")
    assert same(state, untouched)


@pytest.mark.parametrize("prompt_tokens", [5, 8, 11, 20])
@pytest.mark.parametrize("accepted", range(1, 6))
def test_after_committing_some_rows_the_state_is_the_sequential_one(
    tiny_model: Model, tiny_config: ModelConfig, prompt_tokens: int, accepted: int
) -> None:
    prompt = [0, *range(100, 99 + prompt_tokens)]
    rows = [7, 450, 33, 12, 500, 81]
    together, alone = prefilled(tiny_model, prompt), prefilled(tiny_model, prompt)
    n = max_decode_rows(tiny_config, together.n_tokens, len(rows), together.index_owner, "published")
    step = tiny_model.forward(together, rows[:n], "decode", n_logits=n)
    together.commit(step.step, min(accepted, n))
    for token in rows[: min(accepted, n)]:
        last = tiny_model.forward(alone, [token], "decode")
        alone.commit(last.step)
    ours, theirs = together.contents(), alone.contents()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].shape == value.shape, name
        # The torch path sums rows of a matrix product in another order when there are more of them.
        assert torch.allclose(ours[name].float(), value.float(), atol=2e-4), name
    assert torch.allclose(step.logits[min(accepted, n) - 1], last.logits[0], atol=2e-4)


def test_committing_a_part_of_a_prefill_is_refused(tiny_model: Model) -> None:
    state = tiny_model.new_state()
    step = tiny_model.forward(state, [0, 1, 2], "prefill").step
    with pytest.raises(AssertionError):
        state.commit(step, 2)


def test_a_whole_step_is_committed_as_one_that_could_be_cut_and_keeps_less_until_then(tiny_model: Model) -> None:
    prompt, rows = list(range(3, 12)), [7, 450, 33, 12, 500, 81]
    whole, cut = prefilled(tiny_model, prompt), prefilled(tiny_model, prompt)
    step = tiny_model.forward(whole, rows, "decode", is_whole=True).step
    other = tiny_model.forward(cut, rows, "decode").step
    kept, all_of_it = (sum(len(one.values) for one in each.open_groups.values()) for each in (step, other))
    assert kept < all_of_it == len(rows) * len(other.open_groups)
    with pytest.raises(AssertionError):
        whole.commit(step, 2)
    whole = prefilled(tiny_model, prompt)
    whole.commit(tiny_model.forward(whole, rows, "decode", is_whole=True).step)
    cut.commit(other)
    assert same(whole, cut)


def test_committing_a_step_of_another_position_is_refused(tiny_model: Model) -> None:
    state = tiny_model.new_state()
    first = tiny_model.forward(state, [0, 1], "prefill").step
    state.commit(first)
    with pytest.raises(AssertionError):
        state.commit(first)


def test_after_a_prefill_the_slot_is_the_last_source_that_has_a_group(tiny_model: Model) -> None:
    assert prefilled(tiny_model, [0]).index_owner == 5  # tiny-a: sources 2 and 4 at ratio 2, 5 at ratio 1
    assert prefilled(tiny_model, [0, 1, 2]).index_owner == 5


@pytest.mark.parametrize("chunk", [37, 8])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_tail_kept_in_passing_is_the_one_of_a_prompt_that_ends_there(
    tmp_path_factory: pytest.TempPathFactory, drafts: bool, chunk: int
) -> None:
    case = CASES["released-roles"]
    ids = case.prompt()
    marks = (1, 5, 8, 9, 24, 30, 31, 36, 37)  # within and on the borders of chunks, windows (8) and groups (2)
    folder = make(tmp_path_factory.mktemp("tails"), case.geometry, seed=case.seed)
    with opened(folder, drafts=drafts) as model:
        state = model.new_state()
        state.marks = frozenset(marks)
        for first in range(0, len(ids), chunk):
            state.commit(model.forward(state, ids[first : first + chunk], "prefill").step)
        assert sorted(state.tails) == list(marks)
        tails = dict(state.tails)
        for mark in marks:
            want = prefilled(model, ids[:mark]).tail()
            got = tails[mark]
            assert got.index_owner == want.index_owner
            pairs = [(got.windows, want.windows)]
            pairs += [
                (g, w) for s in got.open_groups for g, w in zip(got.open_groups[s], want.open_groups[s], strict=True)
            ]
            assert (got.draft is None) == (want.draft is None) == (not drafts)
            if got.draft is not None and want.draft is not None:
                n_keys = got.draft.shape[1]
                pairs.append((got.draft, want.draft[:, want.draft.shape[1] - n_keys :]))
                # Further than three windows before the end of its chunk, a mark need not have them.
                chunk_end = min(-(-mark // chunk) * chunk, len(ids))
                assert n_keys == want.draft.shape[1] or chunk_end - mark > 3 * case.geometry.window_size
            for ours, theirs in pairs:
                assert ours.shape == theirs.shape
                assert torch.allclose(ours, theirs, atol=2e-4)


def test_taken_back_to_a_tail_a_state_goes_on_as_if_it_had_never_been_further(tiny_model: Model) -> None:
    ids = [0, *range(100, 121)]
    state = tiny_model.new_state()
    state.marks = frozenset({15})
    state.commit(tiny_model.forward(state, ids, "prefill").step)
    tail = state.tails[15]
    for token in (7, 8, 9):
        state.commit(tiny_model.forward(state, [token], "decode").step)
    state.move_to(ids[:15], bytes(15), tail)
    assert close(state, prefilled(tiny_model, ids[:15]))
    for token in (44, 45):
        state.commit(tiny_model.forward(state, [token], "decode").step)
    other = prefilled(tiny_model, ids[:15])
    for token in (44, 45):
        other.commit(tiny_model.forward(other, [token], "decode").step)
    assert close(state, other)
    assert list(state.kinds) == [0] * 15 + [1, 1]


def close(a: State, b: State) -> bool:
    """Equal but for the last bits, which on the torch path depend on how many rows shared a forward."""
    ours, theirs = a.contents(), b.contents()
    return ours.keys() == theirs.keys() and all(
        ours[k].shape == theirs[k].shape and torch.allclose(ours[k].float(), theirs[k].float(), atol=2e-4) for k in ours
    )
