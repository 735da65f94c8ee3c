"""The words of the command line as the parser takes them. No parser, and nothing heavy."""

import re
from collections.abc import Callable, Sequence

CONTINUE = "--continue"
LATEST = "latest"
"""Stands for the transcript changed last; the letters of an id cannot spell it."""
_WHOLE_ID = re.compile(r"(?=.*[2-9])[2-9a-hjkmnp-z]{10}")
_SHORT_ID = re.compile(r"[2-9a-hjkmnp-z]{3,10}")


def _is_stored(beginning: str) -> bool:
    # Here and not at the top: only `ask --continue WORD` needs it, and `ask` reads it in any case.
    from app.transcripts.store import user_store

    return user_store().has_beginning(beginning)


def name_continued(words: Sequence[str], is_stored: Callable[[str], bool] = _is_stored) -> list[str]:
    """The same command line with what a lone `--continue` goes on with: the transcript behind it, or the latest.

    In the chat any word behind it is the transcript. In `ask` a question may stand there, so a word is taken for an id
    when it looks like a whole one, whether or not it is there, and for the beginning of one when `is_stored` knows a
    transcript that begins so. A word of a question has no digit in it and rarely ten letters; that a word of three
    letters begins an id by chance happens with one in 29,791 transcripts, and `--continue=ID` leaves nothing to chance.

    Raises: OSError when the transcripts cannot be listed.
    """
    named: list[str] = []
    left = list(words)
    is_chat = _is_chat(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*named, word, *left]
        if word == CONTINUE:
            has_id = bool(left) and _is_id(left[0], is_chat, is_stored)
            word = f"{CONTINUE}={left.pop(0) if has_id else LATEST}"
        named.append(word)
    return named


def _is_chat(words: Sequence[str]) -> bool:
    """Whether the chat is meant: by its name, or by options without a command."""
    first = next((word for word in words if word != "--debug"), "chat")
    return first == "chat" or first.startswith("-")


def _is_id(word: str, is_chat: bool, is_stored: Callable[[str], bool]) -> bool:
    if is_chat:
        return not word.startswith("-")
    if _WHOLE_ID.fullmatch(word) is not None:
        return True
    return _SHORT_ID.fullmatch(word.lower()) is not None and is_stored(word)


def free_dash(words: Sequence[str]) -> list[str]:
    """The same command line with every lone "-" moved behind "--": the parser takes it for an option elsewhere."""
    end = words.index("--") if "--" in words else len(words)
    head, tail = list(words[:end]), list(words[end + 1 :])
    dashes = [word for word in head if word == "-"]
    if not dashes:
        return list(words)
    return [word for word in head if word != "-"] + ["--", *dashes, *tail]
