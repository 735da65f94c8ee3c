"""What the model or a file name wrote, made safe for a terminal.

The same is done whether or not stdout is a terminal: a file made with `>` is shown with `cat` sooner or later, and a
reply must not change with the place it goes to. `--json` carries the text untouched, as escaped JSON.
"""

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f]"  # C0 but tab and newline, and DEL
    "|[\x80-\x9f]"  # C1: U+009B alone starts an escape sequence in many terminals
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # bidi controls, which reorder what is read
    "|[\U000e0000-\U000e007f]"  # tags: invisible text
    "|[\ud800-\udfff]"  # lone surrogates, which no output encoding takes
)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block: U+241B is "ESC" in one cell
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def visible(text: str) -> str:
    """`text` with everything that could steer a terminal shown instead of sent.

    Newlines and tabs pass, and CR LF becomes LF. Other C0 controls become their control picture, C1 controls, bidi
    controls, tags and lone surrogates become `<U+....>`. No text is dropped.
    """
    return _UNSAFE.sub(_shown, text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """JSON text with the same characters written as `\\u....`: equal JSON, and nothing in it steers a terminal."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def one_line(text: str) -> str:
    """`visible`, with newlines and tabs shown too: for a file name or a title inside a line of ours."""
    return visible(text.replace("\n", "\u240a").replace("\t", "\u2409"))


class Stream:
    """`visible` for text that comes in pieces: a CR at the end of a piece waits for the LF that may follow."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        """What can be shown of the text so far and was not yet."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") else ""
        return visible(text.removesuffix("\r"))

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return visible(held)
