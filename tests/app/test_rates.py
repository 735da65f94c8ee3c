"""Rates remembered between runs: of this machine only, for so long, and never a reason to fail."""

import json
from pathlib import Path

import pytest

from app.rates import MOST_FACTOR, SHARED_FOR_S, RateBook
from planner.facts import Rates
from tests.fakes import Clock

RATES = Rates(
    memory_bytes_s=5e10, fp4_bytes_s=3e10, fp8_bytes_s=4e10, plain_bytes_s=4.5e10, multiply_adds_s=2e11,
    source="measured",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "rates.json"


def test_what_was_noted_is_there_in_the_next_run(file: Path) -> None:
    book = RateBook(file)
    assert book.drive("nvme0n1") is None and book.arithmetic(8) is None and book.shared("a and b") is None
    book.note_drive("nvme0n1", 4e9)
    book.note_arithmetic(8, "native avx2", RATES)
    book.note_shared("a and b", {"a": 3e9, "b": 1e9})
    assert not file.exists()  # nothing is written before it is asked for
    book.save()
    again = RateBook(file)
    assert again.drive("nvme0n1") == 4e9 and again.drive("a") == 3e9
    assert again.shared("a and b") == {"a": 3e9, "b": 1e9} and again.shared("a") is None
    remembered = again.arithmetic(8)
    assert remembered is not None and remembered.source == "remembered"
    assert remembered.fp4_bytes_s == 3e10 and remembered.answer_factor == 1
    assert again.arithmetic(4) is None and again.arithmetic(8, "torch") is None
    assert again.arithmetic(8, "native avx2") == remembered


def test_half_of_what_a_turn_shows_is_believed(file: Path) -> None:
    book = RateBook(file)
    book.note_drive("d", 4e9)
    book.note_drive("d", 2e9)
    assert book.drive("d") == 3e9
    book.note_arithmetic(1, "torch", RATES)
    book.note_factors(answer=2.0, prompt=None)
    book.note_factors(answer=4.0, prompt=1e9)
    rates = book.arithmetic(1)
    assert rates is not None and (rates.answer_factor, rates.prompt_factor) == (3.0, MOST_FACTOR)


def test_shares_of_drives_are_measured_again_after_a_month(file: Path) -> None:
    clock = Clock()
    book = RateBook(file, clock=clock)
    book.note_shared("a and b", {"a": 3e9, "b": 1e9})
    clock.now_s = SHARED_FOR_S - 1
    assert book.shared("a and b") is not None
    clock.now_s = SHARED_FOR_S + 1
    assert book.shared("a and b") is None
    clock.now_s = -5  # a clock that was put back
    assert book.shared("a and b") is None


def test_two_books_of_one_file_lose_nothing_to_each_other(file: Path) -> None:
    first, second = RateBook(file), RateBook(file)
    first.note_drive("a", 1e9)
    second.note_drive("b", 2e9)
    second.note_arithmetic(8, "torch", RATES)
    first.save()
    second.save()
    again = RateBook(file)
    assert (again.drive("a"), again.drive("b")) == (1e9, 2e9) and again.arithmetic(8) is not None
    assert second.drive("a") == 1e9  # what others noted is known from then on


def test_another_machine_begins_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = RateBook(file)
    book.note_drive("sda", 1e8)
    book.save()
    monkeypatch.setattr("platform.node", lambda: "another")
    assert RateBook(file).drive("sda") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"version": 1}', "[" * 100_000, "\udcff".encode("utf-8", "surrogatepass").decode("latin-1")],
)
def test_a_file_that_cannot_be_used_is_begun_anew(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text, encoding="latin-1")
    book = RateBook(file)
    assert book.drive("d") is None
    book.note_drive("d", 1e9)
    book.save()
    assert RateBook(file).drive("d") == 1e9


@pytest.mark.parametrize("rate", [None, "fast", True, -1, 0, float("inf"), float("nan"), {"x": 1}])
def test_numbers_that_cannot_be_rates_are_no_rates(file: Path, rate: object) -> None:
    book = RateBook(file)
    book.note_drive("d", 1e9)
    book.note_shared("s", {"d": 1e9})
    book.note_arithmetic(1, "torch", RATES)
    book.save()
    data = json.loads(file.read_text())
    data["drives"]["d"]["rate_bytes_s"] = rate
    data["shared"]["s"]["rates"]["d"] = rate
    data["arithmetic"]["torch x1"]["fp4_bytes_s"] = rate
    data["factors"] = {"answer_factor": {"factor": rate}}
    file.write_text(json.dumps(data))
    book = RateBook(file)
    assert book.drive("d") is None and book.shared("s") is None and book.arithmetic(1) is None


def test_a_folder_that_cannot_be_written_to_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    book = RateBook(tmp_path / "cache" / "rates.json")
    book.note_drive("d", 1e9)
    book.save()
    nothing = RateBook(None)
    nothing.note_drive("d", 1e9)
    nothing.save()
    assert nothing.drive("d") == 1e9 and not nothing.keeps
