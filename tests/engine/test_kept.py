"""The tree of kept states, without a model: values that follow from the ids before them stand for what one computes."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine import kept as kept_module
from engine.config import ModelConfig
from engine.kept import KeptStates, Piece
from engine.state import KINDS, Rows, State
from tests.engine.test_state import same


def value(ids: Sequence[int], kinds: bytes, what: int, width: int) -> Tensor:
    """What a computation might give for the last of `ids`: another for every other beginning, rule or purpose."""
    draw = random.Random(str((tuple(ids), kinds, what)))
    return torch.tensor([draw.random() for _ in range(width)])


def feed(state: State, ids: Sequence[int], kind: int) -> None:
    """Commit positions one by one, as forwards would."""
    for token in ids:
        state.tokens.append(token)
        state.kinds.append(kind)
        position = state.n_tokens - 1
        past = (state.tokens, bytes(state.kinds))
        config = state.config
        for layer, window in enumerate(state.windows):
            window.append(value(*past, layer, config.head_dim).unsqueeze(0))
        for layer, cache in state.sources.items():
            if (position + 1) % cache.ratio == 0:
                group = position // cache.ratio
                cache.latents.write(group, value(*past, 100 + layer, config.head_dim).unsqueeze(0))
                cache.keys.write(group, value(*past, 200 + layer, config.index_head_dim).unsqueeze(0))
            else:
                cache.open_values[position % cache.ratio] = value(*past, 300 + layer, config.head_dim)
                cache.open_gates[position % cache.ratio] = value(*past, 400 + layer, config.head_dim)
        state.index_owner = config.kv_source_layers[position % len(config.kv_source_layers)]


def fresh(config: ModelConfig, ids: Sequence[int], kinds: bytes) -> State:
    """A state of those positions that was never taken anywhere."""
    state = State(config)
    for token, kind in zip(ids, kinds, strict=True):
        feed(state, [token], kind)
    return state


@pytest.mark.parametrize("room_bytes", [10_000_000, 60_000, 0])
def test_wherever_the_live_state_is_taken_it_is_what_it_would_be_there(
    tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    monkeypatch.setattr(kept_module, "LEAST_STATE_BYTES", room_bytes)
    draw = random.Random(room_bytes)
    kept = KeptStates(State(tiny_config), 0)
    said: list[list[int]] = [[]]  # every prompt with its reply
    n_reused = 0
    for _ in range(40):
        before = draw.choice(said)
        prompt = before[: draw.randint(0, len(before))] + [draw.randint(0, 1) for _ in range(draw.randint(1, 6))]
        point = kept.find(prompt, [(0, len(prompt))] if draw.random() < 0.7 else ())
        kept.go_to(point)
        n = kept.state.n_tokens
        n_reused += n
        assert kept.state.tokens == prompt[:n] and n < len(prompt)
        assert same(kept.state, fresh(tiny_config, prompt[:n], bytes(kept.state.kinds)))
        if draw.random() < 0.3 and len(prompt) - n > 1:  # a mark in passing
            feed(kept.state, prompt[n : n + 1], KINDS["prefill"])
            kept.state.tails[n + 1] = kept.state.tail()
            n += 1
        feed(kept.state, prompt[n:], KINDS["prefill"])
        reply = [draw.randint(0, 1) for _ in range(draw.randint(0, 5))]
        feed(kept.state, reply, KINDS["decode"])
        kept.keep()
        said.append(prompt + reply)
        assert kept.n_bytes <= room_bytes or kept.n_points == 1
    assert n_reused > 0


def test_everything_kept_survives_being_taken_out_and_in(tiny_config: ModelConfig) -> None:
    kept, other = KeptStates(State(tiny_config)), KeptStates(State(tiny_config))
    feed(kept.state, [1, 0, 1, 1, 0], KINDS["prefill"])
    kept.keep()
    feed(kept.state, [0, 0, 1], KINDS["decode"])
    kept.keep()
    wanted = [1, 0, 1, 1, 0, 0, 0, 1, 9]
    point = kept.find(wanted, [(5, 8)])
    assert point.n_tokens == 8
    other.adopt(list(kept.pieces(point)))
    other.go_to(other.find(wanted, [(5, 8)]))
    assert same(other.state, kept.state)
    assert kept.find(wanted).n_tokens == 5  # what was decoded is no prompt
    assert kept.find(wanted[:8], [(5, 8)]).n_tokens == 5  # something has to be left to run


def test_a_state_that_is_restored_first_does_not_lie_in_the_live_one(tiny_config: ModelConfig) -> None:
    source = fresh(tiny_config, [1, 1, 0], bytes(3))
    piece = Piece(
        ids=torch.tensor([1, 1, 0], dtype=torch.int32).numpy(),
        kinds=bytes(3),
        tail=source.tail(),
        rows=source.rows(0, 3),
    )
    kept = KeptStates(State(tiny_config))
    feed(kept.state, [0, 0], KINDS["prefill"])
    kept.keep()
    kept.adopt([piece])
    kept.go_to(kept.find([1, 1, 0, 7]))
    assert same(kept.state, source)
    kept.go_to(kept.find([0, 0, 7]))
    assert same(kept.state, fresh(tiny_config, [0, 0], bytes(2)))


def test_room_is_made_before_the_live_state_grows_into_it(
    tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "LEAST_STATE_BYTES", 0)
    state = State(tiny_config)
    kept = KeptStates(state, state.n_bytes + 1_000_000)
    for token in range(4):
        kept.go_to(kept.find(()))
        feed(state, [token, token], KINDS["prefill"])
        kept.keep()
    assert kept.n_points == 4
    kept.make_room(100)
    assert kept.n_points == 4  # a short prompt needs nothing of it
    widths = tiny_config.head_dim + tiny_config.index_head_dim
    per_token = sum(widths * 4 / tiny_config.ratio(layer) for layer in tiny_config.kv_source_layers)
    kept.make_room(round(1_000_000 / per_token))
    assert kept.n_points == 1
    assert kept.find([3, 3, 9]).n_tokens == 2  # the newest


def test_of_a_branch_that_is_left_no_more_is_copied_than_there_is_room_for(
    tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "LEAST_STATE_BYTES", 0)
    state, ids = State(tiny_config), [token % 2 for token in range(80)]
    kept = KeptStates(state)
    for part in (ids[:40], ids[40:]):
        feed(state, part, KINDS["prefill"])
        kept.keep()
    half = state.rows_bytes(40, 80)
    ceiling = state.n_bytes + kept.n_bytes + half  # of its two halves one has room beside the live state
    monkeypatch.setattr(kept, "_state_bytes", ceiling)
    copied = 0
    rows_of = state.rows

    def rows(first: int, end: int) -> Rows:
        nonlocal copied
        found = rows_of(first, end)
        copied += sum(part.nbytes for pair in found.values() for part in pair)
        return found

    monkeypatch.setattr(state, "rows", rows)
    kept.go_to(kept.find(()))
    assert copied == half and state.n_bytes + kept.n_bytes <= ceiling
    assert kept.find([*ids, 9]).n_tokens == 40  # its beginning
    kept.go_to(kept.find([*ids, 9]))
    assert same(state, fresh(tiny_config, ids[:40], bytes(40)))
