"""Sizes as people write them, decimal as drives are sold: "24GB", "500 MB", "1.5TB", "4096B", "80%".

A bare number is none but 0: whoever writes 24 means 24GB, and would get 24 bytes.
"""

import re

from app.errors import UsageError
from planner.plan import Size

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)


def parse_bytes(text: str, option: str) -> int:
    """The bytes that `text` names. Raises: UsageError naming `option` and what it takes."""
    n_bytes = bytes_of(text)
    if n_bytes is None:
        raise UsageError(f"{option} must be a size such as 24GB or 500MB, not {text!r}")
    return n_bytes


def bytes_of(text: str) -> int | None:
    """The bytes that `text` names, or None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = float(match[1]), (_UNITS | _BINARY).get(match[2].upper())
    return 0 if not number and not match[2] else None if unit is None else round(number * unit)


def size_of(text: str) -> Size | None:
    """The bytes or the share, over 0 and up to 100%, that `text` names, or None when it is neither."""
    share = _SHARE.fullmatch(text.strip())
    if share is not None:
        percent = float(share[1])
        return Size(share=percent / 100) if 0 < percent <= 100 else None
    n_bytes = bytes_of(text)
    return None if n_bytes is None else Size(n_bytes=n_bytes)
