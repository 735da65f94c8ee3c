import json

import pytest

from app.report import (
    artesian_version,
    envelope,
    failure,
    format_bytes,
    format_per_second,
    format_rate,
    format_seconds,
    said,
    short_seconds,
    table,
)
from storage.errors import MissingFolder


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (18_800_640, "18.8 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.00 GB"),
        (9_994_999_999, "9.99 GB"),
        (9_996_000_000, "10.0 GB"),
        (99_960_000_000, "100 GB"),
        (510_000_000_000, "510 GB"),
        (1_048_576_000_000_000, "1.05 PB"),
    ],
)
def test_bytes_are_decimal_with_three_figures(n_bytes: int, text: str) -> None:
    assert format_bytes(n_bytes) == text


def test_rates_need_a_time() -> None:
    assert format_rate(3_000_000_000, 2.0) == "1.50 GB/s"
    assert format_rate(3_000_000_000, 0.0) == ""
    assert format_per_second(46, 10.0) == "4.6/s"
    assert format_per_second(98_000, 10.0) == "9,800/s"
    assert format_per_second(1, 0.0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "40 ms"),
        (0.094, "94 ms"),
        (0.43, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 m 00 s"),
        (176, "2 m 56 s"),
        (3_900, "1 h 05 m"),
    ],
)
def test_times_are_as_long_as_they_need_to_be(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.000_04, "under 0.1 ms"),
        (0.000_44, "0.4 ms"),
        (0.004, "4 ms"),
        (0.43, "430 ms"),
        (0.96, "1.0 s"),
    ],
)
def test_times_below_a_second_can_be_told_apart(seconds: float, text: str) -> None:
    assert short_seconds(seconds) == text


def test_a_table_pads_columns_and_leaves_no_trailing_blanks() -> None:
    assert table([("kind", "worst"), ("logits", "2")], right=(1,)) == "kind    worst\nlogits      2"
    assert table([("a", ""), ("bcd", "e")]) == "a\nbcd  e"
    assert table([]) == ""


def test_an_envelope_is_one_ascii_line_with_the_version() -> None:
    line = envelope("event", {"text": "a\x1b[31m\nb\u202e"})
    assert line.isascii() and line.isprintable()
    assert json.loads(line) == {
        "artesian": artesian_version(),
        "kind": "event",
        "data": {"text": "a\x1b[31m\nb\u202e"},
    }


def test_a_failure_has_its_hint_indented_below() -> None:
    assert failure("no", "do this") == "artesian: no\n  do this"
    assert failure("no") == "artesian: no"


def test_a_failure_cannot_steer_the_terminal() -> None:
    assert failure("no file a\x1b[2J", "see b\x9b") == "artesian: no file a\u241b[2J\n  see b<U+009B>"


def test_a_line_end_in_a_name_begins_no_line() -> None:
    assert failure("no a\nartesian: done", "see a\nb") == "artesian: no a\u240aartesian: done\n  see a\u240ab"
    assert said(MissingFolder("no a\nb.", hint="See c\nd.")) == "no a\u240ab. See c\u240ad."
