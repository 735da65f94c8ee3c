import io

from app.progress import CountProgress, ProgressLine, TimedProgress, WorkProgress, progress_text
from engine.events import LoadProgress, PrefillProgress
from tests.fakes import Clock


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _prefill(done: int, elapsed_s: float) -> PrefillProgress:
    return PrefillProgress(done_tokens=done, total_tokens=4_212, read_bytes=35_800_000_000, elapsed_s=elapsed_s)


def test_the_line_says_what_how_much_of_how_much_at_which_rate_and_how_long_still() -> None:
    assert progress_text(_prefill(1_053, 10.0)) == (
        "reading prompt 1,053 of 4,212 tokens | 105/s | 35.8 GB from drives | 30 s left"
    )
    loading = LoadProgress(done_bytes=3_000_000_000, total_bytes=9_000_000_000, elapsed_s=2.0)
    assert progress_text(loading) == "loading 3.00 GB of 9.00 GB | 1.50 GB/s | 4.0 s left"


def test_a_wait_under_a_second_shows_nothing() -> None:
    terminal = _Terminal()
    line = ProgressLine(terminal, columns=80, clock=Clock())
    line.show(_prefill(1, 0.9))
    line.clear()
    assert terminal.getvalue() == ""


def test_the_line_is_redrawn_at_most_ten_times_a_second() -> None:
    terminal, clock = _Terminal(), Clock()
    line = ProgressLine(terminal, columns=80, clock=clock)
    for step in range(100):
        clock.now_s = 5 + step / 100
        line.show(_prefill(step + 1, 5.0))
    assert terminal.getvalue().count("\r") in (10, 11)


def test_a_shorter_line_covers_the_longer_one_before_and_nothing_is_left() -> None:
    terminal, clock = _Terminal(), Clock()
    line = ProgressLine(terminal, columns=40, clock=clock)
    line.show(_prefill(1_000, 5.0))
    clock.now_s = 1.0
    line.show(LoadProgress(done_bytes=1, total_bytes=1, elapsed_s=2.0))
    line.clear()
    drawn = terminal.getvalue().split("\r")[1:]
    assert len(drawn[0]) == 39
    assert len(drawn[1]) == 39
    assert drawn[2].strip() == "" and drawn[3] == ""
    line.clear()
    assert terminal.getvalue().endswith("\r")


def test_a_pipe_gets_no_progress() -> None:
    pipe = io.StringIO()
    line = ProgressLine(pipe, columns=80, clock=Clock())
    line.show(_prefill(1, 60.0))
    line.clear()
    assert pipe.getvalue() == ""


def test_a_command_that_moves_bytes_or_measures_for_a_time_says_so() -> None:
    writing = WorkProgress(what="writing", done_bytes=2_000_000_000, total_bytes=8_000_000_000, elapsed_s=4.0)
    assert progress_text(writing) == "writing 2.00 GB of 8.00 GB | 500 MB/s | 12 s left"
    measuring = TimedProgress(what="measuring", elapsed_s=12.0, total_s=60.0, read_bytes=13_200_000_000)
    assert progress_text(measuring) == "measuring 12 s of 1 m 00 s | 13.2 GB read | 1.10 GB/s"


def test_counted_work_says_what_it_counts() -> None:
    event = CountProgress(what="comparing", unit="positions", done=100, total=473, elapsed_s=20.0)
    assert progress_text(event) == "comparing 100 of 473 positions | 5.0/s | 1 m 15 s left"
