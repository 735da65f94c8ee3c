"""Conversation to token ids. `messages` has the records, `recipe` the vendor's library, `own` the stand-in without it,
`compose` puts past answers in by the ids they were drawn with.

The one thing a reader would get wrong: the rendered text is for people. It must never be encoded as one string; only
the special ranges are control tokens, whatever the text between them spells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import PromptError
from engine.prompt import own, recipe
from engine.prompt.compose import compose
from engine.prompt.messages import (
    DEFAULT_EFFORT,
    EFFORTS,
    AssistantMessage,
    Conversation,
    Draft,
    ImagePart,
    Message,
    ReminderMessage,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    repaired,
    require_renderable,
)
from engine.tokens import BOS, GROUNDING, ChatTokenizer, repair

__all__ = [
    "DEFAULT_EFFORT",
    "EFFORTS",
    "AssistantMessage",
    "ImagePart",
    "Message",
    "ReminderMessage",
    "Rendered",
    "SystemMessage",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UserMessage",
    "render",
    "render_raw",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt, ready to run."""

    text: str
    """As a person reads it, control tokens spelled out."""
    special_ranges: tuple[tuple[int, int], ...]
    """Half-open, ascending code point ranges of `text`, each of them one control token."""
    ids: tuple[int, ...]
    """What the model reads."""
    images: tuple[ImagePart, ...] = ()
    """The pictures, in the order of their markers in `ids`."""
    drawn: tuple[tuple[int, int], ...] = ()
    """Half-open, ascending ranges of `ids` that are past answers as the model drew them, not as their text encodes."""
    n_begun: int = 0
    """How many ids at the end are the beginning of the coming reply, as it was drawn; 0 when it has none."""
    thinking: bool = False
    """Whether the reply, its beginning included where `n_begun` counts it, begins in the reasoning."""
    continues: bool = False
    """Whether the reply has a beginning in the prompt, as ids or as text."""
    marks: tuple[int, ...] = ()
    """Positions in `ids` where another prompt of the conversation is likely to part from this one: before every user
    message, and behind every marker that opens an answer.
    """


def render(
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    thinking: bool = True,
    effort: str | int | None = None,
    *,
    tools: Sequence[ToolDefinition] = (),
    tool_choice: Literal["auto", "none", "required"] = "auto",
    response: Literal["text", "json_object"] | Mapping[str, object] = "text",
    renderer: Literal["recipe", "own"] | None = None,
) -> Rendered:
    """The prompt for the coming turn.

    `effort` is "low", "high", "xhigh", "max", a number from 1 to 100, or None for high; without thinking it has no
    effect. `response` is "text", "json_object" or a JSON schema. `renderer` None takes the vendor's library when it is
    installed, our own otherwise; both build the same prompt, but ours knows no tools and no JSON output.

    Raises: PromptError if the conversation cannot be rendered; TokenizerError if the tokenizer lacks a control token.
    """
    conversation = Conversation(
        messages=tuple(repaired(message) for message in messages),
        thinking=thinking,
        effort=effort,
        tools=tuple(tools),
        tool_choice=tool_choice,
        response=response,
    )
    require_renderable(conversation)
    images = tuple(
        part
        for message in conversation.messages
        if isinstance(message, UserMessage)
        for part in message.parts
        if isinstance(part, ImagePart)
    )
    if images and tokenizer.image_marker is None:
        raise PromptError("there is a picture in the conversation, and this model takes none")
    chosen = own if renderer == "own" or (renderer is None and not recipe.available()) else recipe
    draft = chosen.render(conversation, tokenizer.image_marker)
    answers = tuple(message for message in conversation.messages if isinstance(message, AssistantMessage))
    return _encoded(tokenizer, draft, images, answers)


def render_raw(tokenizer: ChatTokenizer, text: str) -> Rendered:
    """Text to be continued as it is: the begin token, then plain text, no template.

    Raises: TokenizerError if the tokenizer lacks the begin token.
    """
    draft = Draft(text=BOS + repair(text), special_ranges=((0, len(BOS)),))
    return _encoded(tokenizer, draft, ())


def _encoded(
    tokenizer: ChatTokenizer,
    draft: Draft,
    images: tuple[ImagePart, ...],
    answers: Sequence[AssistantMessage] = (),
) -> Rendered:
    # A model whose tokenizer lacks the grounding markers can only have written them as plain text; that they are
    # quoted in a past answer must not block every later turn.
    ranges = tuple(
        (start, end)
        for start, end in draft.special_ranges
        if (spelling := draft.text[start:end]) not in GROUNDING or tokenizer.has(spelling)
    )
    n_markers = sum(draft.text[start:end] == tokenizer.image_marker for start, end in ranges)
    if n_markers != len(images):
        raise PromptError(f"{len(images)} pictures are given, the prompt has places for {n_markers}")
    composed = compose(tokenizer, replace(draft, special_ranges=ranges), answers)
    return Rendered(
        text=draft.text,
        special_ranges=ranges,
        ids=tuple(composed.ids),
        images=images,
        drawn=tuple(composed.drawn),
        n_begun=composed.n_begun,
        thinking=composed.thinking,
        continues=bool(answers) and answers[-1].prefix,
        marks=tuple(composed.marks),
    )
