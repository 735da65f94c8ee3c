"""How figures and failures are written: bytes, rates, tables, the --json envelope. It computes nothing.

Sizes are decimal (1 GB = 10**9 bytes), as drives are sold.
"""

import json
from collections.abc import Sequence
from typing import Any

from app.sanitize import one_line
from storage.sizes import format_bytes as format_bytes  # of here for all of app


def artesian_version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import version  # here saves commands that do not ask for it 15 ms

    return version("artesian")


def format_rate(n_bytes: float, seconds: float) -> str:
    """Bytes a second, or "" when no time has passed."""
    return f"{format_bytes(n_bytes / seconds)}/s" if seconds > 0 else ""


SHORTEST_S = 0.05
"""A rate over less time than this means nothing: the first token comes with the prompt."""


def with_rate(what: str, count: int, seconds: float) -> str:
    """`what` with the time it took, and how many a second that were where the time says so."""
    rate = format_per_second(count, seconds) if seconds >= SHORTEST_S else ""
    return f"{what} in {format_seconds(seconds)}" + (f" ({rate})" if rate else "")


def format_per_second(count: float, seconds: float) -> str:
    """A count a second with one decimal below ten: "4.6/s", "98/s"; "" when no time has passed."""
    if seconds <= 0:
        return ""
    rate = count / seconds
    return f"{rate:.1f}/s" if rate < 9.95 else f"{rate:,.0f}/s"


def format_seconds(seconds: float) -> str:
    """A length of time: "12 ms", "0.4 s", "43 s", "2 m 56 s", "1 h 05 m"."""
    if seconds < 0.095:  # "0.0 s" would say that it took no time
        return short_seconds(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def short_seconds(seconds: float) -> str:
    """The same where tenths of a second are too coarse: "0.4 ms" and "430 ms" below a second."""
    if seconds >= 0.95:
        return format_seconds(seconds)
    n_ms = seconds * 1000
    if 0 < n_ms < 0.95:
        return f"{n_ms:.1f} ms" if n_ms >= 0.05 else "under 0.1 ms"
    return f"{n_ms:.0f} ms"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns padded to their widest cell, two spaces apart, no trailing blanks.

    `right` lists the columns that are set flush right. Every row has the same number of cells.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def envelope(kind: str, data: object) -> str:
    """One line of `--json` output: `{"artesian": version, "kind": kind, "data": data}`.

    Everything outside ASCII is escaped, so no control character of a model or a file name reaches the terminal.
    """
    record: dict[str, Any] = {"artesian": artesian_version(), "kind": kind, "data": data}
    return json.dumps(record, allow_nan=False)


def said(error: BaseException) -> str:
    """What went wrong and what to do about it, in one line for a screen, safe for a terminal."""
    message = (str(error) or type(error).__name__).rstrip(".")
    return one_line(f"{message}. {getattr(error, 'hint', '')}".strip())


def told_of_system(error: OSError) -> str:
    """What the operating system says of an error, and of which file, without its number; "" where it says nothing."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}" if error.strerror else ""


def failure(message: str, hint: str = "") -> str:
    """The stderr form of a failure: the message, and the hint indented below it, both safe for a terminal.

    Each is one line: a line end in it is one of a file's name, which could begin a message of its own.
    """
    return one_line(f"artesian: {message}") + (f"\n  {one_line(hint)}" if hint else "")
