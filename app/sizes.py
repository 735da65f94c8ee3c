"""Sizes as people write them, decimal as drives are sold: "24GB", "500 MB", "1.5TB", "4096"."""

import re

from app.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str, option: str) -> int:
    """The bytes that `text` names. Raises: UsageError naming `option` and what it takes."""
    match = _SIZE.fullmatch(text.strip())
    unit = (_UNITS | _BINARY).get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{option} must be a size such as 24GB or 500MB, not {text!r}")
    return round(float(match[1]) * unit)
