"""One record a line: made for the file, and read from a file nobody vouches for.

The one thing a reader would get wrong: a line that cannot be used is not an error of the file. It is named in
`Damage`, and everything else is still read.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.sanitize import escaped_json
from storage.strictjson import RefusedJsonError, strict_object

MOST_LINE_BYTES = 1 << 27
"""The longest question, 16 MiB, with every character written as six."""
MOST_FILE_BYTES = 1 << 28
"""A million tokens are some 40 MB; what is behind this is not read."""
_MOST_STRUCTURE_BYTES = 1 << 20
"""Of a line, strings left out: what bounds the objects it can become."""
_READ_BYTES = 1 << 20
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A line that was skipped, or could be used only in part."""

    line: int
    """Counted from 1."""
    reason: str
    """Why, to stand behind "line 7"."""


def encode(record: dict[str, Any]) -> bytes:
    """A record as one line, its end included.

    What could steer a terminal is written as `\\u....`, so that a transcript may be looked at with `cat`.
    """
    text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return escaped_json(text).encode() + b"\n"


def _finite(value: Any) -> Any:
    """`value` with infinities and NaN, which JSON has not, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def decode(line: bytes) -> dict[str, Any]:
    """The record in a line. Raises: ValueError with the reason."""
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"has more than {MOST_LINE_BYTES:,} bytes")
    if len(line) > _MOST_STRUCTURE_BYTES and len(_STRING.sub(b'""', line)) > _MOST_STRUCTURE_BYTES:
        raise ValueError("holds too many values")
    try:
        return strict_object(line, max_objects=len(line), max_values=len(line))
    except RefusedJsonError as error:
        raise ValueError(str(error)) from None


class LineReader:
    """Every line of a file, bounded in length and in all.

    Attributes:
        n_lines: Lines given so far.
        end: Offset behind the last line end seen.
        torn_bytes: Bytes behind it, once all is read: a line whose writing was interrupted.
        too_long: Whether there is more than is read.
    """

    def __init__(self, read: Callable[[int, int], bytes], *, most_bytes: int = MOST_FILE_BYTES) -> None:
        """`read(n_bytes, offset)` gives the file's bytes."""
        self.n_lines = 0
        self.end = 0
        self.torn_bytes = 0
        self.too_long = False
        self._read = read
        self._most_bytes = most_bytes

    def __iter__(self) -> Iterator[bytes]:
        """The lines without their ends; of one longer than `MOST_LINE_BYTES` only the beginning, one byte more.

        The last one is given also when it is torn. Raises: OSError as `read` does.
        """
        offset, parts, held = 0, list[bytes](), 0
        while offset < self._most_bytes and (block := self._read(min(_READ_BYTES, self._most_bytes - offset), offset)):
            *whole, rest = block.split(b"\n")
            for piece in whole:
                self.n_lines += 1
                yield b"".join([*parts, piece])[: MOST_LINE_BYTES + 1]
                parts, held = [], 0
            offset += len(block)
            self.end = offset - len(rest) if whole else self.end
            if held <= MOST_LINE_BYTES:
                parts.append(rest)
                held += len(rest)
        self.too_long = offset >= self._most_bytes and bool(self._read(1, offset))
        self.torn_bytes = offset - self.end
        if self.torn_bytes:
            self.n_lines += 1
            yield b"".join(parts)[: MOST_LINE_BYTES + 1]
