from hypothesis import given
from hypothesis import strategies as st

from app.sanitize import Stream, one_line, visible


def test_an_escape_sequence_is_shown_and_not_sent() -> None:
    assert visible("\x1b[31mred\x1b]0;title\x07") == "\u241b[31mred\u241b]0;title\u2407"


def test_the_one_byte_csi_of_c1_is_shown() -> None:
    assert visible("\x9b31m \x85 \x7f") == "<U+009B>31m <U+0085> \u2421"


def test_bidi_controls_and_tags_are_shown() -> None:
    assert visible("a\u202egnp.exe\u2066") == "a<U+202E>gnp.exe<U+2066>"
    assert visible("hi\U000e0041") == "hi<U+E0041>"


def test_newlines_tabs_and_ordinary_text_pass() -> None:
    text = "line\n\tcode \u2014 \u4f60\u597d \U0001f9d1\u200d\U0001f52c\ufe0f"
    assert visible(text) == text


def test_a_carriage_return_passes_only_as_part_of_a_line_end() -> None:
    assert visible("one\r\ntwo\rthree") == "one\ntwo\u240dthree"


def test_a_line_end_split_over_two_pieces_is_one_line_end() -> None:
    stream = Stream()
    assert [stream.push("one\r"), stream.push("\ntwo\r"), stream.finish()] == ["one", "\ntwo", "\u240d"]


def test_a_name_in_a_line_cannot_break_the_line() -> None:
    assert one_line("a\nb\tc\x1b") == "a\u240ab\u2409c\u241b"


def _is_control(character: str) -> bool:
    return ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0


@given(st.text())
def test_no_control_character_is_left_in_any_text(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if _is_control(c) and c not in "\n\t"]
    shown.encode("utf-8")


@given(st.lists(st.text()))
def test_pieces_give_what_the_whole_text_gives(pieces: list[str]) -> None:
    stream = Stream()
    assert "".join([*map(stream.push, pieces), stream.finish()]) == visible("".join(pieces))
