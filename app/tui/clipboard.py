"""Copying without a clipboard of our own: the terminal's (OSC 52) where it is likely to take the text, else a file.

The one thing a reader would get wrong: no terminal says whether it took the text. So what is said is "sent", not
"copied"; where the terminal is known to refuse, or the text is larger than terminals take, it goes to a file instead,
and where nobody can know, to a file as well.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.private_files import PRIVATE_FILE, write_whole
from app.report import format_bytes

MOST_BYTES = 74_994
"""Of text: its base64 and the sequence around it then fit in the 100,000 bytes that xterm and hterm take."""
TMUX_MOST_BYTES = 700_000
"""Likewise for tmux, which takes a megabyte at once."""
_REFUSING = {"linux": "the Linux console has no clipboard", "dumb": "this terminal takes no sequences"}


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a copy."""

    said: str
    """For the user: where it is now."""
    path: Path | None
    """The file, when it went to one."""


def refusal(n_bytes: int, environ: Mapping[str, str] = os.environ) -> str:
    """Why the terminal will not take `n_bytes` of text, or "" when it may."""
    in_tmux = "TMUX" in environ
    if environ.get("TERM_PROGRAM") == "Apple_Terminal" and not in_tmux:
        return "Terminal.app takes no text from programs"
    if environ.get("TERM", "") in _REFUSING:
        return _REFUSING[environ["TERM"]]
    limit = TMUX_MOST_BYTES if in_tmux else MOST_BYTES
    return f"it is more than the {format_bytes(limit)} a terminal takes" if n_bytes > limit else ""


def is_doubtful(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nobody can know if the terminal takes it: GNOME's kind by its version, any terminal over SSH."""
    return "VTE_VERSION" in environ or "SSH_CONNECTION" in environ or "SSH_TTY" in environ


def copy(
    text: str, what: str, send: Callable[[str], None], folder: Path, environ: Mapping[str, str] = os.environ
) -> Copied:
    """Hand `text` to the terminal by `send` (OSC 52), or write it to `clipboard.txt` in `folder`, or both.

    `what` names it for the user, with a capital: "Reply". Raises: OSError when it had to be a file and could not.
    """
    text = text.encode("utf-8", errors="replace").decode()  # half of a pair, in a file from elsewhere, has no bytes
    size = f"{len(text):,} character{'' if len(text) == 1 else 's'}"
    path = folder / "clipboard.txt"
    why = refusal(len(text.encode()), environ)
    if why:
        write_whole(path, text, mode=PRIVATE_FILE)
        return Copied(f"{what} written to {path}, as {why}.", path)
    send(text)
    where = "tmux and the terminal's clipboard" if "TMUX" in environ else "the terminal's clipboard"
    if not is_doubtful(environ):
        return Copied(f"{what} sent to {where}, {size}.", None)
    try:
        write_whole(path, text, mode=PRIVATE_FILE)
    except OSError:  # the terminal may have it, which is all that can be said
        return Copied(f"{what} sent to {where}, {size}; this one may not take it.", None)
    return Copied(f"{what} sent to {where}, {size}; should this one not take it, it is in {path}.", path)
