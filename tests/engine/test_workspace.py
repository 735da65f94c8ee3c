"""Memory for results: handed out again only when it was given up, and never seen by whoever keeps a result."""

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.errors import Stopped
from engine.kernels import FRESH, Workspace
from engine.model import Model, Trace
from engine.state import State


def test_what_is_taken_together_lies_apart_and_is_the_same_the_next_time() -> None:
    work = Workspace()
    for _ in range(2):  # the second time all of it fits
        work.take(3, 5)
        work.take(7, dtype=torch.int64)
        work.clear()
    a, b = work.take(3, 5), work.take(7, dtype=torch.int64)
    a.fill_(1.0)
    b.fill_(-1)
    assert bool((a == 1).all()) and a.shape == (3, 5) and a.is_contiguous()
    assert b.dtype == torch.int64 and b.data_ptr() % 64 == a.data_ptr() % 64 == 0
    work.clear()
    assert work.take(3, 5) is a and work.take(7, dtype=torch.int64) is b
    work.clear()
    assert work.take(15).data_ptr() == a.data_ptr()  # another shape, the same memory


def test_what_does_not_fit_is_as_good_and_fits_from_then_on() -> None:
    work = Workspace()
    large, small = work.take(1000).fill_(2.0), work.take(8).fill_(3.0)
    assert work.n_bytes == 0
    work.clear()
    assert work.n_bytes >= 4 * 1008
    work.take(1000).fill_(5.0)
    work.take(8).fill_(5.0)
    assert bool((large == 2).all()) and bool((small == 3).all())
    work.release()
    assert work.n_bytes == 0


def test_another_shape_is_the_same_values_and_made_once() -> None:
    work = Workspace()
    for fits in (False, True, True):
        taken = work.take(2, 6).copy_(torch.arange(12.0).view(2, 6))
        view = work.reshaped(taken, 2, 3, 2)
        assert torch.equal(view, torch.arange(12.0).view(2, 3, 2)) and view.data_ptr() == taken.data_ptr()
        assert (work.reshaped(taken, 2, 3, 2) is view) is fits  # what did not fit is not held on to
        work.clear()
    strange = torch.zeros(4)
    assert work.reshaped(strange, 2, 2).shape == (2, 2)


def test_fresh_memory_is_nobody_elses() -> None:
    kept = [FRESH.take(4).fill_(i) for i in range(3)]
    FRESH.clear()
    assert [float(one[0]) for one in kept] == [0, 1, 2]


def step(model: Model, state: State, ids: list[int], trace: Trace) -> tuple[Tensor, ...]:
    """A decode step; all that its caller may keep."""
    result = model.forward(state, ids, "decode", n_logits=len(ids), trace=trace)
    parts = [result.logits, *trace.selections.values(), *trace.streams]
    return (*parts, *(part for routing in trace.routing.values() for part in routing))


@pytest.mark.parametrize("n_rows", [1, 4])
def test_what_a_forward_hands_out_is_not_written_to_by_later_ones(tiny_model: Model, n_rows: int) -> None:
    state = tiny_model.new_state()
    state.marks = frozenset({9})
    state.commit(tiny_model.forward(state, list(range(20, 40)), "prefill").step)
    tail = state.tails[9]
    for ids in ([1] * n_rows, [2] * n_rows):  # from here on memory is only used again
        step(tiny_model, state, ids, Trace())
    kept = (
        *step(tiny_model, state, [7] * n_rows, Trace()),
        tail.windows,
        *(p for g in tail.open_groups.values() for p in g),
    )
    copies = [part.clone() for part in kept]
    for ids in ([8] * n_rows, list(range(100, 130))):
        state.commit(tiny_model.forward(state, ids, "decode" if len(ids) == n_rows else "prefill").step)
    step(tiny_model, state, [9] * n_rows, Trace())
    for part, copy in zip(kept, copies, strict=True):
        assert torch.equal(part, copy)


def test_a_step_behind_a_prompt_gives_back_what_only_the_prompt_needed(tiny_model: Model) -> None:
    if kernels.native() is None:
        pytest.skip("the torch path was asked for, which keeps no memory")
    memory = tiny_model._memory
    parts = (memory.stream, memory.half)
    state = tiny_model.new_state()
    for _ in range(2):
        state.commit(tiny_model.forward(state, list(range(100)), "prefill").step)
    of_prompt = sum(part.n_bytes for part in parts)
    for token in (1, 2, 3):
        state.commit(tiny_model.forward(state, [token], "decode").step)
    of_step = sum(part.n_bytes for part in parts)
    # A hundred rows of the stream in four copies, twice, beside everything else; of one row a hundredth.
    assert of_prompt >= 2 * 100 * 4 * tiny_model.config.dim * 4
    assert 0 < of_step < of_prompt / 25
    for token in (4, 5):  # and keeps what a step needs
        state.commit(tiny_model.forward(state, [token], "decode").step)
        assert sum(part.n_bytes for part in parts) == of_step


def test_a_stopped_forward_leaves_nothing_behind(tiny_model: Model) -> None:
    state = tiny_model.new_state()
    state.commit(tiny_model.forward(state, list(range(30)), "prefill").step)
    want = tiny_model.forward(state, [5], "decode").logits
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return asked > most

    most = 1 << 30
    tiny_model.forward(state, [6, 7], "decode", should_stop=ask)
    for most in range(0, asked, 5):  # noqa: B007 - `ask` reads it
        asked = 0
        with pytest.raises(Stopped):
            tiny_model.forward(state, [6, 7], "decode", should_stop=ask)
        assert torch.equal(tiny_model.forward(state, [5], "decode").logits, want)
