"""Rows a conversation keeps, against plain lists; and what storing rounded keys in half the memory changes: nothing."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.caches import SPARE_ROWS, Growing, Window
from engine.config import ModelConfig
from engine.kept import KeptStates
from engine.model import Model
from engine.numerics import NUMERICS
from engine.saved_state import Identity, read_pieces, write_pieces
from engine.state import State
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY
from tests.engine.test_state import same


def numbered(first: int, n: int) -> Tensor:
    """Rows [n, 2] that say their position."""
    return torch.arange(first, first + n, dtype=torch.float32).unsqueeze(1).repeat(1, 2)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_a_window_is_the_newest_rows_whatever_was_staged(size: int) -> None:
    draw = random.Random(size)
    window, n = Window(size, 2), 0
    for _ in range(300):
        before = numbered(max(0, n - size), min(n, size))
        assert torch.equal(window.kept(), before)
        what = draw.random()
        if what < 0.7:  # a forward, of which some rows, or none, are taken
            n_rows = draw.choice((1, 1, 1, 6, SPARE_ROWS, SPARE_ROWS + 1, 3 * SPARE_ROWS))
            first = draw.choice((0, max(0, n_rows - size)))
            seen = window.stage(numbered(n, n_rows), first)
            n_before = min(n, size - 1)
            assert torch.equal(seen, numbered(n - n_before, n_before + n_rows))
            taken = n_rows if first else draw.choice((0, 1, n_rows))
            if taken:
                window.commit(taken)
                n += taken
        elif what < 0.9:
            n_rows = draw.randint(0, size)
            window.append(numbered(n, n_rows))
            n += n_rows
        else:  # taken back, or to another conversation
            n = draw.randint(0, 3 * size)
            window.replace(numbered(max(0, n - size), min(n, size)))


def test_a_staged_row_does_not_touch_a_committed_one() -> None:
    window = Window(4, 2)
    for position in range(200):
        kept = window.kept().clone()
        window.stage(torch.full((3, 2), torch.nan), 0)
        assert torch.equal(window.kept(), kept)
        window.append(numbered(position, 1))


def test_rows_count_from_when_they_are_written_not_from_when_there_is_room() -> None:
    rows = Growing(8)
    assert rows.n_bytes == 0
    rows.write(0, torch.ones(1000, 8))
    assert rows.n_bytes == 1000 * 8 * 4
    rows.write(4, torch.ones(1, 8))  # after a cut back the others are still there
    assert rows.n_bytes == 1000 * 8 * 4
    assert Growing(8, torch.bfloat16).upto(3).dtype == torch.bfloat16


@pytest.fixture(scope="module")
def reference(tiny_config: ModelConfig) -> Iterator[Model]:
    """The golden checkpoint with the released runtime's roundings."""
    settings = StreamSettings(slots_per_layer=tiny_config.n_routed_experts)
    with (
        Checkpoint.open(TINY / "checkpoint") as checkpoint,
        closing(Model.open(checkpoint, tiny_config, streams=settings, numerics="reference")) as model,
    ):
        yield model


def run(model: Model, state: State) -> list[Tensor]:
    """A prompt in two chunks, and steps of one row and of several, of which not all are taken; logits of all rows."""
    draw = random.Random(3)
    ids = [draw.randrange(model.config.vocab_size) for _ in range(18)]
    logits = []
    for first, last, rule, taken in (
        (0, 11, "prefill", 11), (11, 14, "prefill", 3), (14, 17, "decode", 2), (16, 17, "decode", 1),
        (17, 18, "decode", 1),
    ):  # fmt: skip
        result = model.forward(state, ids[first:last], rule, n_logits=last - first)  # type: ignore[arg-type]
        state.commit(result.step, taken)
        logits.append(result.logits)
    return logits


def test_rounded_keys_in_half_the_memory_change_no_bit(reference: Model, tmp_path: Path) -> None:
    config = reference.config
    halved, full = reference.new_state(), State(config)
    ours, theirs = run(reference, halved), run(reference, full)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    assert same(halved, full)
    assert halved.bytes_at(1000) * 2 == full.bytes_at(1000)
    assert halved.n_bytes * 2 == full.n_bytes
    # What is kept of them for later is as small, and is the same again from a file.
    assert halved.tail().windows.nbytes * 2 == full.tail().windows.nbytes
    kept = KeptStates(halved)
    kept.keep()
    identity = Identity(
        fingerprint="f", payload="p", tokenizer="t", numerics="reference", index_owner="published", kernels="torch"
    )
    point = kept.find([*halved.tokens, 0], [(0, halved.n_tokens)])
    write_pieces(tmp_path / "state", lambda: kept.pieces(point), identity)
    other_kept = KeptStates(State(config))
    other_kept.adopt(read_pieces(tmp_path / "state", config, identity))
    other_kept.go_to(other_kept.find([*halved.tokens, 0], [(0, halved.n_tokens)]))
    assert same(other_kept.state, full)


def test_unrounded_keys_stay_as_they_are(tiny_model: Model) -> None:
    """In `exact` anything narrower than float32 would change the answer: keys do not survive it."""
    assert NUMERICS["exact"].cached == torch.float32
    state = tiny_model.new_state()
    run(tiny_model, state)
    for name, value in state.contents().items():
        if name.startswith(("window.", "latents.", "keys.")):
            assert not torch.equal(value, value.to(torch.bfloat16).float()), name
