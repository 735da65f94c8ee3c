"""Markdown in rows: what it looks like, that growing ends where the whole begins, and what hostile text comes to."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from app.tui.flow.blocks import Growing, whole
from app.tui.flow.flow import Flow
from app.tui.flow.rows import rows_of
from app.tui.flow.spans import Span, tame, wrap
from tests.app.tui.long_text import long_reply, pieces


def shown(text: str, width: int = 40, *, pieces: int | None = None) -> list[str]:
    """The rows of `text`, pushed in pieces of so many characters, or whole."""
    flow = Flow(width)
    for begin in range(0, len(text), pieces or len(text) or 1):
        flow.push(text[begin : begin + (pieces or len(text))])
    if pieces is None:
        flow.settle()
    return [flow.row(index).text.rstrip() for index in range(flow.n_rows)]


def test_paragraphs_lists_quotes_and_rules() -> None:
    text = (
        "# Title\n\nOne *two* **three** `four`\nfive.\n\n- a\n- b\n   - c\n\n3. x\n4. y\n\n> said\n> so\n\n---\n\nEnd"
    )
    assert shown(text) == [
        "Title", "", "One two three four five.", "", "- a", "- b", "  - c", "3. x", "4. y", "", "| said so", "",
        "------------------------", "", "End",
    ]  # fmt: skip


def test_a_link_shows_where_it_goes_and_an_image_that_it_is_one() -> None:
    assert shown("[here](https://x.example/y) ![a cat](https://y.example/z.png)", 80) == [
        "here (https://x.example/y) [image: a cat] (https://y.example/z.png)"
    ]
    assert shown("<https://x.example>", 80) == ["https://x.example"]


def test_html_is_text() -> None:
    assert shown("<script>alert(1)</script>\n\n<b>x</b>", 60) == ["<script>alert(1)</script>", "", "<b>x</b>"]


def test_code_keeps_its_blanks_and_names_its_language() -> None:
    assert shown("```python\ndef f():\n\treturn 1\n\n```\nafter") == [
        " python", " def f():", "     return 1", "", "", "after",
    ]  # fmt: skip


def test_words_of_code_have_their_kind() -> None:
    (row,) = [row for row in rows_of(whole("```python\nx = 'a'  # b\n```")[0], 40) if "x" in row.text]
    assert ("a", "code-value") in row.spans and ("# b", "code-comment") in row.spans


def test_a_table_is_aligned_and_narrowed_and_at_last_a_list() -> None:
    text = "| name | n |\n|---|--:|\n| slot | 12 |\n| a longer name | 3 |"
    assert shown(text, 40) == [
        "name            n", "-------------  --", "slot           12", "a longer name   3",
    ]  # fmt: skip
    assert all(cell_len(row) <= 15 for row in shown(text, 15))
    assert shown(text, 12) == ["name: slot", "n: 12", "", "name: a", "longer name", "n: 3"]


DOCUMENT = long_reply(900, seed=5)


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_growing_ends_as_the_whole_text_is_shown(size: int) -> None:
    text = DOCUMENT if size > 1 else DOCUMENT[:1_200]
    assert shown(text, 60, pieces=size) == shown(text, 60)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab *_`#>-|1.~[]()!\n\t", max_size=80), st.integers(1, 9))
def test_any_markdown_grows_without_losing_a_word(text: str, size: int) -> None:
    grown, at_once = "".join(shown(text, 60, pieces=size)), "".join(shown(text, 60))
    for letter in "ab":
        assert grown.count(letter) == at_once.count(letter)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(alphabet="ab c\u6f22\u5b57\U0001f44d\u0301", max_size=12), max_size=6), st.integers(2, 12))
def test_rows_fit_and_hold_every_character_but_blanks(texts: list[str], width: int) -> None:
    rows = wrap([Span(tame(text)) for text in texts], width)
    together = "".join(span.text for row in rows for span in row)
    assert together.replace(" ", "") == tame("").join(map(tame, texts)).replace(" ", "")
    assert all(cell_len("".join(span.text for span in row).rstrip()) <= width for row in rows)


def test_what_comes_while_the_text_is_shown_as_written_is_there_when_it_is_rendered() -> None:
    flow, plain = Flow(60), Flow(60)
    for number, piece in enumerate(pieces(DOCUMENT, 50)):
        flow.set_raw(number % 3 > 0)
        flow.push(piece)
        plain.push(piece)
    flow.set_raw(False)
    assert (flow.blocks, flow.tail, flow.first_rows) == (plain.blocks, plain.tail, plain.first_rows)
    assert (flow.rows, flow.tail_rows) == (plain.rows, plain.tail_rows)


def test_a_finished_block_is_never_laid_out_again() -> None:
    flow = Flow(60)
    flow.push("first paragraph\n\nsecond")
    first = flow.rows[0]
    for _ in range(50):
        flow.push(" word")
    assert flow.rows[0] is first
    assert len(flow.tail) == 1


def test_what_is_parsed_again_is_bounded_whatever_grows() -> None:
    growing = Growing()
    for _ in range(200):
        growing.push("a word and another without an end ")
        assert sum(len(block.source) for block in growing.tail()) <= 6_000


def test_parts_of_a_long_fence_are_one_block_in_the_end() -> None:
    code = "".join(f"line {number}\n" for number in range(100))
    flow = Flow(60)
    flow.push(f"```\n{code}")
    assert len(flow.blocks) > 1 and all(block.is_part for block in flow.blocks[1:])
    assert "".join(block.source for block in (*flow.blocks, *flow.tail)) == code
    flow.push("```\n")
    flow.settle()
    assert [block.source for block in flow.blocks] == [code]


def _one_by_one(text: str, width: int) -> list[str]:
    """Rows as they are meant: a word, or one ideograph, goes behind the blanks before it or begins the next row."""
    rows, row, blanks = [], "", ""
    for piece in re.findall(r" +|[ab]+|.", text):
        if piece[0] == " ":
            blanks = piece
        elif cell_len(row + blanks + piece) > width:
            rows += [row] if row else []
            row, blanks = piece, ""
        else:
            row, blanks = row + blanks + piece, ""
    return [*rows, row] if row else rows


@given(
    st.lists(st.sampled_from(["漢", "字", "か", "カ", "한", "，", "「漢字」", "a", "abab", " ", "  "]), max_size=80),
    st.integers(8, 40),
)
def test_ideographs_go_into_rows_as_if_one_by_one(parts: list[str], width: int) -> None:
    text = re.sub(r"[ab]{8,}", "ab", "".join(parts))  # no word is longer than a row
    rows = ["".join(span.text for span in row) for row in wrap([Span(text)], width)]
    assert [row.rstrip() for row in rows if row.strip()] == _one_by_one(text, width)


HOSTILE = {
    "escape sequences": "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x9b31m" * 200,
    "OSC 52": "\x1b]52;c;cm0gLXJmIH4=\x07" * 300,
    "bidi": "\u202eevil\u2066txt.exe\u2069" * 400,
    "combining": "Z" + "\u0301\u0302\u0303\u0308" * 2_000 + " " + "e\u0301" * 300,
    "a line of a megabyte": "x" * 1_000_000,
    "words of a megabyte": "word " * 200_000,
    "nested quotes": ">" * 4_000 + " deep",
    "nested lists": "".join("  " * depth + "- x\n" for depth in range(400)),
    "brackets": "[" * 6_000,
    "links": "[a](" * 3_000,
    "stars": "*a **b " * 3_000,
    "backticks": "".join("`" * n + "x" for n in range(1, 160)),
    "a table of many columns": "|" + "a|" * 1_500 + "\n|" + "-|" * 1_500 + "\n|" + "b|" * 1_500,
    "open fences": "```a\n~~~b\n" * 1_000,
    "Textual markup": "[bold red]x[/] [@click=app.quit]y[/] [link=https://x]z[/]" * 200,
    "Han without blanks": "\u6f22\u5b57" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_steers_nothing(name: str) -> None:
    text = HOSTILE[name][:60_000]
    flow = Flow(60)
    for begin in range(0, len(text), 997):
        flow.push(text[begin : begin + 997])
    for _ in range(2):
        for index in range(flow.n_rows):
            row = flow.row(index).text
            assert row.isprintable(), repr(row)
            assert cell_len(row) <= 61  # a blank may stand past the end
            assert len(row) <= 400
        flow.settle()
    if name == "Textual markup":
        assert "[bold red]x[/]" in flow.row(0).text


def seconds(text: str) -> float:
    """Processor time of showing `text` as it comes, 400 characters at a time, and of the pass at the end."""
    flow, begun = Flow(76), time.process_time()
    for begin in range(0, len(text), 400):
        flow.push(text[begin : begin + 400])
    flow.settle()
    return time.process_time() - begun


def times_prose(name: str, n_chars: int = 40_000) -> float:
    """How many times as long as prose of its length a hostile text takes; the best of two."""
    text = (HOSTILE[name] * (1 + n_chars // len(HOSTILE[name])))[:n_chars]
    return min(map(seconds, (text, text))) / min(map(seconds, (long_reply(n_chars // 4, seed=3),) * 2))


# The worst there were before they were dealt with; all of them: python -m tests.app.tui.screen_cost.
@pytest.mark.parametrize("name", ["escape sequences", "brackets", "links", "stars", "Han without blanks"])
def test_hostile_text_takes_at_most_twice_as_long_as_prose(name: str) -> None:
    assert times_prose(name, 12_000) <= 2


def test_cost_grows_with_what_is_new_and_not_with_what_is_there() -> None:
    """Rows laid out, which is what costs: at token 10,000 at most 1.2 times as many a token as at 500."""
    text, flow, laid_out = long_reply(11_000, seed=7), Flow(76), []
    for first, last in ((2_000, 6_000), (40_000, 44_000)):
        flow.push(text[len(flow.source) : first])
        laid_out.append(0)
        for begin in range(first, last, 16):
            before = len(flow.rows)
            flow.push(text[begin : begin + 16])
            laid_out[-1] += len(flow.rows) - before + len(flow.tail_rows)
    early, late = laid_out
    assert late <= 1.2 * early


@given(
    st.lists(st.sampled_from(["a", "b ", "\r", "\r\n", "\n", "- ", "1. ", "> ", "```", "    ", "\x85", "\u2028"])),
    st.data(),
)
def test_carriage_returns_are_line_ends_however_the_text_is_cut(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cut = data.draw(st.integers(0, len(text)))
    growing, plain = Growing(), Growing()
    done = [*growing.push(text[:cut]), *growing.push(text[cut:]), *growing.tail()]
    expected = plain.push(text.replace("\r\n", "\n").replace("\r", "\n")) + plain.tail()
    # By words: what a line's first piece makes a block of its own may go on with the line before it, as code in a text.
    assert "\n".join(block.source for block in done).split() == "\n".join(block.source for block in expected).split()
    assert whole(text) == whole(text.replace("\r\n", "\n").replace("\r", "\n"))
