"""Lines of figures, and noticing a reply that repeats itself."""

import pytest

from app.backends.base import PromptCost
from app.tui.figures import bar, fitting, footer_parts, loading_text, price, reading_lines
from app.tui.repetition import RepetitionWatch, repeats
from engine.events import DriveFigures, LoadProgress, PrefillProgress
from tests.fakes import turn_done


def drive(name: str, rate_bytes_s: float) -> DriveFigures:
    return DriveFigures(
        drive=name, n_reads=1, payload_bytes=1, read_bytes=1, busy_s=1.0, queue_s=0.0, rate_bytes_s=rate_bytes_s,
        n_errors=0,
    )  # fmt: skip


READING = PrefillProgress(
    done_tokens=1_536, total_tokens=4_212, read_bytes=35_800_000_000, elapsed_s=15.7, expert_hits=312,
    expert_misses=1_904, drives=(drive("nvme0", 6.8e9), drive("nvme1", 5.1e9)),
)  # fmt: skip


def test_reading_the_prompt_in_two_lines_as_wide_as_there_is_room() -> None:
    # 1,536 tokens in 15.7 s are 98 a second; 2,676 more take 27 s; 35.8 GB in 15.7 s are 2.28 GB/s.
    assert reading_lines(READING, 110) == [
        "reading prompt   1,536 of 4,212 tokens   #########...............   98 tok/s   27 s left",
        "experts          312 from memory, 1,904 from drives, 35.8 GB at 2.28 GB/s   "
        "(nvme0 6.80 GB/s, nvme1 5.10 GB/s)",
    ]
    assert all(len(line) <= 46 for line in reading_lines(READING, 46)[1:])
    assert "#" not in reading_lines(READING, 60)[0]


def test_reading_says_nothing_of_what_it_does_not_know() -> None:
    begun = PrefillProgress(done_tokens=0, total_tokens=9, read_bytes=0, elapsed_s=0.0)
    assert reading_lines(begun, 80) == ["reading prompt   0 of 9 tokens   ........................"]


def test_loading_has_bytes_rate_and_time_left() -> None:
    event = LoadProgress(done_bytes=2_000_000_000, total_bytes=8_000_000_000, elapsed_s=2.0)
    assert loading_text(event) == "loading 2.00 GB of 8.00 GB | 1.00 GB/s | 6.0 s left"


def test_the_price_has_what_is_new_what_is_kept_and_the_wait() -> None:
    cost = PromptCost(prompt_tokens=5_871, reused_tokens=5_657, context_tokens=65_536, expected_s=4.0)
    assert price(cost) == "214 tokens to read, 5,657 kept | about 4.0 s to the first token"
    full = PromptCost(prompt_tokens=4_000, reused_tokens=0, context_tokens=4_096, expected_s=None)
    assert price(full) == "4,000 tokens to read, 0 kept | 96 tokens of the context are left"


@pytest.mark.parametrize(
    ("reason", "said"),
    [("stopped", "stopped by you"), ("length", "cut at the token limit"), ("context", "the context is full")],
)
def test_the_footer_says_why_a_turn_ended(reason: str, said: str) -> None:
    done = turn_done(reason)  # type: ignore[arg-type]
    parts = footer_parts(done.stats, done.reason)
    assert parts[0] == "3 tokens in 2.0 s (1.5/s)" and parts[1] == said
    assert said not in footer_parts(done.stats, "stop")


def test_a_limit_reached_while_thinking_is_told_apart() -> None:
    done = turn_done("length", answer_tokens=0, thinking_tokens=50)
    assert "the token limit was reached while thinking" in footer_parts(done.stats, done.reason)


def test_parts_are_dropped_from_the_right_and_the_first_is_cut() -> None:
    parts = ["4.6 tok/s", "drive wait 41%", "hit 78%"]
    assert fitting(parts, 80) == "4.6 tok/s | drive wait 41% | hit 78%"
    assert fitting(parts, 30) == "4.6 tok/s | drive wait 41%"
    assert fitting(parts, 9) == "4.6 tok/s" and fitting(parts, 4) == "4.6 "


@pytest.mark.parametrize(("done", "total", "shown"), [(0, 4, "...."), (1, 2, "##.."), (4, 4, "####"), (9, 4, "####")])
def test_a_bar(done: int, total: int, shown: str) -> None:
    assert bar(done, total, 4) == shown


@pytest.mark.parametrize("text", ["I see. " * 60, "the same again, and " * 30, "abc\n" * 100])
def test_what_is_said_over_and_over_is_seen(text: str) -> None:
    assert repeats("A good beginning. " + text)


@pytest.mark.parametrize(
    "text",
    ["-" * 600, "\n" * 600, "| a | b |\n" * 3, "".join(f"line {n} of the list\n" for n in range(100)), "no " * 40],
)
def test_rules_lists_and_short_echoes_are_no_repetition(text: str) -> None:
    assert not repeats(text)


def test_a_repetition_is_told_once() -> None:
    watch = RepetitionWatch()
    assert sum(watch.push("and so on, ") for _ in range(200)) == 1
