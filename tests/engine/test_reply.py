"""The reply parser against the recorded replies, the vendor's library, and a plain search."""

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PromptError, TokenizerError
from engine.events import TextDelta, ThinkingDelta
from engine.prompt import recipe
from engine.reply import ReplyParser
from engine.tokens import ChatTokenizer
from tests.v41_tokenizer import v41_tokenizer_bytes, write_v41_tokenizer

DATA = Path(__file__).parents[1] / "data"
CASES: list[dict[str, Any]] = json.loads((DATA / "stream.json").read_text(encoding="utf-8"))["cases"]

TOOL_CALLS = {"think-tool-call", "chat-two-tool-calls"}
"""Replies that are tool calls where tools are declared. Artesian declares none, so its parser never meets this
situation and has no code for it; the same markup without declared tools is text, and among the cases below."""

END = 128822


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("v41")
    write_v41_tokenizer(folder)
    return ChatTokenizer.load(folder)


@cache
def tiny_tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(DATA / "tiny-a" / "checkpoint")


def feed(parser: ReplyParser, ids: list[int]) -> tuple[list[tuple[str, str]], int]:
    """Deltas as (kind, text), neighbours of one kind merged, and how many ids were taken."""
    deltas, taken = [], 0
    for token in ids:
        if parser.finished:
            break
        deltas += parser.push(token)
        taken += 1
    deltas += parser.finish()
    assert parser.finished
    assert parser.finish() == []
    assert all(delta.text for delta in deltas)
    return merged(("reasoning" if isinstance(d, ThinkingDelta) else "content", d.text) for d in deltas), taken


def merged(pieces: Any) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for kind, text in pieces:
        if out and out[-1][0] == kind:
            out[-1] = (kind, out[-1][1] + text)
        elif text:
            out.append((kind, text))
    return out


# The recorded replies.


def test_the_fixture_is_whole() -> None:
    assert len(CASES) == 24
    assert {case["name"] for case in CASES} >= TOOL_CALLS


@pytest.mark.parametrize("case", [case for case in CASES if case["name"] not in TOOL_CALLS], ids=lambda c: c["name"])
def test_reasoning_answer_and_order_are_the_recorded_ones(v41: ChatTokenizer, case: dict) -> None:
    parser = ReplyParser(v41, case["thinking"], case["stop"])
    pieces, taken = feed(parser, case["ids"])
    assert pieces == merged(tuple(delta) for delta in case["deltas"])
    assert "".join(text for kind, text in pieces if kind == "reasoning") == case["reasoning"]
    assert "".join(text for kind, text in pieces if kind == "content") == case["content"]
    assert taken == case["ids_consumed"]


# The vendor's library.


class Library:
    """The vendor's stream processor, as section 5 of the specification drives it."""

    def __init__(self) -> None:
        import deepseek_recipe

        self.recipe = deepseek_recipe
        self.tokenizer = deepseek_recipe.Tokenizer.from_str(v41_tokenizer_bytes().decode())

    def read(self, ids: list[int], thinking: bool, stop: list[str]) -> tuple[list[tuple[str, str]], int]:
        recipe = self.recipe
        body: dict[str, Any] = {"model": self.model(), "messages": [{"role": "user", "content": "x"}]}
        body |= {"stream": True, "thinking": {"type": "enabled" if thinking else "disabled"}, "stop": stop}
        request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
        chunks = recipe.ChatCompletionRequest.chunk_generator(request, "id", "name")
        processor = recipe.StreamProcessor(chunks, request.parsing_options, self.tokenizer)
        out, taken = list(processor.push(recipe.InferenceChunk.ready())), 0
        for token in ids:
            if processor.finished:
                break
            out += processor.push(recipe.InferenceChunk.tokens([token]))
            taken += 1
        if not processor.finished:
            out += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Length))
        out += processor.finish()
        deltas = [choice["delta"] for chunk in out for choice in json.loads(chunk.to_json())["choices"]]
        pieces = [("reasoning", delta.get("reasoning_content") or "") for delta in deltas]
        return merged(
            (kind, text)
            for (_, reasoning), delta in zip(pieces, deltas, strict=True)
            for kind, text in (("reasoning", reasoning), ("content", delta.get("content") or ""))
            if text
        ), taken

    def model(self) -> str:
        versions = self.recipe.ConversionOptions().model_versions_by_name
        flash = self.recipe.ModelVersion.DeepseekV41Flash
        return next(name for name, version in versions.items() if version == flash)


@cache
def library() -> Library:
    return Library()


@cache
def v41_tokenizer() -> ChatTokenizer:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_v41_tokenizer(Path(folder))
        return ChatTokenizer.load(Path(folder))


# a b c, newlines alone and inside a token, a carriage return, pieces of characters, the marker, other control tokens,
# the pieces of a quoted marker, an id outside the vocabulary.
IDS = [67, 68, 69, 67, 68, 201, 271, 1018, 29406, 204, 223, 3574, 102, 225, 25730, 105, 30, 1718, 37947, 32]
IDS += [END, END, 128803, 128821, 129278, 0, 999_999]


@pytest.mark.skipif(not recipe.available(), reason="deepseek-recipe has no wheel for this platform")
@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.sampled_from(IDS), max_size=14),
    thinking=st.booleans(),
    # No newlines: the library stops at a leading "\n" that is not shown, but not at a leading "\n\n".
    stop=st.lists(st.text("abc<>", min_size=1, max_size=3), max_size=3),
)
def test_every_reply_reads_as_the_vendors_library_reads_it(ids: list[int], thinking: bool, stop: list[str]) -> None:
    ours, ours_taken = feed(ReplyParser(v41_tokenizer(), thinking, stop), ids)
    theirs, theirs_taken = library().read(ids, thinking, stop)
    assert ours_taken == theirs_taken
    # Bytes that can no longer become a character are shown as U+FFFD at once; the library keeps them waiting for more,
    # so at the very end it drops them with the incomplete ones.
    kind = ours[-1][0] if ours else "content"
    assert any(ours == merged([*theirs, (kind, "\ufffd" * dropped)]) for dropped in range(len(ids) + 1))


