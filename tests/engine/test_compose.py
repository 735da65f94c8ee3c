"""Past answers in prompts, as they were drawn."""

import gc
import weakref
from typing import Literal

import pytest

from engine.prompt import AssistantMessage, Message, SystemMessage, UserMessage, render
from engine.tokens import ASSISTANT, END_THINK, EOS, THINK, USER, ChatTokenizer
from tests.engine.conftest import TINY
from tests.engine.test_prompt import RENDERERS


def drawn_as(tokenizer: ChatTokenizer, *pieces: str) -> tuple[int, ...]:
    """Ids that spell the pieces one by one, which need not be how the whole text encodes."""
    return tuple(token for piece in pieces for token in tokenizer.encode_plain(piece))


@pytest.fixture(scope="module")
def small() -> ChatTokenizer:
    return ChatTokenizer.load(TINY / "checkpoint")


def history(answer: AssistantMessage) -> list[Message]:
    return [UserMessage(parts=("hi",)), answer, UserMessage(parts=("and?",))]


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_past_answer_stands_in_the_prompt_as_it_was_drawn(
    small: ChatTokenizer, renderer: Literal["own", "recipe"]
) -> None:
    ids = drawn_as(small, "\n", "w", "a", "t", "e", "r")
    assert list(ids[1:]) != small.encode_plain("water")
    text = render(small, history(AssistantMessage(text="water")), False, renderer=renderer)
    drawn = render(small, history(AssistantMessage(text="water", ids=ids)), False, renderer=renderer)
    ((first, end),) = drawn.drawn
    assert drawn.ids[first:end] == ids
    assert drawn.ids[:first] == text.ids[:first] and text.drawn == ()
    assert drawn.ids[end:] == text.ids[first + len(small.encode_plain("water")) :]
    assert drawn.ids[end] == small.id_of(EOS)
    assert drawn.text == text.text


def test_ids_that_do_not_say_the_text_are_not_used(small: ChatTokenizer) -> None:
    for text in ("waters", "wate", "", "Water"):
        changed = render(small, history(AssistantMessage(text=text, ids=drawn_as(small, "water"))), False)
        assert changed.drawn == ()
        assert changed.ids == render(small, history(AssistantMessage(text=text)), False).ids


def test_of_an_answer_after_reasoning_only_the_answer_is_left(small: ChatTokenizer) -> None:
    end = small.id_of(END_THINK)
    ids = (*drawn_as(small, "let me see"), end, *drawn_as(small, "w", "ater"))
    for thinking in (True, False):
        prompt = render(small, history(AssistantMessage(text="water", reasoning="let me see", ids=ids)), thinking)
        ((first, last),) = prompt.drawn
        assert prompt.ids[first:last] == drawn_as(small, "w", "ater")
        assert prompt.ids[first - 1] == end
    # Drawn without thinking, with a stray marker in it that shows as nothing.
    stray = (*drawn_as(small, "wat"), end, *drawn_as(small, "er"))
    prompt = render(small, history(AssistantMessage(text="water", ids=stray)), False)
    ((first, last),) = prompt.drawn
    assert prompt.ids[first:last] == stray


def test_a_reply_that_goes_on_ends_the_prompt_with_all_its_ids(small: ChatTokenizer) -> None:
    end = small.id_of(END_THINK)
    user = UserMessage(parts=("hi",))
    reasoning, answer = drawn_as(small, "l", "et me"), drawn_as(small, "wa", "t")
    cases: list[tuple[AssistantMessage, bool, tuple[int, ...]]] = [
        (AssistantMessage(text="wat", ids=answer, prefix=True), False, answer),
        (AssistantMessage(text="", reasoning="let me", ids=reasoning, prefix=True), True, reasoning),
        # Reasoning that is over, an answer that has not begun: the renderer would leave it open.
        (AssistantMessage(text="", reasoning="let me", ids=(*reasoning, end), prefix=True), True, (*reasoning, end)),
        (
            AssistantMessage(text="wat", reasoning="let me", ids=(*reasoning, end, *answer), prefix=True),
            True,
            (*reasoning, end, *answer),
        ),
    ]
    for message, thinking, ids in cases:
        prompt = render(small, [user, message], thinking)
        assert prompt.ids[-len(ids) :] == ids and prompt.n_begun == len(ids)
        assert prompt.thinking == thinking and prompt.continues
        assert prompt.ids[-len(ids) - 1] == small.id_of(THINK if thinking else END_THINK)


def test_a_reply_known_by_its_text_goes_on_from_where_the_text_ends(small: ChatTokenizer) -> None:
    user = UserMessage(parts=("hi",))
    answered = render(small, [user, AssistantMessage(text="wat", reasoning="let me", prefix=True)], True)
    assert (answered.n_begun, answered.thinking, answered.continues) == (0, False, True)
    thinking = render(small, [user, AssistantMessage(text="", reasoning="let me", prefix=True)], True)
    assert (thinking.n_begun, thinking.thinking, thinking.continues) == (0, True, True)


def test_marks_stand_before_users_and_behind_the_openings_of_answers(small: ChatTokenizer) -> None:
    prompt = render(small, [SystemMessage(text="s"), *history(AssistantMessage(text="water"))], False)
    ids = prompt.ids
    user, opener = small.id_of(USER), small.id_of(ASSISTANT)
    want = sorted(
        [i for i, token in enumerate(ids) if token == user] + [i + 1 for i, t in enumerate(ids) if t == opener]
    )
    assert list(prompt.marks) == want and len(want) == 4


def test_a_tokenizer_is_let_go_of_although_answers_were_looked_at() -> None:
    tokenizer = ChatTokenizer.load(TINY / "checkpoint")
    answer = AssistantMessage(text="water", ids=drawn_as(tokenizer, "wat", "er"))
    assert render(tokenizer, history(answer), False).drawn
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
