"""The engram front end against the golden data, the released values, and plain loops."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from engine.config import ModelConfig, load_config
from engine.engram import EngramFront
from engine.errors import ConfigError, TokenizerError
from engine.hashing import compressed_map, engram_tables, fold, lookback, require_declared_rows, row_ids
from engine.hashing.tables import is_prime
from tests.v41_tokenizer import write_v41_tokenizer

TINY = Path(__file__).parents[1] / "data" / "tiny-a"
TOKENIZER = TINY / "checkpoint" / "tokenizer.json"

RELEASED_ROWS = (384_006_168, 384_016_682)
RELEASED_MULTIPLIERS = (
    (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    (67716810739261, 51510806800915, 30921347202721, 82619226485591),
)
"""Of layers 1 and 14; spec sections 6.2 and 6.3."""


@pytest.fixture(scope="module")
def tiny() -> ModelConfig:
    return load_config(TINY / "checkpoint").config


@pytest.fixture(scope="module")
def released(tiny: ModelConfig) -> ModelConfig:
    """The engram numbers of the release; spec sections 1 and 2."""
    return dataclasses.replace(
        tiny,
        engram_layer_ids=(1, 14),
        engram_num_embeddings=RELEASED_ROWS,
        engram_max_ngram_size=4,
        engram_vocab_size=16_000_000,
        engram_n_heads=8,
        engram_compressed_vocab_size=99_092,
    )


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads((TINY / "golden" / "engram.json").read_text())


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v41_tokenizer(tmp_path_factory.mktemp("v41"))


# The compressed map.


def test_the_map_of_tiny_a_is_the_golden_one(golden: dict) -> None:
    assert compressed_map(TOKENIZER, n_classes=golden["compressed_vocab_size"]).tolist() == golden["token_map"]


def test_the_released_tokenizer_folds_into_99092_classes(v41: Path) -> None:
    classes = compressed_map(v41, n_classes=99_092)
    assert classes.shape == (129_280,)
    assert classes.dtype == np.int64
    assert sorted(set(classes.tolist())) == list(range(99_092))


def test_sample_tokens_of_the_released_tokenizer_share_a_class_where_they_look_alike(v41: Path) -> None:
    # The count alone is not proof: another order or fold can give the same (trap T40). Ids: tokenizer-v41.json.
    classes = compressed_map(v41, n_classes=99_092)
    assert classes[:3].tolist() == [0, 1, 2]  # the first three tokens are control tokens, each its own class
    assert classes[33310] == classes[19923] == classes[45948]  # "hello", "Hello", " Hello"
    assert classes[271] == classes[201] == classes[223]  # "\n\n", "\n", " " are all one blank, which is not lost
    assert len({int(classes[token]) for token in (0, 1, 2, 128799, 128803, 128804, 128821, 128822, 129264)}) == 9
    assert classes[105] != classes[102]  # fragments of a character keep their own spelling


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Hello", "hello"),
        (" Hello\n", "hello"),
        ("Café", "cafe"),
        ("ﬁ", "fi"),  # NFKC
        ("①", "1"),  # NFKC
        ("ΟΔΟΣ", "οδοσ"),  # a final capital sigma becomes the ordinary one
        ("İ", "i"),  # the dot is a mark once decomposed
        ("a \t\r\n b", "a b"),
        (" ", " "),
        ("\n\n\t", " "),
        ("", ""),
        ("\u00a0", " "),  # NFKC makes it a blank
        ("\u3000x\u3000", "x"),
        ("\u200bx\u200b", "\u200bx\u200b"),  # a zero-width space is no white space
        ("\x1cx\x1f", "\x1cx\x1f"),  # nor are the separators Python's strip() would take
        ("\u0085", ""),  # white space, but not one of the four that fold to a blank
        ("\u0301", ""),  # a lone accent
        ("a\u20dd", "a"),  # an enclosing mark (Me) goes too
        ("का", "क"),  # and a spacing mark (Mc)
    ],
)
def test_fold(text: str, folded: str) -> None:
    assert fold(text) == folded


def test_fold_agrees_with_the_tokenizers_normalizers_on_the_released_vocabulary(v41: Path) -> None:
    # The vendor folds with that library; its Unicode tables are not Python's.
    from tokenizers import Regex, Tokenizer, normalizers

    lone = "\ue000"
    theirs = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), lone),
            normalizers.Strip(),
            normalizers.Replace(lone, " "),
        ]
    )
    tokenizer = Tokenizer.from_file(str(v41))
    texts = tokenizer.decode_batch([[token] for token in range(129_280)], skip_special_tokens=False)
    assert [text for text in texts if fold(text) != theirs.normalize_str(text)] == []


def test_another_number_of_classes_is_refused_with_both_numbers() -> None:
    with pytest.raises(TokenizerError, match=r"435 classes.* 434 "):
        compressed_map(TOKENIZER, n_classes=434)


# Its cache.


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "made" / "map.cache"
    compressed_map(TOKENIZER, n_classes=435, cache=path)
    return path


def test_the_cache_is_used(cache: Path, golden: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_file: object) -> None:
        raise AssertionError("built although cached")

    monkeypatch.setattr("engine.hashing.token_map._build", unreachable)
    assert compressed_map(TOKENIZER, n_classes=435, cache=cache).tolist() == golden["token_map"]


def test_a_damaged_cache_is_rebuilt(cache: Path, golden: dict) -> None:
    whole = cache.read_bytes()
    header_end = whole.index(b"\n")
    flipped = bytearray(whole)
    flipped[header_end + 40] ^= 1
    for damaged in (b"", b"\n", b"[" * 100_000, whole[:-1], whole[:-4], whole + b"\0\0\0\0", bytes(flipped), b"null\n"):
        cache.write_bytes(damaged)
        assert compressed_map(TOKENIZER, n_classes=435, cache=cache).tolist() == golden["token_map"]
        assert cache.read_bytes() == whole


def test_the_cache_of_another_tokenizer_is_not_used(cache: Path, tmp_path: Path, golden: dict) -> None:
    # The same tokens with one blank more in the file: another file, so another map for all the cache can know.
    other = tmp_path / "tokenizer.json"
    other.write_bytes(TOKENIZER.read_bytes() + b" ")
    before = cache.read_bytes()
    assert compressed_map(other, n_classes=435, cache=cache).tolist() == golden["token_map"]
    assert cache.read_bytes() != before


def test_a_cached_map_does_not_answer_for_another_count(cache: Path) -> None:
    with pytest.raises(TokenizerError, match="434"):
        compressed_map(TOKENIZER, n_classes=434, cache=cache)


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, golden: dict) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = compressed_map(TOKENIZER, n_classes=435, cache=blocked / "map.cache")
    assert found.tolist() == golden["token_map"]


# Primes, offsets, multipliers.


def test_the_tables_of_tiny_a_are_the_golden_ones(tiny: ModelConfig, golden: dict) -> None:
    tables = engram_tables(tiny)
    require_declared_rows(tiny, tables)
    assert [
        {
            "layer": table.layer,
            "primes": [list(size) for size in table.primes],
            "rows": table.rows,
            "multipliers": [str(factor) for factor in table.multipliers],
        }
        for table in tables
    ] == golden["layers"]
    # Offsets are the running sum of the moduli before them (section 6.2), from the golden primes.
    assert tables[0].offsets == (0, 601, 601 + 607, 601 + 607 + 613, 601 + 607 + 613 + 617, 3688 - 631)


def test_the_tables_of_the_release(released: ModelConfig) -> None:
    tables = engram_tables(released)
    require_declared_rows(released, tables)
    assert tuple(table.rows for table in tables) == RELEASED_ROWS
    assert tuple(table.multipliers for table in tables) == RELEASED_MULTIPLIERS
    drawn = [prime for table in tables for size in table.primes for prime in size]
    assert drawn == sorted(set(drawn)) and len(drawn) == 48


def test_multipliers_equal_what_numpy_draws_today(released: ModelConfig) -> None:
    for n_classes in (1, 2, 3, 435, 99_092, 2**30 - 1):
        config = dataclasses.replace(
            released, engram_layer_ids=tuple(range(40)), engram_compressed_vocab_size=n_classes, engram_n_heads=1
        )
        bound = ((2**63 - 1) // n_classes) // 2
        for table in engram_tables(config):
            draws = np.random.default_rng(10007 * table.layer).integers(0, bound, size=4, dtype=np.int64)
            assert table.multipliers == tuple(2 * int(draw) + 1 for draw in draws)


def test_primes_against_a_sieve() -> None:
    composite = np.zeros(100_000, dtype=bool)
    composite[:2] = True
    for number in range(2, 317):
        composite[number * number :: number] |= not composite[number]
    assert [number for number in range(100_000) if is_prime(number)] == np.flatnonzero(~composite).tolist()


def test_strong_pseudoprimes_are_not_primes() -> None:
    # Jaeschke 1993; Sorenson and Webster 2015: the least composites that fool 1, 4, 9 and 11 prime witnesses.
    for number in (2047, 3_215_031_751, 3_825_123_056_546_413_051):
        assert not is_prime(number)
    assert is_prime(2**61 - 1)
    assert not is_prime((2**31 - 1) * (2**31 - 19))


def test_wrong_declared_rows_are_named(tiny: ModelConfig) -> None:
    wrong = dataclasses.replace(tiny, engram_num_embeddings=(3688, 3905))
    with pytest.raises(ConfigError, match=r"3,905 rows for layer 4.*3,904"):
        require_declared_rows(wrong, engram_tables(wrong))
    short = dataclasses.replace(tiny, engram_num_embeddings=(3688,))
    with pytest.raises(ConfigError, match="1 entries for 2"):
        require_declared_rows(short, engram_tables(short))


@pytest.mark.parametrize(
    "change",
    [
        {"engram_n_heads": 10**9},
        {"engram_n_heads": 0},
        {"engram_max_ngram_size": 1},
        {"engram_max_ngram_size": 10**9},
        {"engram_vocab_size": 0},
        {"engram_vocab_size": 10**18},
        {"engram_compressed_vocab_size": 0},
        {"engram_compressed_vocab_size": 2**30},
        {"engram_layer_ids": (-1, 4)},
    ],
)
def test_numbers_nothing_can_be_drawn_from_are_refused_at_once(tiny: ModelConfig, change: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        engram_tables(dataclasses.replace(tiny, **change))


def test_a_model_without_engram_layers_has_no_tables(tiny: ModelConfig) -> None:
    assert engram_tables(dataclasses.replace(tiny, engram_layer_ids=(), engram_vocab_size=0)) == ()


# Rows.


@pytest.mark.parametrize("number", range(7))
def test_rows_of_every_golden_prompt_prefill_and_steps(number: int, tiny: ModelConfig) -> None:
    record = json.loads((TINY / "golden" / "golden.json").read_text())
    prompt = record["prompts"][number]
    classes = compressed_map(TOKENIZER, n_classes=435)
    pad = int(classes[tiny.engram_pad_id])
    n_prompt = len(prompt["ids"])
    compressed = classes[prompt["ids"] + prompt["exact"]["greedy"][:48]]
    with safe_open(TINY / "golden" / "exact.safetensors", "np") as arrays:
        for table in engram_tables(tiny):
            expected = np.concatenate(
                [arrays.get_tensor(f"p{number}.{part}.hash.{table.layer}") for part in ("prefill", "step")]
            )
            assert len(expected) == n_prompt + 48
            assert np.array_equal(row_ids(table, lookback(compressed, 0, 4, pad)), expected)
            for position in range(n_prompt, n_prompt + 48):  # one at a time, from the history alone
                window = lookback(compressed[: position + 1], position, 4, pad)
                assert np.array_equal(row_ids(table, window), expected[position : position + 1])


def sticky(tokens: list[int], position: int, n_gram: int, pad: int, dead: list[bool]) -> list[int]:
    """Section 6.4 as a plain loop."""
    window, blocked = [], False
    for back in range(n_gram):
        source = position - back
        blocked = blocked or source < 0 or dead[source]
        window.append(pad if blocked else tokens[source])
    return window


def test_lookback_is_sticky_over_dead_tokens() -> None:
    generator = np.random.default_rng(7)
    for _ in range(200):
        n, n_gram = int(generator.integers(1, 20)), int(generator.integers(2, 6))
        start = int(generator.integers(0, n + 1))
        tokens, dead = generator.integers(0, 50, n), generator.random(n) < 0.3
        found = lookback(tokens, start, n_gram, 99, dead)
        assert found.shape == (n - start, n_gram)
        assert found.tolist() == [
            sticky(tokens.tolist(), position, n_gram, 99, dead.tolist()) for position in range(start, n)
        ]


def test_the_first_text_token_after_a_picture_looks_like_the_first_of_a_sequence() -> None:
    # Image specification, section 8.
    dead = np.array([False, True, True, False, False])
    found = lookback(np.array([5, 6, 7, 8, 9]), 3, 4, 2, dead)
    assert found.tolist() == lookback(np.array([8, 9]), 0, 4, 2).tolist() == [[8, 2, 2, 2], [9, 8, 2, 2]]


def test_chunks_with_the_last_tokens_carried_give_the_rows_of_the_whole() -> None:
    generator = np.random.default_rng(11)
    tokens, dead = generator.integers(0, 50, 60), generator.random(60) < 0.2
    whole = lookback(tokens, 0, 4, 2, dead)
    for chunk in (1, 3, 7, 32):
        parts = []
        for begin in range(0, 60, chunk):
            kept = max(0, begin - 3)
            end = min(60, begin + chunk)
            parts.append(lookback(tokens[kept:end], begin - kept, 4, 2, dead[kept:end]))
        assert np.array_equal(np.concatenate(parts), whole)


def test_released_row_ids_stay_inside_their_columns_and_equal_exact_integers(released: ModelConfig) -> None:
    # Python integers have no width, so they show a product that left 63 bits. The extreme class is the worst case.
    window = np.random.default_rng(3).integers(0, 99_092, size=(50, 4))
    window[0] = 99_091
    for table in engram_tables(released):
        found = row_ids(table, window)
        for row, tokens in zip(found.tolist(), window.tolist(), strict=True):
            mixed, expected = tokens[0] * table.multipliers[0], []
            for back in range(1, 4):
                mixed ^= tokens[back] * table.multipliers[back]
                expected += [mixed % prime for prime in table.primes[back - 1]]
            assert mixed < 2**63
            assert row == [offset + rest for offset, rest in zip(table.offsets, expected, strict=True)]
        assert found.min() >= 0 and found.max() < table.rows


# The tokenizer file as hostile input.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "model type is None"),
        (b'{"model": {"type": "Unigram"}}', "model type is 'Unigram'"),
        (b'{"model": {"type": "BPE"}, "decoder": null}', "decoder type is None"),
        (b'{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}', "vocab is not a table of ids"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 99999999999}}, "decoder": {"type": "ByteLevel"}}', "vocab is not"),
        (
            b'{"model": {"type": "BPE", "vocab": {}}, "decoder": {"type": "ByteLevel"}, "added_tokens": [{}]}',
            "added_tok",
        ),
        (
            b'{"model": {"type": "BPE", "vocab": {}}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}',
            "not a usable",
        ),
    ],
)
def test_a_broken_tokenizer_file_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        compressed_map(path, n_classes=435)
    assert str(path) in str(caught.value)


def test_a_missing_tokenizer_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="there is no tokenizer"):
        compressed_map(tmp_path / "tokenizer.json", n_classes=435)


def test_ids_with_a_gap_are_refused(tmp_path: Path) -> None:
    content = json.loads(TOKENIZER.read_bytes())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != 500]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="gap"):
        compressed_map(path, n_classes=435)


def test_as_many_columns_as_are_plausible_are_drawn_in_one_pass(tiny: ModelConfig) -> None:
    config = dataclasses.replace(
        tiny, engram_layer_ids=(1, 2), engram_max_ngram_size=9, engram_n_heads=256, engram_vocab_size=2
    )
    primes = [prime for table in engram_tables(config) for size in table.primes for prime in size]
    # The 4,096th prime: The On-Line Encyclopedia of Integer Sequences, A000040.
    assert len(primes) == 4096 and primes[:4] == [2, 3, 5, 7] and primes[-1] == 38_873
    with pytest.raises(ConfigError, match="columns are possible"):
        engram_tables(dataclasses.replace(config, engram_n_heads=257))


def test_a_pad_token_that_the_tokenizer_has_not_is_named(tiny: ModelConfig) -> None:
    token_map = np.zeros(tiny.engram_pad_id, dtype=np.int64)
    with pytest.raises(TokenizerError, match=f"engram_pad_id {tiny.engram_pad_id} is none of the tokenizer's"):
        EngramFront(tiny, engram_tables(tiny), token_map)
