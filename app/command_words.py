"""The words of the command line as the parser takes them. No parser, and nothing heavy."""

import re
from collections.abc import Sequence

CONTINUE = "--continue"
LATEST = "latest"
"""Stands for the transcript changed last; the letters of an id cannot spell it."""
_LOOKS_LIKE_ID = re.compile(r"(?=.*[2-9])[2-9a-hjkmnp-z]{10}")


def name_continued(words: Sequence[str]) -> list[str]:
    """The same command line with what a lone `--continue` goes on with: the transcript behind it, or the latest.

    What looks like the id of a transcript is taken for one, whether or not it is there; a word of a question has no
    digit in it and rarely ten letters.
    """
    named: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*named, word, *left]
        if word == CONTINUE:
            has_id = bool(left) and _LOOKS_LIKE_ID.fullmatch(left[0]) is not None
            word = f"{CONTINUE}={left.pop(0) if has_id else LATEST}"
        named.append(word)
    return named


def free_dash(words: Sequence[str]) -> list[str]:
    """The same command line with every lone "-" moved behind "--": the parser takes it for an option elsewhere."""
    end = words.index("--") if "--" in words else len(words)
    head, tail = list(words[:end]), list(words[end + 1 :])
    dashes = [word for word in head if word == "-"]
    if not dashes:
        return list(words)
    return [word for word in head if word != "-"] + ["--", *dashes, *tail]
