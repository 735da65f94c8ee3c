import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sanitize import Stream, escaped_json, one_line, visible

_ZWJ, _ZWNJ = "\u200d", "\u200c"

_NASTY = st.sampled_from(
    "\x00\x07\x1b\r\n\t\x7f\x85\x9b\xad\u034f\u061c\u115f\u200b\u200c\u200d\u200e\u202e\u2028\u2060\u2066\u3164\ud800"
    "\udfff\ue000\ufdd0\ufe00\ufe0e\ufe0f\ufeff\uffff\U0001f9d1\U0001f3fd\U000e0001\U000e0041\U000e0100\U0010fffd#a\u6f22"
)
"""What the rules speak of, far more often than chance would bring it up."""
_TEXT = st.text(st.one_of(_NASTY, st.characters(), st.characters(categories=["Cc", "Cf", "Cs", "Co", "Cn", "Mn"])))


def test_an_escape_sequence_is_shown_and_not_sent() -> None:
    assert visible("\x1b[31mred\x1b]0;title\x07") == "\u241b[31mred\u241b]0;title\u2407"


def test_the_one_byte_csi_of_c1_is_shown() -> None:
    assert visible("\x9b31m \x85 \x7f") == "<U+009B>31m <U+0085> \u2421"


def test_bidi_controls_and_tags_are_shown() -> None:
    assert visible("a\u202egnp.exe\u2066") == "a<U+202E>gnp.exe<U+2066>"
    assert visible("hi\U000e0041") == "hi<U+E0041>"


def test_what_is_invisible_or_private_is_shown() -> None:
    assert visible("pay\u200bpal\u2060\ufeff\u3164\xad") == "pay<U+200B>pal<U+2060><U+FEFF><U+3164><U+00AD>"
    assert visible("\ue0b0\U000f0000\U0010ffff\ufdd0") == "<U+E0B0><U+F0000><U+10FFFF><U+FDD0>"
    assert visible("one\u2028two\u2029") == "one<U+2028>two<U+2029>"


def test_newlines_tabs_and_ordinary_text_pass() -> None:
    text = "line\n\tcode \u2014 \u4f60\u597d \U0001f9d1\u200d\U0001f52c\ufe0f"
    assert visible(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "\u2764\ufe0f\u200d\U0001f525",  # a heart on fire: selector, then joiner
        "\U0001f9d1\U0001f3fd\u200d\U0001f680",  # an astronaut with a skin tone
        "1\ufe0f\u20e3 #\ufe0f\u20e3 \xa9\ufe0e",  # keycaps, a plain copyright sign
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian: "I want", with its half-space
        "\u0d28\u0d4d\u200d",  # Malayalam: a chillu written with a joiner
        "\u845b\U000e0100",  # a Japanese name with a variant character
        "e\u0301 \u1100\u1161\u11a8",  # combining accents and conjoining Hangul
    ],
)
def test_scripts_and_emoji_that_need_joiners_and_selectors_keep_them(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ad\u200dmin", "ad<U+200D>min"),
        ("ad\u200cmin", "ad<U+200C>min"),
        ("\u200dx", "<U+200D>x"),
        ("a\ufe0f", "a<U+FE0F>"),
        ("\u2764\ufe0f\ufe0f\ufe0e", "\u2764\ufe0f<U+FE0F><U+FE0E>"),  # one bit for each would hide a text
        ("\U0001f9d1\u200d\u200d\u200d", "\U0001f9d1\u200d<U+200D><U+200D>"),
        ("a\U000e0100\U000e0101", "a<U+E0100><U+E0101>"),
        ("\u845b\U000e0100\U000e0101", "\u845b\U000e0100<U+E0101>"),
    ],
)
def test_joiners_and_selectors_are_shown_where_nothing_needs_them(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_carriage_return_passes_only_as_part_of_a_line_end() -> None:
    assert visible("one\r\ntwo\rthree") == "one\ntwo\u240dthree"


def test_a_line_end_split_over_two_pieces_is_one_line_end() -> None:
    stream = Stream()
    assert [stream.push("one\r"), stream.push("\ntwo\r"), stream.finish()] == ["one", "\ntwo", "\u240d"]


def test_an_emoji_split_over_pieces_stays_one() -> None:
    stream = Stream()
    assert [stream.push("\U0001f9d1"), stream.push(""), stream.push("\u200d"), stream.push("\U0001f52c")] == [
        "\U0001f9d1",
        "",
        "\u200d",
        "\U0001f52c",
    ]


def test_a_name_in_a_line_cannot_break_the_line() -> None:
    assert one_line("a\nb\tc\x1b") == "a\u240ab\u2409c\u241b"


@given(_TEXT)
def test_nothing_that_steers_hides_or_reorders_is_left_in_any_text(text: str) -> None:
    """The rule comes from the character's Unicode category here, not from the table it is made of."""
    shown = visible(text)
    shown.encode("utf-8")
    for before, char in zip("\n" + shown, shown, strict=False):
        if char in "\n\t":
            continue
        category = unicodedata.category(char)
        if char in (_ZWJ, _ZWNJ):
            assert not before.isascii() and unicodedata.category(before) != "Cf"
            continue
        # Cf also holds signs of their own, such as the one that begins an Arabic number; those have a width.
        assert category not in ("Cc", "Cs", "Co", "Zl", "Zp"), ascii(char)
        assert category != "Cf" or unicodedata.bidirectional(char) in ("AN", "L", "AL"), ascii(char)


@given(_TEXT)
def test_safe_text_is_left_alone_and_nothing_is_dropped(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert len(shown) >= len(text.replace("\r\n", "\n"))


@given(st.lists(_TEXT))
def test_pieces_give_what_the_whole_text_gives(pieces: list[str]) -> None:
    stream = Stream()
    assert "".join([*map(stream.push, pieces), stream.finish()]) == visible("".join(pieces))


@given(_TEXT)
def test_escaped_json_is_equal_json_without_anything_unsafe(text: str) -> None:
    written = escaped_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(written) == text
    assert visible(written) == written
    written.encode("utf-8")


@pytest.mark.parametrize("text", ["a", "\x1b", "a\x1b", "\u200d", "\U0001f9d1\u200d", "\u4f60", "\xe9\u202e"])
def test_the_time_grows_with_the_length_and_not_faster(text: str) -> None:
    line = text * (200_000 // len(text))
    began = time.process_time()
    visible(line)
    assert time.process_time() - began < 1  # 0.02 to 0.1 s: a megabyte takes half a second at the worst
