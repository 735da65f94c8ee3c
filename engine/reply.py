"""Drawn ids to the reasoning and the answer, as they come.

The one thing a reader would get wrong: the reasoning ends at the *id* of `</think>`, never at that text: a model that
quotes the marker writes it in ordinary tokens and goes on thinking. Where section 5 of spec/prompt-format.md leaves
room, this does what the vendor's library does, which the tests compare it with.
"""

import codecs
from collections.abc import Sequence

from engine.errors import PromptError
from engine.events import TextDelta, ThinkingDelta
from engine.tokens import END_THINK, ChatTokenizer

Delta = TextDelta | ThinkingDelta


class ReplyParser:
    """Reads one reply, token by token; the end token is not pushed. Each token costs its own length, however long the
    reply has become.

    Tool calls are text here: they are only parsed where tools are declared, and nothing declares any.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, thinking: bool, stop: Sequence[str] = (), *, continued: bool = False
    ) -> None:
        """`thinking` says where the reply begins: in the reasoning, or in the answer. `stop` ends the answer where one
        of these strings is complete. `continued` is for a reply whose beginning is in the prompt: its leading newlines
        are text.

        Raises: PromptError if a stop string is empty; TokenizerError if `thinking` and there is no `</think>`.
        """
        self._tokenizer = tokenizer
        # A tokenizer without the marker can still answer; it has nothing to skip then.
        self._end_think = tokenizer.id_of(END_THINK) if thinking or tokenizer.has(END_THINK) else None
        self._thinking = thinking
        self._leading = not continued
        self._newlines = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = _StopStrings(stop)
        self._finished = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the next token belongs to the reasoning; still true at the end when the answer never began."""
        return self._thinking

    @property
    def finished(self) -> bool:
        """Whether the reply has ended, by a stop string or by `finish`. Nothing may be pushed then."""
        return self._finished

    def push(self, token: int) -> list[Delta]:
        """What the token adds; it may be nothing yet. Ids outside the vocabulary add nothing at all."""
        assert not self._finished
        if token == self._end_think:
            return self._end_of_reasoning()
        if self._tokenizer.is_control(token):
            return self._control_token(token)
        return self._text(self._utf8.decode(self._tokenizer.token_bytes(token) or b""))

    def resume(self, ids: Sequence[int]) -> None:
        """Go on behind what an earlier turn said and showed, held back text included; half a character it dropped is
        waited for.
        """
        for token in ids:
            if self._finished:
                return
            self.push(token)
        self._held()

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the reply. An incomplete character is dropped."""
        if self._finished:
            return []
        self._finished = True
        return self._held()

    def _end_of_reasoning(self) -> list[Delta]:
        """Open the answer; in the answer the marker shows as nothing, but it does end the leading newlines."""
        deltas = self._text(self._utf8.decode(b"", final=True))
        if self._thinking:
            self._thinking, self._leading, self._newlines = False, True, 0
            return deltas
        self._leading = False
        return deltas + self._held()

    def _control_token(self, token: int) -> list[Delta]:
        """Show its spelling. It is no text, so stop strings do not reach into it or over it."""
        deltas = self._text(self._utf8.decode(b"", final=True)) + self._held()
        self._leading = False
        return deltas + self._delta((self._tokenizer.token_bytes(token) or b"").decode())

    def _text(self, text: str) -> list[Delta]:
        if self._leading:
            text = text.lstrip("\n")
            self._leading = not text
        if not self._thinking:
            shown, self._finished = self._stops.feed(text)
            return self._delta(shown)
        # Newlines wait: at the end of the reasoning they are dropped. As a count, a flood of them costs nothing.
        shown = text.rstrip("\n")
        waiting, ending = self._newlines, len(text) - len(shown)
        self._newlines = ending if shown else waiting + ending
        return self._delta("\n" * waiting + shown) if shown else []

    def _held(self) -> list[Delta]:
        """What waits for more: newlines in the reasoning, the beginning of a stop string in the answer."""
        if not self._thinking:
            return self._delta(self._stops.release())
        waiting, self._newlines = self._newlines, 0
        return self._delta("\n" * waiting)

    def _delta(self, text: str) -> list[Delta]:
        if not text:
            return []
        return [ThinkingDelta(text=text) if self._thinking else TextDelta(text=text)]


class _StopStrings:
    """Looks for the first completed stop string in text that comes in pieces.

    One failure table per string (Knuth, Morris, Pratt 1977), so that a character costs the same however long the
    strings are, and no more is held back than could still become one.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise PromptError("a stop string is empty; it would end every answer before it begins")
        self._strings = tuple(strings)
        self._tables = tuple(map(_failure_table, self._strings))
        self._matched = [0] * len(self._strings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a string is complete; the text then ends before it.

        Of several strings that complete at the same character the one listed first counts.
        """
        if not self._strings:
            return text, False
        waiting = self._held + text
        for position, char in enumerate(text, start=len(self._held)):
            completed = [index for index in range(len(self._strings)) if self._advance(index, char)]
            if completed:
                return waiting[: position + 1 - len(self._strings[completed[0]])], True
        shown = len(waiting) - max(self._matched)
        self._held = waiting[shown:]
        return waiting[:shown], False

    def release(self) -> str:
        """What is held back; matching begins anew behind it."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._strings)
        return held

    def _advance(self, index: int, char: str) -> bool:
        """Take one character into the match of one string; whether that completes it."""
        string, table, matched = self._strings[index], self._tables[index], self._matched[index]
        while matched and string[matched] != char:
            matched = table[matched - 1]
        if string[matched] == char:
            matched += 1
        self._matched[index] = matched
        return matched == len(string)


def _failure_table(string: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0]
    for char in string[1:]:
        length = table[-1]
        while length and string[length] != char:
            length = table[length - 1]
        table.append(length + (string[length] == char))
    return tuple(table)
