from pathlib import Path

import pytest
from textual import events
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from app.drafts import DraftFile
from app.editing import EditorError
from app.input_history import InputHistory
from app.tui.pasting import MOST_CHARS, QUICK_LINE
from app.tui.widgets.prompt import Prompt, box_text
from app.tui.widgets.slash_menu import SlashMenu
from tests.app.tui.snapshot import wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui


async def _ready(pilot: Pilot[int], prompt: Prompt) -> None:
    await wait_until(pilot, lambda: prompt.is_mounted)
    prompt.focus_editor()
    await pilot.pause()


async def test_enter_sends_and_the_box_is_empty() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press(*"hi", "enter")
        await wait_until(pilot, lambda: app.sent == ["hi"])
        assert prompt.text == ""
        await pilot.press("enter", "space", "enter")
        assert app.sent == ["hi"], "nothing and blanks are not sent"


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
async def test_lines_are_broken_without_sending(key: str) -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press("a", key, "b", "up", "c", "enter")
        await wait_until(pilot, lambda: app.sent == ["ac\nb"])


async def test_a_paste_comes_whole_with_nothing_in_it_acted_on() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        # Terminals send CR for a line end; the rest would steer a terminal if it were shown as it is.
        app.post_message(events.Paste("/quit\rsecond\r\nthird\x1b[31m\x07\u202e"))
        await wait_until(pilot, lambda: bool(prompt.text))
        assert prompt.text == "/quit\nsecond\nthird\u241b[31m\u2407<U+202E>"
        assert not app.sent and not app.done


async def test_a_paste_can_be_taken_back() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press(*"keep")
        app.post_message(events.Paste(" pasted\ntext"))
        await wait_until(pilot, lambda: "pasted" in prompt.text)
        await pilot.press("ctrl+z")
        assert prompt.text == "keep"
        await pilot.press("ctrl+y")
        assert prompt.text == "keep pasted\ntext"


async def test_words_are_moved_over_and_deleted() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        prompt.set_text("one two three")
        await pilot.press("ctrl+left", "ctrl+w", "X", "home", "ctrl+right", "end", "!")
        assert prompt.text == "one Xthree!"


async def test_wide_signs_take_two_cells_and_the_cursor_follows() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test(size=(40, 20)) as pilot:
        await _ready(pilot, prompt)
        start = prompt.editor.cursor_screen_offset.x
        prompt.set_text("\u65e5\u672c")
        await pilot.pause()
        assert prompt.editor.cursor_screen_offset.x == start + 4
        assert app.cursor_position.x == start + 4, "where an input method shows its candidates"
        await pilot.press("left", "x")
        assert prompt.text == "\u65e5x\u672c"
        prompt.set_text("\u65e5" * 30)  # 60 cells in 38
        await pilot.pause()
        assert prompt.editor.size.height == 2


async def test_the_box_grows_to_a_third_of_the_screen() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test(size=(80, 24)) as pilot:
        await _ready(pilot, prompt)
        heights = []
        for n_lines in (1, 2, 7, 8, 100):
            prompt.set_text("\n".join(["line"] * n_lines))
            await pilot.pause()
            heights.append(prompt.editor.size.height)
        assert heights == [1, 2, 7, 7, 7]


async def test_history_is_walked_at_the_edges_and_the_draft_comes_back() -> None:
    history = InputHistory(None)
    for text in ("first", "second\nof two lines"):
        history.add(text)
    app = Stage(prompt := Prompt(history=history))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        seen = []
        await pilot.press("o", "f", "backspace", "backspace")
        for key in ("up", "up", "up", "down", "down", "down"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(prompt.text)
        assert seen == ["second\nof two lines", "first", "first", "second\nof two lines", "", ""]
        await pilot.press(*"fir", "up")
        await pilot.pause()
        assert prompt.text == "first", "what stands in the box is searched for"
        await pilot.press("!", "up")
        await pilot.pause()
        assert prompt.text == "first!", "an entry that was changed is a draft"


async def test_arrows_move_inside_a_message_of_several_lines() -> None:
    history = InputHistory(None)
    history.add("old")
    app = Stage(prompt := Prompt(history=history))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press("a", "ctrl+j", "b", "up", "x")
        assert prompt.text == "ax\nb"


async def test_the_menu_completes_with_tab_runs_with_enter_and_closes_with_escape() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        menu = prompt.query_one(SlashMenu)
        await pilot.press(*"/fin", "tab")
        await pilot.pause()
        assert prompt.text == "/find " and not menu.is_open
        await pilot.press(*"me", "enter")
        await wait_until(pilot, lambda: app.done == [("find", "me")])
        await pilot.press(*"/dr", "enter")
        await wait_until(pilot, lambda: app.done[1:] == [("drives", "")])
        await pilot.press(*"/co")
        await pilot.pause()
        await pilot.press("down", "down", "up", "tab")
        await pilot.pause()
        assert prompt.text == "/copy"
        await pilot.press("escape")
        await pilot.pause()
        assert prompt.text == "/copy" and not menu.is_open
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.done[2:] == [("copy_reply", "")])


async def test_a_command_that_is_none_is_named_and_stays() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press(*"/coppy", "enter")
        await pilot.pause()
        assert prompt.text == "/coppy" and not app.sent and not app.done
        hint = prompt.query_one("#prompt-hint")
        assert "Did you mean /copy?" in str(hint.render()) and hint.display
        await pilot.press("backspace")
        await pilot.pause()
        assert not hint.display


