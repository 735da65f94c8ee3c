from pathlib import Path

from app.input_history import MOST_ENTRIES, MOST_ENTRY_CHARACTERS, InputHistory


def _loaded(path: Path) -> InputHistory:
    history = InputHistory(path)
    history.load()
    return history


def test_entries_come_back_newest_first_over_sessions(tmp_path: Path) -> None:
    path = tmp_path / "data" / "history.jsonl"
    _loaded(path).add("one")
    _loaded(path).add("two\nlines")
    history = _loaded(path)
    assert [history.older("n"), history.older("x"), history.older("x")] == ["two\nlines", "one", None]
    assert [history.newer(), history.newer(), history.newer()] == ["two\nlines", "n", None]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_stands_in_the_box_is_searched_for(tmp_path: Path) -> None:
    history = InputHistory(None)
    for text in ("the garden", "a slot", "my GARDEN again"):
        history.add(text)
    assert [history.older("garden"), history.older(""), history.older("")] == ["my GARDEN again", "the garden", None]
    assert [history.newer(), history.newer()] == ["my GARDEN again", "garden"]


def test_an_edited_entry_is_a_draft_of_its_own() -> None:
    history = InputHistory(None)
    history.add("one")
    history.add("two")
    assert history.older("") == "two" and history.browsing
    history.leave()
    assert not history.browsing and history.newer() is None


def test_blank_repeated_and_huge_texts_are_left_out() -> None:
    history = InputHistory(None)
    for text in ("one", "  \n", "one", "x" * (MOST_ENTRY_CHARACTERS + 1)):
        history.add(text)
    assert [history.older(""), history.older("")] == ["one", None]


def test_a_torn_line_and_foreign_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'"good"\n{"a": 1}\n\xff\xfe\n[[[[\n"torn')
    history = _loaded(path)
    history.add("next")
    again = _loaded(path)
    assert [again.older(""), again.older(""), again.older("")] == ["next", "good", None]


def test_it_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f'"{number}"\n' for number in range(2 * MOST_ENTRIES + 1)))
    history = _loaded(path)
    assert history.older("") == str(2 * MOST_ENTRIES)
    assert len(path.read_text().splitlines()) == MOST_ENTRIES


def test_trouble_with_the_file_is_said_and_the_session_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.mkdir()
    history = _loaded(path)
    assert history.problem is not None
    history.add("kept in memory")
    assert history.problem is not None and str(path) in history.problem
    assert history.older("") == "kept in memory"
