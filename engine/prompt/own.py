"""Our own renderer, for platforms the vendor's library has no wheel for: rules 1 to 9, no tools, no JSON output.

The one thing a reader would get wrong: where the vendor's library and the checkpoint's own encoder differ (section 7 of
spec/prompt-format.md), this follows the library, so that both paths of Artesian build the same prompt.
"""

import re

from engine.errors import PromptError
from engine.prompt.messages import (
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
from engine.tokens import ASSISTANT, BOS, END_THINK, EOS, GROUNDING, REMINDER, SYSTEM, THINK, USER

_GROUNDING = re.compile("|".join(map(re.escape, GROUNDING)))
_NEEDS_LIBRARY = "Install the deepseek-recipe package, which has wheels for Linux (glibc 2.28 and later) and macOS 11+."


class _Pieces:
    """Text that grows, and which of its ranges are control tokens."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._ranges: list[tuple[int, int]] = []
        self._length = 0

    def text(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def mark(self, *spellings: str) -> None:
        for spelling in spellings:
            self._ranges.append((self._length, self._length + len(spelling)))
            self.text(spelling)

    def grounded(self, text: str) -> None:
        """Text the model wrote: the grounding markers in it are control tokens again."""
        done = 0
        for match in _GROUNDING.finditer(text):
            self.text(text[done : match.start()])
            self.mark(match.group())
            done = match.end()
        self.text(text[done:])

    def draft(self) -> Draft:
        return Draft(text="".join(self._parts), special_ranges=tuple(self._ranges))


def render(conversation: Conversation, image_marker: str | None) -> Draft:
    """Text and special ranges of the prompt.

    `image_marker` is the tokenizer's spelling of the image token, None when the model takes no pictures.
    Raises: PromptError if the conversation has tools, tool messages or a response format.
    Source: spec/prompt-format.md section 2, rules 1 to 9, and section 7.
    """
    _require_supported(conversation)
    messages, thinking = conversation.messages, conversation.thinking
    out = _Pieces()
    out.mark(BOS)
    if thinking and messages:
        out.mark(SYSTEM)
        out.text(
            f"Reasoning Effort: {conversation.effort_number()}"
            " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        )
    for number, message in enumerate(messages):
        previous = messages[number - 1] if number else None
        match message:
            case SystemMessage():
                if not (thinking and previous is None):  # the effort line has opened that one
                    out.mark(SYSTEM)
                out.text(message.text)
            case UserMessage():
                _render_user(out, message, previous, image_marker)
            case ReminderMessage():
                if not isinstance(previous, ReminderMessage):  # of several in a row the first counts
                    out.mark(REMINDER)
                    out.text(message.text)
            case AssistantMessage():
                _render_answer(out, message, thinking)
    if not _continues(messages):
        out.mark(ASSISTANT, THINK if thinking else END_THINK)
    return out.draft()


def _render_user(out: _Pieces, message: UserMessage, previous: Message | None, image_marker: str | None) -> None:
    if isinstance(previous, UserMessage):
        out.text("\n\n")
    else:
        out.mark(USER)
    for number, part in enumerate(message.parts):
        if number:
            out.text("\n\n")
        if isinstance(part, ImagePart):
            assert image_marker is not None  # render() refuses pictures without one
            out.mark(image_marker)
        else:
            out.text(part)


def _render_answer(out: _Pieces, message: AssistantMessage, thinking: bool) -> None:
    out.mark(ASSISTANT)
    if message.prefix and thinking:
        out.mark(THINK)
        out.grounded(message.reasoning or "")
        if not message.text:
            return  # cut in the reasoning: it stays open
    out.mark(END_THINK)
    out.grounded(message.text)
    if not message.prefix:
        out.mark(EOS)


def _continues(messages: tuple[Message, ...]) -> bool:
    return bool(messages) and isinstance(messages[-1], AssistantMessage) and messages[-1].prefix


def _require_supported(conversation: Conversation) -> None:
    if conversation.tools:
        raise PromptError("tools cannot be declared without the deepseek-recipe package", hint=_NEEDS_LIBRARY)
    if conversation.response != "text":
        raise PromptError("JSON output needs the deepseek-recipe package", hint=_NEEDS_LIBRARY)
    for number, message in enumerate(conversation.messages, start=1):
        if isinstance(message, ToolMessage) or (isinstance(message, AssistantMessage) and message.tool_calls):
            raise PromptError(
                f"message {number} is a tool call or its result, which needs the deepseek-recipe package",
                hint=_NEEDS_LIBRARY,
            )
