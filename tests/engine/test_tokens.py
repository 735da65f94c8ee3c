"""The tokenizer against the recorded encodings of the released one, and as a file that may be wrong."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.errors import TokenizerError
from engine.tokens import ASSISTANT, BOS, EOS, SYSTEM, USER, ChatTokenizer, repair
from tests.v41_tokenizer import v41_record, write_v41_tokenizer

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny-a" / "checkpoint"
DEMO = ROOT / "assets" / "demo"


@pytest.fixture(scope="module")
def v41_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v41")
    write_v41_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def v41(v41_folder: Path) -> ChatTokenizer:
    return ChatTokenizer.load(v41_folder, image_token_id=129264)


def test_the_released_tokenizer_encodes_every_recorded_text(v41: ChatTokenizer) -> None:
    cases = v41_record()["cases"]
    assert len(cases) == 30
    for case in cases:
        assert v41.encode_plain(case["text"]) == case["plain_ids"], case["text"]


def test_special_ids_of_the_released_tokenizer(v41: ChatTokenizer) -> None:
    record = v41_record()
    assert v41.vocab_size == record["vocab_size"] == 129_280
    for spelling, token in record["special_ids"].items():
        assert v41.id_of(spelling) == token
        assert v41.token_bytes(token) == spelling.encode()
    assert v41.image_marker == "<｜deepseek_image｜>"


def test_the_image_spelling_is_the_tokenizers_own(tmp_path: Path) -> None:
    # V4 spells id 129264 otherwise (spec/prompt-format.md section 1); what counts is the id in the config.
    content = json.loads((TINY / "tokenizer.json").read_bytes())
    content["added_tokens"][-1]["content"] = "<｜image｜>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert ChatTokenizer.load(tmp_path, image_token_id=511).image_marker == "<｜image｜>"
    assert ChatTokenizer.load(tmp_path).image_marker is None


@pytest.mark.parametrize("folder", [TINY, DEMO], ids=["tiny-a", "demo"])
def test_ids_are_looked_up_by_spelling_in_the_small_tokenizers(folder: Path) -> None:
    tokenizer = ChatTokenizer.load(folder)
    for entry in json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]:
        assert tokenizer.id_of(entry["content"]) == entry["id"]
        assert tokenizer.has(entry["content"])


def test_a_missing_control_token_is_named() -> None:
    tokenizer = ChatTokenizer.load(TINY)
    assert not tokenizer.has("<｜ref｜>")
    with pytest.raises(TokenizerError, match="<｜ref｜>"):
        tokenizer.id_of("<｜ref｜>")
    with pytest.raises(TokenizerError, match="there is no control token a"):
        tokenizer.id_of("a")  # an ordinary token is not a control token


def test_ids_that_end_a_turn_and_ids_that_are_never_drawn(v41: ChatTokenizer) -> None:
    # spec/prompt-format.md section 5.
    assert v41.turn_ends == {v41.id_of(spelling) for spelling in (EOS, BOS, SYSTEM, USER, ASSISTANT)}
    spellings = {
        token["content"]: token["id"] for token in json.loads((TINY / "tokenizer.json").read_bytes())["added_tokens"]
    }
    tiny = ChatTokenizer.load(TINY, image_token_id=511)
    assert tiny.never_drawn == {2, 511, *range(480, 499)}
    assert spellings["<｜place▁holder▁no▁18｜>"] == 498
    assert {129264, 2, 129265, 129279} <= v41.never_drawn
    assert v41.never_drawn.isdisjoint({*v41.turn_ends, 128821, 128822, 128825, 129271, *range(3, 1000)})


# Bytes and decoding.


@pytest.mark.parametrize("folder", ["tiny-a", "demo", "v41"])
def test_every_token_decodes_as_the_library_decodes_it(folder: str, v41_folder: Path) -> None:
    where = {"tiny-a": TINY, "demo": DEMO, "v41": v41_folder}[folder]
    tokenizer = ChatTokenizer.load(where)
    library = Tokenizer.from_file(str(where / "tokenizer.json"))
    n_tokens = library.get_vocab_size(with_added_tokens=True)
    texts = library.decode_batch([[token] for token in range(n_tokens)], skip_special_tokens=False)
    assert [tokenizer.decode([token]) for token in range(n_tokens)] == texts
    assert tokenizer.vocab_size == n_tokens


@cache
def tiny_tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(TINY)


@given(st.text(max_size=50))
def test_text_survives_encoding_and_decoding(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_plain(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) or b"" for token in ids) == text.encode()


def test_ids_outside_the_vocabulary_are_nothing() -> None:
    tokenizer = ChatTokenizer.load(TINY)
    assert tokenizer.token_bytes(-1) is None
    assert tokenizer.token_bytes(512) is None
    assert tokenizer.decode([-1, 57, 512, 10**12]) == tokenizer.decode([57])


def test_a_broken_character_is_replaced(v41: ChatTokenizer) -> None:
    # Ids 3574, 102, 225 are the crab (tokenizer-v41.json); without the last it is no character.
    assert v41.decode([3574, 102, 225]) == "🦀"
    assert v41.decode([3574, 102]).endswith("\ufffd")


# Marked text.


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("", ""),
        ("plain é 🦀 \ufeff\0", "plain é 🦀 \ufeff\0"),
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud83e\udd80", "🦀"),  # the halves of a pair, in order
        ("\udd80\ud83e", "\ufffd\ufffd"),
        ("\ufeff\ufeffx", "\ufeff\ufeffx"),  # no byte order mark is eaten
    ],
)
def test_lone_surrogates_are_repaired(broken: str, whole: str) -> None:
    assert repair(broken) == whole
    tokenizer = ChatTokenizer.load(TINY)
    assert tokenizer.decode(tokenizer.encode_plain(broken)) == whole


def test_a_long_line_without_blanks_is_encoded(v41: ChatTokenizer) -> None:
    # B53: 500,000 characters, one word. Must not be quadratic; the file's timeout is the limit.
    assert v41.decode(v41.encode_plain("ab" * 250_000)) == "ab" * 250_000


# Files that are wrong.


def write_changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads((TINY / "tokenizer.json").read_bytes())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_truncation_and_padding_in_the_file_do_not_act(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 2}
    padding |= {"pad_type_id": 0, "pad_token": "<｜▁pad▁｜>"}
    write_changed(tmp_path, lambda content: content.update(truncation=truncation, padding=padding))
    text = "The quick brown fox"
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(library.encode(text).ids) == 50  # the file's settings are real
    assert ChatTokenizer.load(tmp_path).encode_plain(text) == ChatTokenizer.load(TINY).encode_plain(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content["added_tokens"].append({"id": 500, "content": "<new>"}), "cannot have id 500"),
        (lambda content: content["added_tokens"].append({"id": 3, "content": "<new>"}), "cannot have id 3"),
        (lambda content: content["added_tokens"].append({"id": 600, "content": "<think>"}), "cannot have id 600"),
        (lambda content: content["added_tokens"].append({"id": 600, "content": "\ud800"}), "is no text"),
        (lambda content: content["added_tokens"].append({"id": -1, "content": "x"}), "added_tokens"),
        (lambda content: content["added_tokens"].append({"id": 2**40, "content": "x"}), "added_tokens"),
        (lambda content: content["added_tokens"].append({"id": True, "content": "x"}), "added_tokens"),
        (lambda content: content.update(added_tokens=None), "added_tokens"),
        (lambda content: content["model"].update(vocab=[]), "vocab"),
        (lambda content: content["model"].update(vocab={"a": 2**32 - 1}), "vocab"),
        (lambda content: content["model"].update(merges=[["no", "such"]]), "not a usable tokenizer"),
        (lambda content: content["model"].update(type="WordPiece"), "model type is 'WordPiece'"),
        (lambda content: content.update(decoder={"type": "WordPiece"}), "decoder type is 'WordPiece'"),
        (lambda content: content.update(pre_tokenizer={"type": "Nonsense"}), "not a usable tokenizer"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    folder = write_changed(tmp_path, change)
    with pytest.raises(TokenizerError, match=says) as caught:
        ChatTokenizer.load(folder)
    assert str(folder / "tokenizer.json") in str(caught.value)


def test_an_image_id_the_tokenizer_does_not_have_is_refused() -> None:
    with pytest.raises(TokenizerError, match="no added token has id 129264"):
        ChatTokenizer.load(TINY, image_token_id=129264)
    with pytest.raises(TokenizerError, match="no added token has id 57"):
        ChatTokenizer.load(TINY, image_token_id=57)


def test_a_folder_without_a_tokenizer_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="there is no tokenizer") as caught:
        ChatTokenizer.load(tmp_path)
    assert caught.value.hint
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TokenizerError, match="cannot be read"):
        ChatTokenizer.load(tmp_path)
