"""What the model, a file name or a stranger's transcript wrote, made safe for a terminal or a page.

The same is done whether or not stdout is a terminal: a file made with `>` is shown with `cat` sooner or later, and a
reply must not change with the place it goes to. `--json` carries the text untouched, as escaped JSON.

The one thing a reader would get wrong: joiners and variation selectors are not forbidden, Persian, Hindi and emoji are
written with them. They pass where such a character stands before them, one each, and are shown anywhere else.
"""

import re
from collections.abc import Callable

_HARD = (
    "\x00-\x08\x0b-\x1f\x7f"  # C0 but tab and newline, and DEL
    "\x80-\x9f"  # C1: U+009B alone starts an escape sequence in many terminals
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidi controls, which reorder what is read
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065"  # invisible, and in two more lines
    "\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\u2028\u2029"  # ends a line for some programs and not for others
    "\ufe00-\ufe0d"  # variants of mathematical signs, hardly ever written
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # tags: invisible text
    "\ud800-\udfff"  # lone surrogates, which no output encoding takes
    "\ue000-\uf8ff\U000f0000-\U0010ffff"  # private use: whatever the font makes of it
    "\ufdd0-\ufdef" + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0xF0000, 0x10000))
)
"""Never sent."""
_SOFT = "\u200c\u200d\ufe0e\ufe0f\U000e0100-\U000e01ef"
"""Sent behind what they belong to: joiners, the two looks of an emoji, and the variants of Han characters."""

_PARTS = re.compile(f"[{_HARD}]+|[{_SOFT}]+")
_ANY = re.compile(f"[{_HARD}{_SOFT}]+")

_EMOJI = (
    "\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa"
    "\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297"
    "\u3299\U0001f000-\U0001faff"
)
_JOINING_LETTERS = "\u0620-\u06ff\u0710-\u077f\u0860-\u086f\u0870-\u088e\u08a0-\u08ff\u0900-\u0dff"
"""Of Arabic, Syriac and the scripts of India."""
_BEFORE = {
    "\u200c": re.compile(f"[{_JOINING_LETTERS}]"),
    "\u200d": re.compile(f"[{_JOINING_LETTERS}{_EMOJI}\ufe0f]"),
    "\ufe0e": re.compile(f"[{_EMOJI}0-9#*\u00a9\u00ae]"),
    "\ufe0f": re.compile(f"[{_EMOJI}0-9#*\u00a9\u00ae]"),
}
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


class _Table(dict[int, str]):
    """Code point -> what stands for it; filled as they are met."""

    def __init__(self, stand_in: Callable[[int], str]) -> None:
        super().__init__()
        self._stand_in = stand_in

    def __missing__(self, code: int) -> str:
        made = self[code] = self._stand_in(code)
        return made


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures block: U+241B is "ESC" in one cell
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def _escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


_PICTURES = _Table(_picture)
_ESCAPES = _Table(_escape)


def visible(text: str) -> str:
    """`text` with everything that could steer a terminal, hide in the text or reorder it shown instead of sent.

    Newlines and tabs pass, and CR LF becomes LF. Other C0 controls become their control picture; C1 and bidi controls,
    invisible and private characters, tags and lone surrogates become `<U+....>`. No text is dropped.
    """
    return _visible(text.replace("\r\n", "\n"), "")


def one_line(text: str) -> str:
    """`visible`, with newlines and tabs shown too: for a file name or a title inside a line of ours."""
    return visible(text.replace("\n", "\u240a").replace("\t", "\u2409"))


def escaped_json(text: str) -> str:
    """JSON text with the same characters written as `\\u....`: equal JSON, and nothing in it steers a terminal."""
    return _ANY.sub(lambda match: match.group().translate(_ESCAPES), text)


class Stream:
    """`visible` for text that comes in pieces: a CR at the end of a piece waits for the LF that may follow."""

    def __init__(self) -> None:
        self._held = ""
        self._before = ""

    def push(self, piece: str) -> str:
        """What can be shown of the text so far and was not yet."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") else ""
        return self._take(text.removesuffix("\r").replace("\r\n", "\n"))

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._take(held)

    def _take(self, text: str) -> str:
        before, self._before = self._before, text[-1:] or self._before
        return _visible(text, before)


def _visible(text: str, before: str) -> str:
    """`before` is the character that `text` follows, or ""."""

    def shown(match: re.Match[str]) -> str:
        found, start, n_passed = match.group(), match.start(), 0
        last = text[start - 1] if start else before
        while n_passed < len(found) and _may_follow(found[n_passed], last):
            last = found[n_passed]
            n_passed += 1
        return found[:n_passed] + found[n_passed:].translate(_PICTURES)

    return _PARTS.sub(shown, text)


def _may_follow(char: str, last: str) -> bool:
    """Whether a joiner or selector stands where it belongs; nothing else may pass."""
    if char in _BEFORE:
        return bool(_BEFORE[char].match(last))
    return "\U000e0100" <= char <= "\U000e01ef" and bool(_HAN.match(last))
