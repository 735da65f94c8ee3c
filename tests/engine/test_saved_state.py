"""States in files: what comes back is what was there, and whatever does not belong is refused by name."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import ModelConfig
from engine.errors import DamagedState, SavedStateError
from engine.model import Model
from engine.prompt import UserMessage
from engine.saved_state import Identity, read_pieces
from tests.engine.restore_speed import measure
from tests.engine.test_conversation import QUESTIONS, Chat
from tests.engine.test_state import same

IDENTITY = Identity(
    fingerprint="f", payload="p", tokenizer="t", numerics="exact", index_owner="published", kernels="torch"
)


@pytest.fixture(scope="module")
def chat(tiny_model: Model) -> Chat:
    """Three turns."""
    chat = Chat(tiny_model)
    for question in QUESTIONS[:3]:
        chat.ask(question)
    return chat


@pytest.fixture(scope="module")
def saved(chat: Chat, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a conversation of three turns."""
    path = tmp_path_factory.mktemp("saved") / "state"
    assert chat.all.save(path, chat.prompt(), IDENTITY) == path.stat().st_size
    return path.read_bytes()


def test_a_restored_conversation_goes_on_as_if_it_had_never_been_closed(
    chat: Chat, saved: bytes, tmp_path: Path, tiny_model: Model
) -> None:
    (tmp_path / "state").write_bytes(saved)
    again = Chat(tiny_model)
    again.messages = [*chat.messages, UserMessage(parts=(QUESTIONS[3],))]
    held = chat.all.reusable(again.prompt())
    assert again.all.restore(tmp_path / "state", IDENTITY) == held > 0
    assert again.answer(again.prompt()) == chat.answer(again.prompt())
    assert again.done.stats.reused_tokens == chat.done.stats.reused_tokens == held
    assert same(again.all.kept.state, chat.all.kept.state)


def test_restoring_what_is_here_already_changes_nothing(chat: Chat, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(saved)
    before = (chat.all.kept.n_points, chat.all.kept.n_bytes)
    chat.all.restore(tmp_path / "state", IDENTITY)
    assert (chat.all.kept.n_points, chat.all.kept.n_bytes) == before


def test_only_the_user_can_read_the_file_and_nothing_lies_beside_it(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("older")
    chat.all.save(path, chat.prompt(), IDENTITY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_of_a_conversation_that_is_not_kept_nothing_is_written(chat: Chat, tmp_path: Path) -> None:
    other = chat.prompt([UserMessage(parts=("another one altogether",))])
    assert chat.all.save(tmp_path / "state", replace(other, ids=(9, *other.ids)), IDENTITY) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("fingerprint", "of another model"),
        ("payload", "of another model"),
        ("tokenizer", "of another model"),
        ("numerics", r"of another numerics \(exact, not reference\)"),
        ("index_owner", r"of another index owner \(published, not reference\)"),
        ("kernels", r"of another kernel path \(torch, not reference\)"),
    ],
)
def test_a_state_of_another_model_or_mode_is_refused_by_name(
    saved: bytes, tmp_path: Path, tiny_config: ModelConfig, field: str, told: str
) -> None:
    (tmp_path / "state").write_bytes(saved)
    with pytest.raises(SavedStateError, match=told) as caught:
        read_pieces(tmp_path / "state", tiny_config, replace(IDENTITY, **{field: "reference"}))
    assert not isinstance(caught.value, DamagedState)


def test_a_flipped_bit_is_found_wherever_it_is(saved: bytes, tmp_path: Path, tiny_config: ModelConfig) -> None:
    path = tmp_path / "state"
    for place in [*range(0, 40, 3), *range(40, len(saved), len(saved) // 60), len(saved) - 1]:
        flipped = bytearray(saved)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(SavedStateError) as caught:
            read_pieces(path, tiny_config, IDENTITY)
        # A version of tomorrow looks the same as a flipped bit in that place.
        assert isinstance(caught.value, DamagedState) != (8 <= place < 12), place


@pytest.mark.parametrize("length", [0, 1, 31, 32, 500, -4096, -1])
def test_a_file_that_was_cut_is_found_before_anything_is_read(
    saved: bytes, tmp_path: Path, tiny_config: ModelConfig, length: int
) -> None:
    (tmp_path / "state").write_bytes(saved[:length])
    with pytest.raises(DamagedState):
        read_pieces(tmp_path / "state", tiny_config, IDENTITY)
    (tmp_path / "state").write_bytes(saved + bytes(7))
    with pytest.raises(DamagedState, match="bytes"):
        read_pieces(tmp_path / "state", tiny_config, IDENTITY)


def test_a_folder_a_pipe_and_nothing_at_all_are_not_states(tmp_path: Path, tiny_config: ModelConfig) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "."):
        with pytest.raises(SavedStateError):
            read_pieces(tmp_path / name, tiny_config, IDENTITY)


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_what_cannot_be_written_leaves_what_was_there(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "state"
    path.write_text("older")
    match fails:
        case "write":
            monkeypatch.setattr("engine.saved_state._write_part", full)
        case "fsync":
            monkeypatch.setattr(os, "fsync", full)
        case _:
            monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SavedStateError, match="No space left on device"):
        chat.all.save(path, chat.prompt(), IDENTITY)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_restoring_is_twenty_times_faster_than_reading_again(tiny_model: Model, chat: Chat, tmp_path: Path) -> None:
    # `python -m tests.engine.restore_speed` measures 4,000 tokens.
    times = measure(tiny_model, chat.tokenizer, 250, tmp_path / "state")
    assert times.same
    assert times.read_s > 20 * times.restore_s
