"""A rendered prompt to ids, with past answers as they were drawn.

The one thing a reader would get wrong: an answer's text, encoded again, need not give the ids that were drawn, and then
no kept state fits the prompt any more. So the drawn ids are put in wherever they say exactly what the text says, and
the text is encoded where they do not: it was edited, or cut at a stop string.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from engine.events import TextDelta
from engine.prompt.messages import AssistantMessage, Draft
from engine.reply import ReplyParser
from engine.tokens import ASSISTANT, END_THINK, EOS, THINK, USER, ChatTokenizer


@dataclass(slots=True)
class Composed:
    """A prompt's ids, and what is known of them; the fields are those of `Rendered`."""

    ids: list[int] = field(default_factory=list)
    drawn: list[tuple[int, int]] = field(default_factory=list)
    n_begun: int = 0
    thinking: bool = False
    marks: list[int] = field(default_factory=list)


def compose(tokenizer: ChatTokenizer, draft: Draft, answers: Sequence[AssistantMessage]) -> Composed:
    """The ids of a draft whose `answers`, in order, are the assistant messages of its conversation.

    Raises: TokenizerError if the draft has a control token that the tokenizer lacks.
    Source: spec/prompt-format.md section 2, rules 5, 6 and 9: every answer is one AST, then THINK or END.
    """
    out, left = Composed(), list(answers)
    text, done = draft.text, 0
    skip_to = 0
    ranges = draft.special_ranges
    for number, (start, end) in enumerate(ranges):
        if start < skip_to:
            continue
        out.ids += tokenizer.encode_plain(text[done:start]) if start > done else []
        spelling, done = text[start:end], end
        if spelling == USER and out.ids:
            out.marks.append(len(out.ids))
        out.ids.append(tokenizer.id_of(spelling))
        if spelling in (THINK, END_THINK):
            out.thinking = spelling == THINK
        if spelling == ASSISTANT:
            out.marks.append(len(out.ids))
        opens = spelling in (THINK, END_THINK) and number > 0 and text[slice(*ranges[number - 1])] == ASSISTANT
        if not opens or not left:
            continue
        answer = left.pop(0)
        ids = _drawn(tokenizer, answer, thinking=spelling == THINK)
        if ids is None:
            continue
        skip_to = done = _end_of_answer(draft, number) if not answer.prefix else len(text)
        out.drawn.append((len(out.ids), len(out.ids) + len(ids)))
        out.ids += ids
        out.n_begun = len(ids) if answer.prefix else 0
    out.ids += tokenizer.encode_plain(text[done:]) if done < len(text) else []
    return out


def _end_of_answer(draft: Draft, opener: int) -> int:
    """Where the end token of the answer that the special range number `opener` opens stands in the text."""
    later = draft.special_ranges[opener + 1 :]
    return next((start for start, end in later if draft.text[start:end] == EOS), len(draft.text))


def _drawn(tokenizer: ChatTokenizer, answer: AssistantMessage, *, thinking: bool) -> tuple[int, ...] | None:
    """The drawn ids that stand for the answer behind its opener, or None when its text has to be encoded.

    `thinking` says that the reasoning is part of the prompt, so that all ids stand there.
    """
    if not answer.ids or answer.tool_calls:
        return None
    reasoning = (answer.reasoning or "").rstrip("\n")  # a stop shows line ends that would else have been dropped
    if thinking:
        return answer.ids if _said(tokenizer, answer.ids, True) == (reasoning, answer.text) else None
    end_think = tokenizer.id_of(END_THINK)
    # A reply that goes on has no reasoning that was dropped; a marker in it is one that it drew in its answer.
    if not answer.prefix and end_think in answer.ids and _said(tokenizer, answer.ids, True)[1] == answer.text:
        return answer.ids[answer.ids.index(end_think) + 1 :]
    return answer.ids if _said(tokenizer, answer.ids, False) == ("", answer.text) else None


_MOST_KEPT = 1024
_kept: WeakKeyDictionary[ChatTokenizer, dict[tuple[tuple[int, ...], bool], tuple[str, str]]] = WeakKeyDictionary()
"""What answers say, as long as their tokenizer is in use: that of the release takes 190 MB."""


def _said(tokenizer: ChatTokenizer, ids: tuple[int, ...], thinking: bool) -> tuple[str, str]:
    """Reasoning and answer as a turn shows them. Kept: the answers of a conversation are looked at every turn."""
    kept = _kept.setdefault(tokenizer, {})
    found = kept.get((ids, thinking))
    if found is None:
        parser = ReplyParser(tokenizer, thinking)
        deltas = [delta for token in ids for delta in parser.push(token)] + parser.finish()
        said = ["".join(d.text for d in deltas if isinstance(d, TextDelta) is answer) for answer in (False, True)]
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        found = kept[ids, thinking] = said[0].rstrip("\n"), said[1]
    return found
