"""The words of the command line as the parser takes them. No parser, and nothing heavy."""

import re
from collections.abc import Sequence
from itertools import pairwise

from app.errors import UsageError

CONTINUE = "--continue"
LATEST = "latest"
"""Stands for the transcript changed last; the letters of an id cannot spell it."""
_BARE_WORD = re.compile(r"[0-9A-Za-z]+")
"""What may be an id, whole, cut short or mistyped: it has no sign in it, and no blank."""


def name_continued(words: Sequence[str]) -> list[str]:
    """The same command line with what a lone `--continue` goes on with: the transcript behind it, or the latest.

    In the chat any word behind it is the transcript. In `ask` a question may stand there: a bare word, of letters and
    digits alone, is the transcript whether or not there is one, so that a mistyped id never becomes a part of the
    question; anything else ("why?", "and then?" in quotes) is the question. Nothing on the drive decides it.
    """
    named: list[str] = []
    left = list(words)
    is_chat = _is_chat(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*named, word, *left]
        if word == CONTINUE:
            has_id = bool(left) and _is_id(left[0], is_chat)
            word = f"{CONTINUE}={left.pop(0) if has_id else LATEST}"
        named.append(word)
    return named


def _is_chat(words: Sequence[str]) -> bool:
    """Whether the chat is meant: by its name, or by options without a command."""
    first = next((word for word in words if word != "--debug"), "chat")
    return first == "chat" or first.startswith("-")


def _is_id(word: str, is_chat: bool) -> bool:
    return not word.startswith("-") if is_chat else _BARE_WORD.fullmatch(word) is not None


_FREE_TEXT = ("ask", "chat", "transcripts", "help")
"""Commands that may be given an empty word: a question, a title; they say themselves what they miss."""


def require_filled(words: Sequence[str]) -> None:
    """Raises: UsageError for an empty word, made by a script's unset variable, where a folder or a value is expected.

    As a path it would be the current folder, which nobody named.
    """
    command = next((word for word in words if word and not word.startswith("-")), "chat")
    if command in _FREE_TEXT:
        return
    for before, word in pairwise(["", *words]):
        option, equals, value = word.partition("=")
        if word.startswith("--") and equals and not value.strip():
            named = option
        elif not word.strip():
            named = before if before.startswith("--") else f"an argument of `artesian {command}`"
        else:
            continue
        raise UsageError(
            f"{named} is empty", hint="Give it a value, or leave it out; an unset variable makes it empty."
        )


def free_dash(words: Sequence[str]) -> list[str]:
    """The same command line with every lone "-" moved behind "--": the parser takes it for an option elsewhere."""
    end = words.index("--") if "--" in words else len(words)
    head, tail = list(words[:end]), list(words[end + 1 :])
    dashes = [word for word in head if word == "-"]
    if not dashes:
        return list(words)
    return [word for word in head if word != "-"] + ["--", *dashes, *tail]
