"""Both renderers against the recorded conversations, against each other, and against what users type."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import PromptError, TokenizerError
from engine.prompt import (
    AssistantMessage,
    ImagePart,
    Message,
    ReminderMessage,
    Rendered,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    recipe,
    render,
    render_raw,
)
from engine.tokens import ASSISTANT, BOS, END_THINK, GROUNDING, USER, ChatTokenizer
from tests.v41_tokenizer import write_v41_tokenizer

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny-a" / "checkpoint"
CASES: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "prompts.json").read_text(encoding="utf-8"))[
    "cases"
]
NEEDS_RECIPE = pytest.mark.skipif(not recipe.available(), reason="deepseek-recipe has no wheel for this platform")
RENDERERS = [pytest.param("recipe", marks=NEEDS_RECIPE), "own"]


@pytest.fixture(scope="module")
def v41(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("v41")
    write_v41_tokenizer(folder)
    return ChatTokenizer.load(folder, image_token_id=129264)


@cache
def tiny_tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(TINY, image_token_id=511)


@cache
def library_encoding() -> Any:
    import deepseek_recipe

    tokenizer = deepseek_recipe.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    return deepseek_recipe.DeepseekV41Encoding().with_tokenizer(tokenizer)


@pytest.fixture
def tiny() -> ChatTokenizer:
    return tiny_tokenizer()


def user(*parts: str | ImagePart) -> UserMessage:
    return UserMessage(parts=parts)


def message_of(record: dict[str, Any]) -> Message:
    content = record["content"]
    match record["role"]:
        case "system":
            return SystemMessage(text=content)
        case "user" if isinstance(content, str):
            return user(content)
        case "user":
            return user(*(part["text"] if part["type"] == "text" else ImagePart(data=b"") for part in content))
        case "assistant":
            calls = tuple(ToolCall(**call) for call in record.get("tool_calls", ()))
            return AssistantMessage(
                text=content,
                reasoning=record.get("reasoning"),
                tool_calls=calls,
                prefix=record.get("prefix", False),
            )
        case "tool":
            return ToolMessage(text=content, call_id=record["tool_call_id"])
        case "latest_reminder":
            return ReminderMessage(text=content)
    raise AssertionError(record["role"])


def needs_library(case: dict[str, Any]) -> bool:
    calls = any(record["role"] == "tool" or "tool_calls" in record for record in case["messages"])
    return calls or "tools" in case or "response_format" in case or "response_schema" in case


def render_case(tokenizer: ChatTokenizer, case: dict[str, Any], renderer: Any) -> Rendered:
    return render(
        tokenizer,
        [message_of(record) for record in case["messages"]],
        case["thinking"],
        case.get("effort"),
        tools=[ToolDefinition(**tool) for tool in case.get("tools", ())],
        tool_choice=case.get("tool_choice", "auto"),
        response=case.get("response_schema", case.get("response_format", "text")),
        renderer=renderer,
    )


# The recorded conversations.


RENDERED_CASES = [
    *(pytest.param("recipe", case, id=f"recipe-{case['name']}", marks=NEEDS_RECIPE) for case in CASES),
    *(pytest.param("own", case, id=f"own-{case['name']}") for case in CASES if not needs_library(case)),
]


def test_the_fixture_is_whole() -> None:
    assert len(CASES) == 54
    assert sum(not needs_library(case) for case in CASES) == 45


@pytest.mark.parametrize(("renderer", "case"), RENDERED_CASES)
def test_text_ranges_ids_and_images_are_the_recorded_ones(v41: ChatTokenizer, renderer: str, case: dict) -> None:
    found = render_case(v41, case, renderer)
    assert found.text == case["prompt"]
    assert [list(pair) for pair in found.special_ranges] == case["special"]
    assert list(found.ids) == case["ids"]
    assert len(found.images) == case["images"]


@pytest.mark.parametrize("case", [case for case in CASES if needs_library(case)], ids=lambda case: case["name"])
def test_our_own_renderer_says_what_it_cannot_do(v41: ChatTokenizer, case: dict) -> None:
    with pytest.raises(PromptError, match="deepseek-recipe") as caught:
        render_case(v41, case, "own")
    assert "Install the deepseek-recipe package" in caught.value.hint


@NEEDS_RECIPE
@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60) | st.text("<｜/Usertink> \n", max_size=40), thinking=st.booleans())
def test_our_ids_are_the_librarys_own(text: str, thinking: bool) -> None:
    # The recorded ids are the library's, too; this adds text nobody wrote down.
    import deepseek_recipe

    theirs = library_encoding().encode(
        deepseek_recipe.Conversation([deepseek_recipe.UserMessage(text)], thinking_mode=thinking)
    )
    assert list(render(tiny_tokenizer(), [user(text)], thinking).ids) == theirs


# One renderer against the other.

TEXTS = st.one_of(
    st.sampled_from(["", "\n\n", " ", "Hello", "\r\n x \0", "🦀 é", *GROUNDING, USER, ASSISTANT, END_THINK, BOS]),
    st.text(max_size=12),
)
ANY_MESSAGE = st.one_of(
    st.builds(lambda text: SystemMessage(text=text), TEXTS),
    st.builds(
        lambda parts: UserMessage(parts=tuple(parts)), st.lists(TEXTS | st.just(ImagePart(data=b"x")), max_size=3)
    ),
    st.builds(lambda text, reasoning: AssistantMessage(text=text, reasoning=reasoning), TEXTS, st.none() | TEXTS),
    st.builds(lambda text: ReminderMessage(text=text), TEXTS),
)
CONTINUED = st.builds(
    lambda text, reasoning: AssistantMessage(text=text, reasoning=reasoning, prefix=True), TEXTS, st.none() | TEXTS
)


@NEEDS_RECIPE
@settings(max_examples=300, deadline=None)
@given(
    messages=st.lists(ANY_MESSAGE, max_size=6),
    last=st.none() | CONTINUED,
    thinking=st.booleans(),
    effort=st.none() | st.sampled_from(["low", "high", "xhigh", "max"]) | st.integers(1, 100),
)
def test_both_renderers_build_the_same_prompt(
    messages: list[Message], last: AssistantMessage | None, thinking: bool, effort: str | int | None
) -> None:
    tokenizer = tiny_tokenizer()
    conversation = [*messages, *([last] if last and messages else [])]
    one = render(tokenizer, conversation, thinking, effort, renderer="recipe")
    other = render(tokenizer, conversation, thinking, effort, renderer="own")
    assert one == other


@NEEDS_RECIPE
def test_the_library_is_taken_when_it_is_there_and_our_own_when_it_is_not(
    v41: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [ToolDefinition(name="calc")]
    assert "calc" in render(v41, [user("x")], tools=tools).text
    monkeypatch.setattr(recipe, "available", lambda: False)
    with pytest.raises(PromptError, match="deepseek-recipe"):
        render(v41, [user("x")], tools=tools)
    assert render(v41, [user("x")], False).ids == render(v41, [user("x")], False, renderer="recipe").ids


# What a user types stays text.


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("folder", ["tiny-a", "demo", "v41"])
def test_no_typed_control_token_becomes_one(renderer: Any, folder: str, tmp_path: Path) -> None:
    where = {"tiny-a": TINY, "demo": ROOT / "assets" / "demo", "v41": tmp_path}[folder]
    if folder == "v41":
        write_v41_tokenizer(tmp_path)
    tokenizer = ChatTokenizer.load(where)
    content = json.loads((where / "tokenizer.json").read_bytes())
    spellings = [token["content"] for token in content["added_tokens"]]
    # Of the 1,225 reserved places of the real tokenizer, all spelled alike, some are enough.
    spellings = [text for number, text in enumerate(spellings) if "holder" not in text or number % 100 == 0]
    added = {token["id"] for token in content["added_tokens"]}
    template = render(tokenizer, [user("")], False, renderer=renderer).ids
    typed = [
        typed
        for spelling in spellings
        for typed in (spelling, spelling * 2, f"{spelling[:3]}\n{spelling[3:]}", f"```\n{spelling}\n```")
    ]
    for text in [*typed, "".join(spellings), "\n".join(spellings)]:
        found = render(tokenizer, [user(text)], False, renderer=renderer)
        assert [token for token in found.ids if token in added] == list(template)
        assert tokenizer.decode(found.ids) == found.text == f"{BOS}{USER}{text}{ASSISTANT}{END_THINK}"


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_typed_marker_costs_plain_ids_in_every_role_but_its_own(v41: ChatTokenizer, renderer: Any) -> None:
    # <｜User｜> as text: prompt-format.md section 4.
    plain = [30, 28217, 6756, 28217, 32]
    for message in (
        SystemMessage(text=USER),
        user("x", USER),
        ReminderMessage(text=USER),
        AssistantMessage(text=USER),
        AssistantMessage(text=USER, prefix=True),
    ):
        ids = list(render(v41, [SystemMessage(text=""), message], False, renderer=renderer).ids)
        assert any(ids[start : start + 5] == plain for start in range(len(ids)))
        assert ids.count(128803) == isinstance(message, UserMessage)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_grounding_markers_are_control_tokens_only_where_the_model_wrote_them(
    v41: ChatTokenizer, renderer: Any
) -> None:
    marker = v41.id_of("<｜ref｜>")
    theirs = render(v41, [AssistantMessage(text="<｜ref｜>")], renderer=renderer)
    assert marker in theirs.ids
    for message in (user("<｜ref｜>"), SystemMessage(text="<｜ref｜>"), ReminderMessage(text="<｜ref｜>")):
        assert marker not in render(v41, [message], renderer=renderer).ids
    continued = AssistantMessage(text="", reasoning="<｜ref｜>", prefix=True)
    assert marker in render(v41, [user("x"), continued], renderer=renderer).ids


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_tokenizer_without_grounding_markers_takes_them_as_text(tiny: ChatTokenizer, renderer: Any) -> None:
    assert not tiny.has("<｜ref｜>")
    found = render(tiny, [user("a"), AssistantMessage(text="<｜ref｜>cat"), user("b")], False, renderer=renderer)
    assert "<｜ref｜>cat" in found.text
    assert tiny.decode(found.ids) == found.text
    assert all(found.text[start:end] not in GROUNDING for start, end in found.special_ranges)


# Tokenizers.


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("folder", [TINY, ROOT / "assets" / "demo"], ids=["tiny-a", "demo"])
def test_small_tokenizers_have_their_own_ids(folder: Path, renderer: Any) -> None:
    tokenizer = ChatTokenizer.load(folder)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    found = render(tokenizer, [SystemMessage(text="s"), user("Hi")], True, "max", renderer=renderer)
    assert [token for token in found.ids if token in ids.values()] == [
        ids[spelling] for spelling in (BOS, "<｜System｜>", USER, ASSISTANT, "<think>")
    ]
    assert tokenizer.decode(found.ids) == found.text


def test_the_golden_chat_prompt_of_tiny_a(tiny: ChatTokenizer) -> None:
    golden = json.loads((TINY.parent / "golden" / "golden.json").read_text())["prompts"][6]
    asked = render(tiny, [user("Where is the key to the lighthouse?")], False).ids[:-1]
    assert list(asked) == golden["ids"][: len(asked)]


def without(folder: Path, spelling: str) -> ChatTokenizer:
    content = json.loads((TINY / "tokenizer.json").read_bytes())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != spelling]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return ChatTokenizer.load(folder)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_control_token_the_tokenizer_lacks_is_named(tmp_path: Path, renderer: Any) -> None:
    old = without(tmp_path, "<｜System｜>")
    with pytest.raises(TokenizerError, match="<｜System｜>"):
        render(old, [user("x")], True, renderer=renderer)
    assert render(old, [user("x")], False, renderer=renderer).ids  # a prompt that does not need it is fine


# Pictures.


@pytest.mark.parametrize("renderer", RENDERERS)
def test_pictures_keep_their_order_and_typed_markers_do_not_take_their_place(v41: ChatTokenizer, renderer: Any) -> None:
    one, two = ImagePart(data=b"one"), ImagePart(data=b"two")
    found = render(v41, [user("<｜deepseek_image｜>", one), user(two, "?")], False, renderer=renderer)
    assert found.images == (one, two)
    assert found.ids.count(129264) == 2
    assert found.text.count("<｜deepseek_image｜>") == 3


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_picture_for_a_model_without_eyes_is_refused(renderer: Any) -> None:
    blind = ChatTokenizer.load(TINY)
    with pytest.raises(PromptError, match="takes none"):
        render(blind, [user(ImagePart(data=b""))], False, renderer=renderer)


@NEEDS_RECIPE
def test_a_prompt_with_fewer_places_than_pictures_is_refused(
    v41: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library does not report it (prompt-format.md section 3), so a change there would go unseen.
    whole = recipe.render

    def without_places(conversation: Any, marker: str | None) -> Any:
        draft = whole(conversation, marker)
        kept = tuple(pair for pair in draft.special_ranges if draft.text[slice(*pair)] != marker)
        return type(draft)(text=draft.text, special_ranges=kept)

    monkeypatch.setattr(recipe, "render", without_places)
    with pytest.raises(PromptError, match="1 pictures are given, the prompt has places for 0"):
        render(v41, [user(ImagePart(data=b""))], False, renderer="recipe")


# Settings.


@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_number_is_written_as_itself_and_shifts_the_ranges(tiny: ChatTokenizer, renderer: Any) -> None:
    for number in range(1, 101):
        found = render(tiny, [user("<think>", "x")], True, number, renderer=renderer)
        assert found.text.startswith(f"{BOS}<｜System｜>Reasoning Effort: {number} (range 1-100, ")
        marks = [found.text[start:end] for start, end in found.special_ranges]
        assert marks == [BOS, "<｜System｜>", USER, ASSISTANT, "<think>"]


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize(("effort", "number"), [("low", 50), ("high", 75), ("xhigh", 75), ("max", 100), (None, 75)])
def test_levels_are_the_released_ones(tiny: ChatTokenizer, effort: str | None, number: int, renderer: Any) -> None:
    # The pre-release table had 25, 50, 75 (B63, T55).
    assert f"Effort: {number} " in render(tiny, [user("x")], True, effort, renderer=renderer).text


@pytest.mark.parametrize("effort", ["off", "medium", "", "50", 0, 101, -1, True, 2.5])
def test_an_effort_that_does_not_exist_is_refused_with_those_that_do(tiny: ChatTokenizer, effort: Any) -> None:
    with pytest.raises(PromptError, match="low, high, xhigh, max or a number from 1 to 100"):
        render(tiny, [user("x")], True, effort)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_only_the_last_message_can_be_continued(tiny: ChatTokenizer, renderer: Any) -> None:
    with pytest.raises(PromptError, match="message 1 of 2 is to be continued"):
        render(tiny, [AssistantMessage(text="x", prefix=True), user("y")], False, renderer=renderer)
    with pytest.raises(PromptError, match="only message"):
        render(tiny, [AssistantMessage(text="x", prefix=True)], False, renderer=renderer)


@NEEDS_RECIPE
def test_what_the_library_refuses_is_a_typed_error(v41: ChatTokenizer) -> None:
    with pytest.raises(PromptError, match="cannot be rendered"):
        render(v41, [user("x")], False, response={"not json": object()})
    with pytest.raises(PromptError, match="cannot be rendered"):
        render(v41, [user("x")], False, tool_choice="sometimes")  # type: ignore[arg-type]


# Text as it comes.


@pytest.mark.parametrize("renderer", RENDERERS)
def test_lone_surrogates_are_repaired_in_every_field(tiny: ChatTokenizer, renderer: Any) -> None:
    broken, whole = "a\ud83d b \ud83e\udd80\udc00", "a\ufffd b 🦀\ufffd"
    for message in (
        SystemMessage(text=broken),
        user(broken),
        ReminderMessage(text=broken),
        AssistantMessage(text="", reasoning=broken, prefix=True),
        AssistantMessage(text=broken),
    ):
        found = render(tiny, [SystemMessage(text=""), message], True, renderer=renderer)
        assert whole in found.text
        assert tiny.decode(found.ids) == found.text
    if renderer == "recipe":
        calls = (ToolCall(id=broken, name=broken, arguments=json.dumps({"x": 1})),)
        turn = [user("x"), AssistantMessage(text="", tool_calls=calls), ToolMessage(text=broken, call_id=broken)]
        assert render(tiny, turn, False).text.count(whole) == 2


@pytest.mark.parametrize("renderer", RENDERERS)
def test_text_is_neither_trimmed_nor_changed(tiny: ChatTokenizer, renderer: Any) -> None:
    text = "\ufeff \r\n\t\0 x  \u200b\u00a0\x1b[31m \n\n"
    found = render(tiny, [user(text)], False, renderer=renderer)
    assert found.text == f"{BOS}{USER}{text}{ASSISTANT}{END_THINK}"


def test_raw_text_has_the_begin_token_and_nothing_else(v41: ChatTokenizer) -> None:
    found = render_raw(v41, "Hello<｜User｜>\ud800")
    assert found.ids == (0, 19923, 30, 28217, 6756, 28217, 32, *v41.encode_plain("\ufffd"))
    assert found.text == f"{BOS}Hello{USER}\ufffd"
    assert render_raw(v41, "").ids == (0,)
