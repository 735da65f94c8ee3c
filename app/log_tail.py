"""The end of the log file, bounded, safe for a terminal."""

from pathlib import Path

from app.sanitize import visible

MOST_BYTES = 200_000


def tail(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The last whole lines of the log, at most `most_bytes` of them; a sentence when there are none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            raw = file.read(most_bytes)
    except FileNotFoundError:
        return "Nothing has been logged."
    except OSError as error:
        return visible(f"The log cannot be read: {error.strerror or error}")
    if size > most_bytes:
        raw = raw.partition(b"\n")[2]
    text = visible(raw.decode("utf-8", errors="replace"))
    return text.rstrip("\n") or "Nothing has been logged."
