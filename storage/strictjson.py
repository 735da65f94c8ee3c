"""JSON from a stranger: one object, no key twice, no costly number, and a bound on what Python makes of it.

`json.loads` keeps the last of two equal keys, reads `NaN`, turns a million digits into an integer, and makes a list
of every `[]`; a header may do none of these. The reason is raised as `RefusedJsonError` and becomes a typed error
where the file is known.
"""

import json
from typing import Any

from storage.errors import shown

MAX_DIGITS = 20
"""Enough for any 64-bit number with its sign."""
_COUNT_BYTES = 1 << 20


class RefusedJsonError(Exception):
    """Why the text is refused. `reason` is "text", "json", "key" or "count"; it never leaves this package."""

    def __init__(self, reason: str, message: str, found: object = None, expected: object = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.found = found
        self.expected = expected


def strict_object(data: bytes, *, max_objects: int, max_values: int) -> dict[str, Any]:
    """The JSON object in `data`.

    What it may cost is settled before anything is built, by counting brackets and commas in the bytes: a list of empty
    lists would otherwise make 20 bytes of every one in the file.
    Raises: RefusedJsonError.
    """
    for what, mark, limit in (
        ("objects", b"{", max_objects),
        ("lists", b"[", max_values),
        ("values", b",", max_values),
    ):
        count = count_up_to(data, mark, limit)
        if count > limit:
            raise RefusedJsonError("count", f"has more than {limit:,} {what}", count, limit)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedJsonError("text", f"is not UTF-8 at byte {error.start:,}", error.start) from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise RefusedJsonError("json", f"is not JSON at character {error.pos:,}: {error.msg}", error.pos) from None
    except RecursionError:
        raise RefusedJsonError("json", "is JSON nested too deeply") from None
    if not isinstance(value, dict):
        raise RefusedJsonError(
            "json", f"is not a JSON object but a {type(value).__name__}", type(value).__name__, "object"
        )
    return value


def count_up_to(data: bytes, mark: bytes, limit: int) -> int:
    """How often the byte `mark` occurs, not counting much further than `limit`: counting 10^8 of them takes a
    second.
    """
    count = 0
    for start in range(0, len(data), _COUNT_BYTES):
        count += data.count(mark, start, start + _COUNT_BYTES)
        if count > limit:
            break
    return count


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RefusedJsonError("key", f"has the key {shown(key)!r} twice", key)
            seen.add(key)
    return made


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RefusedJsonError("json", f"has a number of {len(digits):,} digits", len(digits), MAX_DIGITS)
    return int(digits)


def _constant(name: str) -> None:
    raise RefusedJsonError("json", f"has the value {name}, which JSON has not", name)
