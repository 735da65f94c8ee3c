"""What a conversation is made of, before it becomes a prompt: plain frozen records.

The library's own message objects cannot be copied, compared or saved, so these are ours. The one thing a reader would
get wrong: reasoning is kept in an answer's record although most prompts drop it; which do is the renderer's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import PromptError
from engine.tokens import repair

EFFORTS: Mapping[str, int] = {"low": 50, "high": 75, "xhigh": 75, "max": 100}
"""Named efforts and the number each writes into the prompt. Source: spec/prompt-format.md section 2."""

DEFAULT_EFFORT = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """A picture inside a user message."""

    data: bytes
    """The encoded file. The prompt only marks its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    """Instructions; may stand anywhere and counts as a turn."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What the user sent."""

    parts: tuple[str | ImagePart, ...]
    """Text and pictures in order; they are joined by blank lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the model made in a past answer."""

    id: str
    name: str
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """A past answer, or the beginning of the coming one."""

    text: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    prefix: bool = False
    """Last message only: the model goes on from here, in the reasoning if there is no text yet."""
    ids: tuple[int, ...] = ()
    """The ids as they were drawn, reasoning included, end token not; empty when the text came from elsewhere.

    They count only where they say what the text says: one that was cut or edited is encoded anew.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """What a tool returned."""

    text: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderMessage:
    """A note that stands close to the coming answer, such as today's date."""

    text: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | ReminderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    """JSON schema of the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Everything that decides the prompt of the coming turn."""

    messages: tuple[Message, ...]
    thinking: bool
    """Whether the coming answer begins with reasoning."""
    effort: str | int | None = None
    """A name of `EFFORTS`, a number from 1 to 100, or None for high; without effect when not thinking."""
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response: Literal["text", "json_object"] | Mapping[str, object] = "text"
    """Free text, any JSON object, or a JSON schema to answer by."""

    def effort_number(self) -> int:
        """The number in the effort line. Raises: PromptError if the effort is neither a name nor 1 to 100."""
        effort = DEFAULT_EFFORT if self.effort is None else self.effort
        if isinstance(effort, str) and effort in EFFORTS:
            return EFFORTS[effort]
        if type(effort) is int and 1 <= effort <= 100:
            return effort
        raise PromptError(f"effort is {effort!r}, it must be one of {', '.join(EFFORTS)} or a number from 1 to 100")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A rendered conversation before it is encoded."""

    text: str
    special_ranges: tuple[tuple[int, int], ...]
    """Half-open, ascending code point ranges of `text`; each is one control token, all else is plain text."""


def require_renderable(conversation: Conversation) -> None:
    """Check what no renderer may be given. Raises: PromptError naming the message or the setting."""
    conversation.effort_number()
    count = len(conversation.messages)
    for number, message in enumerate(conversation.messages, start=1):
        if not (isinstance(message, AssistantMessage) and message.prefix):
            continue
        if number < count:
            raise PromptError(f"message {number} of {count} is to be continued; only the last one can be")
        if count == 1:
            # The library would drop its reasoning and close it, without a word.
            raise PromptError("the answer to be continued is the only message; it needs the one it answers before it")


def repaired(message: Message) -> Message:
    """The message with lone surrogates repaired in all its text; nothing else changes."""
    match message:
        case UserMessage():
            return UserMessage(parts=tuple(repair(part) if isinstance(part, str) else part for part in message.parts))
        case AssistantMessage():
            reasoning = None if message.reasoning is None else repair(message.reasoning)
            calls = tuple(
                ToolCall(id=repair(call.id), name=repair(call.name), arguments=repair(call.arguments))
                for call in message.tool_calls
            )
            return replace(message, text=repair(message.text), reasoning=reasoning, tool_calls=calls)
        case ToolMessage():
            call_id = None if message.call_id is None else repair(message.call_id)
            return ToolMessage(text=repair(message.text), call_id=call_id)
        case SystemMessage() | ReminderMessage():
            return replace(message, text=repair(message.text))
