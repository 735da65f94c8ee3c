"""A row's result is the same to the last bit in any company: rows, chunks, threads. Native path only."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import kernels
from engine.config import load_config
from engine.kernels.native_path import library_file
from engine.model import Model
from engine.schedule import Rule
from engine.state import State
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY
from tests.geometries import CASES
from tests.maker import make

pytestmark = pytest.mark.skipif(library_file() is None, reason="the native kernels were not built: no C++ compiler")

N_TOKENS = 43


@pytest.fixture(scope="module", params=["tiny-a", "released-roles", "ratio-2-4-1"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The golden checkpoint and two others."""
    if kernels.native() is None:
        pytest.skip("the torch path was asked for, which promises no such thing")
    folder: Path = TINY / "checkpoint"
    if request.param != "tiny-a":
        case = CASES[request.param]
        folder = make(tmp_path_factory.mktemp(request.param), case.geometry, seed=case.seed, tweak=case.tweak)
    config = load_config(folder).config
    with Checkpoint.open(folder) as checkpoint:
        opened = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=config.n_routed_experts))
        threads = torch.get_num_threads()
        yield opened
        kernels.set_threads(threads)
        opened.close()


def tokens(model: Model) -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, model.config.vocab_size, (N_TOKENS,), generator=generator).tolist()


def run(model: Model, rows: int, rule: Rule, *, prefilled: int = 0) -> tuple[Tensor, State]:
    """Every token `rows` at a time, the first `prefilled` in one go; logits of all [T, V], and the state."""
    ids, state, logits = tokens(model), model.new_state(), []
    cuts = ([0, prefilled] if prefilled else [0]) + list(range(prefilled + rows, N_TOKENS, rows)) + [N_TOKENS]
    for first, last in pairwise(cuts):
        part = ids[first:last]
        result = model.forward(state, part, "prefill" if last <= prefilled else rule, n_logits=len(part))
        state.commit(result.step)
        logits.append(result.logits)
    return torch.cat(logits), state


def equal(got: tuple[Tensor, State], want: tuple[Tensor, State]) -> None:
    assert torch.equal(got[0], want[0])
    ours, theirs = got[1].contents(), want[1].contents()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_chunks_and_threads_do_not_change_a_bit(model: Model) -> None:
    kernels.set_threads(1)
    want = run(model, 1, "prefill")
    for threads, chunk in [(1, 7), (1, 32), (1, N_TOKENS), (2, 5), (2, 32), (2, N_TOKENS)]:
        kernels.set_threads(threads)
        equal(run(model, chunk, "prefill"), want)


def test_rows_decoded_together_do_not_change_a_bit(model: Model) -> None:
    kernels.set_threads(1)
    want = run(model, 1, "decode", prefilled=24)
    for threads, rows in [(1, 2), (1, 5), (1, 6), (2, 3), (2, 19)]:
        kernels.set_threads(threads)
        equal(run(model, rows, "decode", prefilled=24), want)
