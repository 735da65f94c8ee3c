"""The vendor's library, deepseek-recipe, behind our records.

The one thing a reader would get wrong: it is used to render, never to encode. Its tokenizer knows nothing of numeric
efforts, and one encoder for both paths is one thing less that can differ.
"""

import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

from engine.errors import PromptError
from engine.prompt.messages import (
    EFFORTS,
    AssistantMessage,
    Conversation,
    Draft,
    ImagePart,
    Message,
    ReminderMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
)

if TYPE_CHECKING:
    import deepseek_recipe

_HIGH_LINE = f"Reasoning Effort: {EFFORTS['high']} "


def available() -> bool:
    """Whether the library is installed; it has no wheel for Windows, musl and old glibc."""
    return importlib.util.find_spec("deepseek_recipe") is not None


def render(conversation: Conversation, image_marker: str | None) -> Draft:
    """Text and special ranges of the prompt, tools and JSON output included.

    `image_marker` is the tokenizer's spelling of the image token, None when the model takes no pictures.
    Raises: PromptError if the library refuses the conversation.
    Source: spec/prompt-format.md section 3.
    """
    # Deferred: a platform without a wheel must still import this module.
    import deepseek_recipe as library

    numeric = isinstance(conversation.effort, int)
    named = cast(Literal["low", "high", "xhigh", "max"] | None, "high" if numeric else conversation.effort)
    try:
        encoding = library.DeepseekV41Encoding().with_special_tokens(library.SpecialTokens(image=image_marker))
        rendered = encoding.render_conversation(
            library.Conversation(
                [part for message in conversation.messages for part in _messages(library, message, image_marker)],
                thinking_mode=conversation.thinking,
                reasoning_effort=named,
                tools=[
                    library.ToolDefinition(tool.name, tool.description, tool.parameters) for tool in conversation.tools
                ],
                tool_choice=conversation.tool_choice,
                **_response(conversation),
            )
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise PromptError(f"the conversation cannot be rendered: {error}") from error
    draft = Draft(text=rendered.prompt, special_ranges=tuple(rendered.special_ranges))
    has_line = conversation.thinking and bool(conversation.messages)
    return _with_effort(draft, conversation.effort_number()) if numeric and has_line else draft


def _messages(library: ModuleType, message: Message, image_marker: str | None) -> "list[deepseek_recipe.Message]":
    """The library's messages for one of ours: every part of a user message is one of its own.

    Text and picture in one message would let a typed marker take the picture's place: the first occurrence wins there.
    """
    match message:
        case SystemMessage():
            return [library.SystemMessage(message.text)]
        case UserMessage():
            return [
                library.UserMessage(image_marker, [library.BytesImageSource(part.data)], image_token=image_marker)
                if isinstance(part, ImagePart)
                else library.UserMessage(part)
                for part in message.parts or ("",)
            ]
        case AssistantMessage():
            calls = [library.ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls]
            return [library.AssistantMessage(message.text, message.reasoning, calls or None, message.prefix)]
        case ToolMessage():
            return [library.ToolMessage(message.text, message.call_id)]
        case ReminderMessage():
            return [library.LatestReminderMessage(message.text)]


def _response(conversation: Conversation) -> dict[str, Any]:
    if isinstance(conversation.response, str):
        return {"response_format": conversation.response}
    return {"response_schema": conversation.response}


def _with_effort(draft: Draft, number: int) -> Draft:
    """The prompt of effort `high` with the number replaced: the model takes 1 to 100, the library only names."""
    start = draft.special_ranges[1][1]
    if not draft.text.startswith(_HIGH_LINE, start):
        raise PromptError(
            "the installed deepseek-recipe writes another effort line than the one a number can be put into",
            hint="Install a version from 0.2 up to, not including, 0.3; or use a named effort.",
        )
    line = _HIGH_LINE.replace(str(EFFORTS["high"]), str(number))
    grown = len(line) - len(_HIGH_LINE)
    return Draft(
        text=draft.text[:start] + line + draft.text[start + len(_HIGH_LINE) :],
        special_ranges=(
            *draft.special_ranges[:2],
            *((first + grown, last + grown) for first, last in draft.special_ranges[2:]),
        ),
    )