# The end of the reasoning.


def test_only_the_id_ends_the_reasoning() -> None:
    tiny = tiny_tokenizer()
    quoted = tiny.encode_plain("</think>")
    parser = ReplyParser(tiny, True)
    assert parser.in_reasoning
    assert feed(parser, quoted) == ([("reasoning", "</think>")], len(quoted))
    assert parser.in_reasoning
    parser = ReplyParser(tiny, True)
    end = tiny.id_of("</think>")
    assert feed(parser, [*quoted, end, *quoted])[0] == [("reasoning", "</think>"), ("content", "</think>")]
    assert not parser.in_reasoning


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        ([END], []),  # closed by the first token (B65)
        ([END, 67], [("content", "a")]),
        ([67, END, END, 68], [("reasoning", "a"), ("content", "b")]),  # closed twice
        ([67, 68], [("reasoning", "ab")]),  # never closed
        ([67, 271], [("reasoning", "a\n\n")]),  # cut: the newlines may still have mattered
        ([67, 271, END], [("reasoning", "a")]),  # closed: they did not
        ([67, 201, 201, 68, END], [("reasoning", "a\n\nb")]),
    ],
)
def test_blocks_closed_never_twice_or_at_once(v41: ChatTokenizer, ids: list[int], pieces: list) -> None:
    assert feed(ReplyParser(v41, True), ids)[0] == pieces


def test_a_continued_reply_keeps_its_leading_newlines(v41: ChatTokenizer) -> None:
    assert feed(ReplyParser(v41, False, continued=True), [271, 67])[0] == [("content", "\n\na")]
    thinking = ReplyParser(v41, True, continued=True)
    assert feed(thinking, [271, 67, END, 271, 68])[0] == [("reasoning", "\n\na"), ("content", "b")]


def test_a_tokenizer_without_the_marker_can_answer_but_not_think(tmp_path: Path) -> None:
    content = json.loads((DATA / "tiny-a" / "checkpoint" / "tokenizer.json").read_bytes())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "</think>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = ChatTokenizer.load(tmp_path)
    assert feed(ReplyParser(tokenizer, False), tokenizer.encode_plain("Hi"))[0] == [("content", "Hi")]
    with pytest.raises(TokenizerError, match="</think>"):
        ReplyParser(tokenizer, True)


# Characters.


@given(st.text(min_size=1, max_size=60))
def test_a_text_comes_out_as_it_went_in_whatever_the_tokens_split(text: str) -> None:
    tokenizer = tiny_tokenizer()
    parser = ReplyParser(tokenizer, False, continued=True)
    assert feed(parser, tokenizer.encode_plain(text))[0] == [("content", text)]


def test_a_character_is_shown_once_it_is_whole(v41: ChatTokenizer) -> None:
    parser = ReplyParser(v41, False)
    assert [parser.push(token) for token in (3574, 102)] == [[], []]
    assert parser.push(225) == [TextDelta(text="🦀")]


# Stop strings.


def plain_stop(text: str, stop: list[str]) -> str:
    """The text before the stop string that is complete first; among equals the one listed first."""
    for end in range(1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end - len(string)]
    return text


@settings(max_examples=500, deadline=None)
@given(text=st.text("ab ", max_size=30), stop=st.lists(st.text("ab ", min_size=1, max_size=5), max_size=4))
def test_a_stop_string_is_found_however_tokens_split_it(text: str, stop: list[str]) -> None:
    tokenizer = tiny_tokenizer()
    parser = ReplyParser(tokenizer, False, stop)
    pieces, _ = feed(parser, tokenizer.encode_plain(text))
    assert "".join(piece for _, piece in pieces) == plain_stop(text, stop)


def test_nothing_is_held_back_that_cannot_become_a_stop_string(v41: ChatTokenizer) -> None:
    parser = ReplyParser(v41, False, ["abX"])
    assert parser.push(69) == [TextDelta(text="c")]
    assert parser.push(67) == []
    assert parser.push(67) == [TextDelta(text="a")]
    assert parser.push(68) == []
    assert parser.push(69) == [TextDelta(text="abc")]
    assert parser.push(67) == []
    assert parser.finish() == [TextDelta(text="a")]


def test_dropped_newlines_do_not_stop_the_answer(v41: ChatTokenizer) -> None:
    # A thinking model opens every answer with two; stopping there would leave every answer empty.
    assert feed(ReplyParser(v41, True, ["\n"]), [84, END, 271, 67, 201, 68]) == (
        [("reasoning", "r"), ("content", "a")],
        5,
    )


def test_an_empty_stop_string_is_refused(v41: ChatTokenizer) -> None:
    with pytest.raises(PromptError, match="stop string is empty"):
        ReplyParser(v41, False, ["x", ""])


# Cost.


@pytest.mark.parametrize("token", [67, 201, 3574], ids=["letters", "newlines", "broken bytes"])
@pytest.mark.parametrize("thinking", [False, True])
def test_the_cost_of_a_token_does_not_grow_with_the_reply(v41: ChatTokenizer, thinking: bool, token: int) -> None:
    # Were it to grow with the length, the second 100,000 tokens would take three times the first, and minutes.
    parser = ReplyParser(v41, thinking, ["a" * 1000 + "b"], continued=True)
    started = time.perf_counter()
    for _ in range(200_000):
        parser.push(token)
    parser.finish()
    assert time.perf_counter() - started < 20