async def test_what_was_not_taken_comes_back_before_what_was_written_since() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        prompt.restore("refused")
        assert prompt.text == "refused"
        prompt.set_text("since")
        prompt.restore("refused")
        assert prompt.text == "refused\n\nsince"


async def test_the_draft_is_on_disk_soon_after_the_last_key_and_found_at_the_next_start(tmp_path: Path) -> None:
    app = Stage(prompt := Prompt(draft=DraftFile(tmp_path)))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press(*"half")
        await wait_until(pilot, lambda: (tmp_path / "draft-1.txt").exists())
        assert (tmp_path / "draft-1.txt").read_text() == "half"
        await pilot.press(*" way")
    # Leaving saves what the timer had not yet.
    app = Stage(prompt := Prompt(draft=DraftFile(tmp_path)))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        assert prompt.text == "half way"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.sent == ["half way"])
        await wait_until(pilot, lambda: (tmp_path / "draft-1.txt").read_text() == "")


async def test_what_an_earlier_window_left_is_found_though_another_place_is_free(tmp_path: Path) -> None:
    (tmp_path / "draft-2.txt").write_text("left")
    app = Stage(prompt := Prompt(draft=DraftFile(tmp_path)))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        assert prompt.text == "left"


async def test_trouble_with_the_files_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = InputHistory(tmp_path / "file" / "history.jsonl")
    app = Stage(prompt := Prompt(history=history, draft=DraftFile(tmp_path / "file" / "drafts")))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press("a", "enter", "b", "enter")
        await wait_until(pilot, lambda: app.sent == ["a", "b"])
        await wait_until(pilot, lambda: len(app.problems) == 3)
        said = ("the input history cannot be read", "drafts cannot be kept", "the input history cannot be written")
        assert all(what in problem for what, problem in zip(said, app.problems, strict=True))


@pytest.mark.parametrize(
    ("result", "text", "hint"),
    [
        ("edited\r\nby hand", "edited\nby hand", ""),
        (EditorError("vi ended with code 1", hint="Try again."), "draft", "vi ended with code 1. Try again."),
    ],
)
async def test_the_editor_gets_the_draft_and_its_failure_is_said(
    monkeypatch: pytest.MonkeyPatch, result: str | EditorError, text: str, hint: str
) -> None:
    given: list[str] = []

    def edit(draft: str) -> str:
        given.append(draft)
        if isinstance(result, EditorError):
            raise result
        return result

    app = Stage(prompt := Prompt(edit=edit))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        # A driver that can be suspended; nothing is drawn, so there is nothing to take down.
        monkeypatch.setattr(HeadlessDriver, "can_suspend", True)
        monkeypatch.setattr(HeadlessDriver, "suspend_application_mode", lambda self: None)
        resumed: list[bool] = []
        monkeypatch.setattr(HeadlessDriver, "resume_application_mode", lambda self: resumed.append(True))
        prompt.set_text("draft")
        await pilot.pause()
        prompt.open_in_editor()
        await pilot.pause()
        assert given == ["draft"] and prompt.text == text and resumed == [True]
        assert hint in str(prompt.query_one("#prompt-hint").render())


async def test_a_terminal_that_cannot_be_given_away_is_said() -> None:
    app = Stage(prompt := Prompt(edit=lambda text: text))
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        prompt.open_in_editor()
        await pilot.pause()
        assert "cannot be given to an editor" in str(prompt.query_one("#prompt-hint").render())


@pytest.mark.parametrize("text", ["[bold]x[/bold]", "[@click=app.quit]x[/]", "[/]", "$primary", "[red"])
async def test_markup_in_the_box_and_its_hint_is_text(text: str) -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        prompt.set_text(text)
        await pilot.pause()
        prompt.hint(text)
        await pilot.pause()
        assert prompt.text == text and str(prompt.query_one("#prompt-hint").render()) == text


async def test_half_a_million_signs_without_a_blank_are_taken() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        app.post_message(events.Paste("x" * 500_000))
        await wait_until(pilot, lambda: len(prompt.text) == 500_000)
        await pilot.press("y", "enter")
        await wait_until(pilot, lambda: len(app.sent) == 1)
        assert app.sent[0] == "x" * 500_000 + "y"


async def test_pastes_of_more_than_the_box_holds_are_refused_in_words() -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        await pilot.press(*"keep")
        app.post_message(events.Paste("x" * (MOST_CHARS - 3)))
        hint = prompt.query_one("#prompt-hint")
        await wait_until(pilot, lambda: "not taken: the box holds 1,000,000 characters" in str(hint.render()))
        assert prompt.text == "keep", "with what was there it is one too many"


@pytest.mark.parametrize("n_more", [0, 1])
async def test_a_line_that_keys_wait_for_is_taken_as_it_is_and_said(n_more: int) -> None:
    app = Stage(prompt := Prompt())
    async with app.run_test() as pilot:
        await _ready(pilot, prompt)
        text = "short\n" + "x" * (QUICK_LINE + n_more)
        app.post_message(events.Paste(text))
        await wait_until(pilot, lambda: prompt.text == text)
        await pilot.pause()
        hint = prompt.query_one("#prompt-hint")
        assert hint.display == bool(n_more)
        if n_more:
            assert "more than 50,000 characters: keys are slow" in str(hint.render())
            await pilot.press("y")
            await wait_until(pilot, lambda: not hint.display)


def test_line_ends_of_every_kind_are_one() -> None:
    assert box_text("a\r\nb\rc\nd") == "a\nb\nc\nd"
