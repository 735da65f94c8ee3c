"""Every action of the chat, with a backend that answers on cue."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import OptionList

from app.actions import of_scope
from app.backends.base import PromptCost, TurnRequest
from app.host import Measured
from app.model_choice import ModelChoice
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.tui.app import ArtesianApp
from app.tui.screens.chat import ChatScreen
from app.tui.widgets.turn import ReplyRows
from engine.errors import PromptError
from engine.events import Event, LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn
from storage.errors import StorageError
from tests.app.tui.chat_stage import CueBackend, ask, chat, said, screen_text, send
from tests.app.tui.long_text import long_reply
from tests.app.tui.snapshot import wait_until
from tests.fakes import turn_done

pytestmark = pytest.mark.tui

CODE = "Look:\n\n```python\nx = 1\n```\n\nand\n\n```sh\nls -l\n```\n\nDone."


async def test_it_takes_typing_while_the_model_loads_and_says_how_far_it_is(tmp_path: Path) -> None:
    backend = CueBackend(said("Hello."), waits_to_open=True)
    backend.loading = [LoadProgress(done_bytes=2_000_000_000, total_bytes=8_000_000_000, elapsed_s=1.0)]
    async with chat(tmp_path, backend) as (app, pilot):
        await pilot.press(*"hi there")
        assert app.chat.prompt.text == "hi there"
        await wait_until(pilot, lambda: "2.00 GB of 8.00 GB | 2.00 GB/s | 3.0 s left" in screen_text(app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: "> hi there" in screen_text(app))
        assert not backend.turns
        backend.let_open()
        await wait_until(pilot, lambda: "Hello." in screen_text(app))
        assert [node.role for node in app.chat.conversation.transcript.path()] == ["user", "assistant"]


async def test_the_users_line_is_saved_before_the_first_token(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend([None, *said("x")])) as (app, pilot):
        await send(pilot, "keep this")
        await wait_until(pilot, lambda: app.chat.conversation.running is not None)
        file = app.chat.conversation.transcript.path_on_disk
        assert "keep this" in file.read_text()


async def test_reading_the_prompt_stands_in_the_replys_place_and_goes_with_its_first_text(tmp_path: Path) -> None:
    reading = PrefillProgress(
        done_tokens=1_536, total_tokens=4_212, read_bytes=35_800_000_000, elapsed_s=16.0, expert_hits=312,
        expert_misses=1_904,
    )  # fmt: skip
    async with chat(tmp_path, CueBackend([reading, None, *said("Now.")])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "reading prompt" in screen_text(app))
        text = screen_text(app)
        # 1,536 tokens in 16 s are 96 a second, so 2,676 take 28 s; 35.8 GB in 16 s are 2.24 GB/s.
        assert "1,536 of 4,212 tokens" in text and "96 tok/s" in text and "28 s left" in text
        assert "1,904 from drives, 35.8 GB at 2.24 GB/s" in text and "312 from memory" in text
        app_backend_cue(app)
        await wait_until(pilot, lambda: "Now." in screen_text(app))
        assert "reading prompt" not in screen_text(app)


def flat(app: ArtesianApp) -> str:
    """What stands on the screen, as one line."""
    return " ".join(screen_text(app).split())


def app_backend_cue(app: object) -> None:
    """Let the script of the app's backend go on."""
    backend = app.host._backend  # type: ignore[attr-defined]
    assert isinstance(backend, CueBackend)
    backend.cue()


async def test_a_finished_turn_has_its_figures_below_and_in_the_status_line(tmp_path: Path) -> None:
    figures = {"read_bytes": 61_000_000_000, "wait_s": 1.0, "expert_hits": 78, "expert_misses": 22}
    script = [TextDelta(text="Hi."), turn_done("stop", answer_tokens=812, **figures)]
    async with chat(tmp_path, CueBackend(script), size=(120, 24)) as (app, pilot):
        await ask(pilot, "go")
        await wait_until(pilot, lambda: "4,096" in screen_text(app))
        text = screen_text(app)
        assert "812 tokens in 2.0 s (406/s) | read 5 in 0.5 s (10/s), 0 reused | drives 61.0 GB, wait 40%" in text
        assert "drive wait 40% | hit 78% | 817 of 4,096 tokens | saved" in text


async def test_escape_stops_and_keeps_the_text_which_continue_goes_on_with(tmp_path: Path) -> None:
    first = [TokenDrawn(token=7), TextDelta(text="Half a "), None]
    backend = CueBackend(first, [TokenDrawn(token=8), TextDelta(text="sentence."), turn_done("stop")])
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Half a" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopped by you" in screen_text(app))
        transcript = app.chat.conversation.transcript
        assert transcript.head is not None and transcript.head.status == "stopped"
        assert transcript.head.text == "Half a "
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: "Half a sentence." in screen_text(app))
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        assert len(transcript.nodes()) == 2  # the same reply, longer
        last = backend.turns[1].messages[-1]
        assert last.prefix and last.ids == (7,)  # type: ignore[union-attr]


async def test_ctrl_c_stops_a_reply_and_otherwise_says_how_to_leave(tmp_path: Path) -> None:
    first = [TokenDrawn(token=7), TextDelta(text="Half a "), None]
    async with chat(tmp_path, CueBackend(first)) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Half a" in screen_text(app))
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: "stopped by you" in screen_text(app))
        for _ in range(3):
            await pilot.press("ctrl+c")
        await pilot.pause()
        (notice,) = app._notifications  # one, however often it is pressed
        assert app.is_running and "ctrl+q quits" in notice.message


async def test_stop_while_the_prompt_is_read_leaves_the_conversation_usable(tmp_path: Path) -> None:
    reading = PrefillProgress(done_tokens=1, total_tokens=100, read_bytes=0, elapsed_s=1.0)
    async with chat(tmp_path, CueBackend([reading, None], said("Better."))) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "reading prompt" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        await ask(pilot, "again")
        await wait_until(pilot, lambda: "Better." in screen_text(app))


async def test_stop_while_loading_ends_the_loading_and_the_next_message_loads_again(tmp_path: Path) -> None:
    backend = CueBackend(said("Here."), waits_to_open=True)
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: app.chat.conversation.running is not None)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        await wait_until(pilot, lambda: "stopped by you" in screen_text(app))
        backend.let_open()
        await ask(pilot, "again")
        await wait_until(pilot, lambda: backend.opened and "Here." in screen_text(app))


async def test_regenerate_makes_a_sibling_and_the_brackets_walk(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("First reply."), said("Second reply."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: "Second reply." in screen_text(app))
        await wait_until(pilot, lambda: "reply 2 of 2" in screen_text(app))
        assert "First reply." not in screen_text(app)
        await pilot.press("ctrl+up", "left_square_bracket")
        await wait_until(pilot, lambda: "First reply." in screen_text(app))
        await wait_until(pilot, lambda: "reply 1 of 2" in screen_text(app))
        await pilot.press("ctrl+up", "right_square_bracket")
        await wait_until(pilot, lambda: "Second reply." in screen_text(app))


@pytest.mark.parametrize("keys", [("ctrl+r",), (*"/regenerate", "enter")], ids=["key", "command"])
async def test_a_dear_regeneration_shows_its_price_and_wants_the_same_again(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    backend = CueBackend(said("First."), said("Second."))
    async with chat(tmp_path, backend) as (app, pilot):
        await ask(pilot, "go")
        backend.cost = PromptCost(prompt_tokens=4_210, reused_tokens=10, context_tokens=65_536, expected_s=40.0)
        await pilot.press(*keys)
        await wait_until(pilot, lambda: "4,200 tokens to read, 10 kept | about 40 s" in screen_text(app))
        assert len(backend.turns) == 1
        await pilot.press(*keys)
        await wait_until(pilot, lambda: "Second." in screen_text(app))


async def test_edit_makes_a_branch_with_its_price_and_the_old_one_stays(tmp_path: Path) -> None:
    backend = CueBackend(said("To one."), said("To two."))
    async with chat(tmp_path, backend) as (app, pilot):
        await ask(pilot, "question one")
        await pilot.press("ctrl+up", "ctrl+up", "e")
        await wait_until(pilot, lambda: app.chat.prompt.text == "question one")
        await wait_until(pilot, lambda: "edited: 6 tokens to read, 4 kept" in screen_text(app))
        await ask(pilot, "question two")
        await wait_until(pilot, lambda: "To two." in screen_text(app) and "2 of 2" in screen_text(app))
        transcript = app.chat.conversation.transcript
        assert {node.text for node in transcript.children(None)} == {"question one", "question two"}


async def test_escape_leaves_an_edit(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("One."), said("Two."))) as (app, pilot):
        await ask(pilot, "go")
        app.run_action_id("edit")
        await wait_until(pilot, lambda: app.chat.prompt.text == "go")
        await pilot.press("escape")
        assert app.chat.prompt.text == ""
        await ask(pilot, "more")
        assert len(app.chat.conversation.transcript.path()) == 4


async def test_the_price_is_shown_before_sending(tmp_path: Path) -> None:
    backend = CueBackend()
    backend.cost = PromptCost(prompt_tokens=5_871, reused_tokens=5_657, context_tokens=65_536, expected_s=4.0)
    async with chat(tmp_path, backend) as (app, pilot):
        await pilot.press(*"hello")
        await wait_until(pilot, lambda: "214 tokens to read, 5,657 kept | about 4.0 s" in screen_text(app))
        await wait_until(pilot, lambda: "warm" in screen_text(app))
        assert backend.measured[-1].messages[-1].parts == ("hello",)  # type: ignore[union-attr]
        app.chat.prompt.set_text("")
        await wait_until(pilot, lambda: "tokens to read" not in screen_text(app))


async def test_a_draft_that_cannot_be_run_says_so_and_stays_in_the_box(tmp_path: Path) -> None:
    backend = CueBackend()
    backend.failure_to_measure = PromptError("the prompt has 70,000 tokens, the context 65,536", hint="Shorten it.")
    async with chat(tmp_path, backend) as (app, pilot):
        await pilot.press(*"long")
        await wait_until(pilot, lambda: "70,000 tokens" in screen_text(app) and "Shorten it." in screen_text(app))
        await pilot.press("enter")
        await pilot.pause()
        assert app.chat.prompt.text == "long" and not backend.turns


async def test_a_failed_turn_is_a_block_in_the_replys_place_and_what_was_written_stays(tmp_path: Path) -> None:
    failure = StorageError("/models/x: read error at 4,096 (errno 5)", hint="Check the drive.")
    script = [TextDelta(text="So far."), failure]
    async with chat(tmp_path, CueBackend(script, said("Again."))) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, "go")
        text = screen_text(app)
        assert "So far." in text and "! /models/x: read error at 4,096" in text and "Check the drive." in text
        head = app.chat.conversation.transcript.head
        assert head is not None and head.status == "failed"
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: "Again." in screen_text(app))


async def test_a_line_end_in_a_folders_name_begins_no_line_of_an_error(tmp_path: Path) -> None:
    script = [StorageError("/models/a\n! b: read error", hint="Look into /models/a\n! b.")]
    async with chat(tmp_path, CueBackend(script)) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, "go")
        text = screen_text(app)
        assert "! /models/a\u240a! b: read error" in text and "Look into /models/a\u240a! b." in text


async def test_a_prompt_that_is_refused_is_back_in_the_box_to_be_changed(tmp_path: Path) -> None:
    script = [PromptError("the prompt has 70,000 tokens", hint="Shorten it.")]
    async with chat(tmp_path, CueBackend(script)) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, "too long")
        await wait_until(pilot, lambda: app.chat.prompt.text == "too long")
        await wait_until(pilot, lambda: "the prompt has 70,000 tokens" in screen_text(app))


async def test_drive_trouble_is_shown_once_and_kept_with_the_reply(tmp_path: Path) -> None:
    trouble = Notice(text="nvme1 failed; its copies on nvme0 are read")
    async with chat(tmp_path, CueBackend([trouble, *said("Fine.")])) as (app, pilot):
        await ask(pilot, "go")
        assert screen_text(app).count("nvme1 failed") == 1
        transcript_id = app.chat.conversation.transcript.id
    async with chat(tmp_path, CueBackend(), resume=transcript_id) as (app, pilot):
        await wait_until(pilot, lambda: "! nvme1 failed" in screen_text(app))


async def test_a_reply_that_repeats_itself_is_noticed_while_it_runs(tmp_path: Path) -> None:
    loop = [TextDelta(text="the same again and again, ") for _ in range(40)]
    async with chat(tmp_path, CueBackend([*loop, None])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "repeats itself. Esc stops it" in screen_text(app))


async def test_thinking_is_folded_and_t_opens_it(tmp_path: Path) -> None:
    script = [ThinkingDelta(text="Hmm, slots."), TextDelta(text="Yes."), turn_done("stop", thinking_tokens=4)]
    async with chat(tmp_path, CueBackend(script)) as (app, pilot):
        await ask(pilot, "go")
        assert "+ thought, 4 tokens" in screen_text(app) and "Hmm, slots." not in screen_text(app)
        await pilot.press("ctrl+up", "t")
        assert "- thought, 4 tokens" in screen_text(app) and "Hmm, slots." in screen_text(app)
        await pilot.press("t")
        assert "Hmm, slots." not in screen_text(app)


async def test_copying_the_reply_the_code_the_details_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMUX", "SSH_CONNECTION", "SSH_TTY", "VTE_VERSION", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    async with chat(tmp_path, CueBackend(said(CODE))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+up", "y")
        assert app.clipboard == CODE
        app.chat.view.leave_cursor()
        app.run_action_id("copy_code")
        await wait_until(pilot, lambda: app.clipboard == "ls -l\n")
        app.run_action_id("copy_code", "1")
        await wait_until(pilot, lambda: app.clipboard == "x = 1\n")
        await pilot.press("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+up", "c")  # up to the first fence
        assert app.clipboard == "x = 1\n"
        app.run_action_id("copy_details")
        assert CODE in app.clipboard and "> go" in app.clipboard and "seed " in app.clipboard
        app.run_action_id("copy_chat")
        assert app.clipboard == f"> go\n\n{CODE}"
        await wait_until(pilot, lambda: "Conversation sent to" in screen_text(app))


async def test_a_stopped_reply_can_be_copied(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend([TextDelta(text="Part"), None])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Part" in screen_text(app))
        app.run_action_id("copy_reply")
        assert app.clipboard == "Part"


async def test_find_marks_counts_and_walks(tmp_path: Path) -> None:
    reply = "A slot here.\n\n" + "\n\n".join(["filler"] * 30) + "\n\nAnother SLOT there."
    async with chat(tmp_path, CueBackend(said(reply))) as (app, pilot):
        await ask(pilot, "what is a slot?")
        await pilot.press("ctrl+f", *"slot")
        await wait_until(pilot, lambda: "3 of 3" in screen_text(app))
        await wait_until(pilot, lambda: "Another SLOT there." in screen_text(app))
        await pilot.press("shift+enter")
        await wait_until(pilot, lambda: "2 of 3" in screen_text(app) and "A slot here." in screen_text(app))
        await pilot.press("enter", "enter")  # around the end
        await wait_until(pilot, lambda: "1 of 3" in screen_text(app))
        await pilot.press("down", "up", "up")  # where Shift+Enter cannot be told from Enter
        await wait_until(pilot, lambda: "3 of 3" in screen_text(app))
        await pilot.press("ctrl+up", "N", "N", "n")
        await wait_until(pilot, lambda: "2 of 3" in screen_text(app))
        await pilot.press("ctrl+f", "escape")
        await wait_until(pilot, lambda: "2 of 3" not in screen_text(app))
        assert app.focused is app.chat.prompt.editor


async def test_words_are_found_across_the_end_of_a_row(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("word " * 14 + "expert slot"))) as (app, pilot):
        await ask(pilot, "go")
        app.run_action_id("find", "expert slot")
        await wait_until(pilot, lambda: "1 of 1" in screen_text(app))


async def test_the_view_follows_the_end_only_when_it_is_there(tmp_path: Path) -> None:
    lines = [TextDelta(text=f"line {number}\n\n") for number in range(60)]
    script = [*lines, None, TextDelta(text="the end"), None, turn_done("stop")]
    backend = CueBackend(script)
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "line 59" in screen_text(app))
        app.chat.view.scroll_to(y=20, animate=False)
        await pilot.pause()
        there = screen_text(app)
        backend.cue()
        await wait_until(pilot, lambda: "the end" in app.chat.view.messages[-1].answer.source)  # type: ignore[union-attr]
        await pilot.pause()
        view_rows = app.chat.view.size.height
        assert screen_text(app).splitlines()[1:view_rows] == there.splitlines()[1:view_rows]
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert app.chat.view.follows is False
        app.run_action_id("bottom")
        await wait_until(pilot, lambda: "the end" in screen_text(app))


async def test_any_size_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    random_ = random.Random(3)
    text = long_reply(250, seed=9)
    script: list[Event | None] = []
    for begin in range(0, len(text), 50):
        script += [TextDelta(text=text[begin : begin + 50]), None]
    backend = CueBackend([*script, turn_done("stop")])
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        for _ in range(len(script) // 2):
            backend.cue()
            await pilot.resize_terminal(random_.randrange(1, 220), random_.randrange(1, 70))
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        rows = app.chat.view.messages[-1]
        assert isinstance(rows, ReplyRows) and rows.answer.source == text
        await wait_until(pilot, lambda: app.chat.view.text_cells == rows.width)
        await wait_until(pilot, lambda: "3 tokens in 2.0 s" in screen_text(app))


async def test_a_letter_without_a_meaning_in_the_conversation_goes_to_the_box(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("Hello."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+up", "W", "h", "y")
        await wait_until(pilot, lambda: app.chat.prompt.text == "Why")


async def test_keys_act_in_the_order_in_which_they_come_however_fast(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        for key, character in (("a", "a"), ("ctrl+u", None), ("b", "b"), ("c", "c"), ("backspace", None), ("d", "d")):
            app.post_message(Key(key, character))
        await wait_until(pilot, lambda: app.chat.prompt.text.endswith("d"))
        assert app.chat.prompt.text == "bd"


async def test_raw_shows_the_text_as_it_was_written(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("Some **bold** text."))) as (app, pilot):
        await ask(pilot, "go")
        await wait_until(pilot, lambda: "Some bold text." in screen_text(app))
        await pilot.press("ctrl+up", "r")
        await wait_until(pilot, lambda: "Some **bold** text." in screen_text(app))
        await pilot.press("r")
        await wait_until(pilot, lambda: "Some bold text." in screen_text(app))


async def test_think_sets_the_next_replies(tmp_path: Path) -> None:
    backend = CueBackend(said("a"), said("b"))
    async with chat(tmp_path, backend) as (app, pilot):
        app.run_action_id("think", "high")
        await ask(pilot, "go")
        assert backend.turns[0].effort == "high"
        app.run_action_id("think", "lots")
        await wait_until(pilot, lambda: "Thinking can be off, low, high" in screen_text(app))
        app.run_action_id("think", "off")
        await ask(pilot, "go")
        assert backend.turns[1].effort is None


async def test_a_system_message_begins_a_branch(tmp_path: Path) -> None:
    backend = CueBackend(said("a"), said("b"))
    async with chat(tmp_path, backend) as (app, pilot):
        await ask(pilot, "before")
        app.run_action_id("system", "Be brief.")
        await ask(pilot, "after")
        assert [type(message).__name__ for message in backend.turns[1].messages] == ["SystemMessage", "UserMessage"]
        assert "Be brief." in screen_text(app) and "before" not in screen_text(app).split("Be brief.")[1]


async def test_title_and_new_chat_and_going_back(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("Reply one."))) as (app, pilot):
        await ask(pilot, "first")
        first = app.chat.conversation.transcript.id
        app.run_action_id("title", "About slots")
        await wait_until(pilot, lambda: screen_text(app).startswith(" About slots"))
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: "Reply one." not in screen_text(app) and "all actions" in screen_text(app))
        app.open_transcript(first)
        await wait_until(pilot, lambda: "Reply one." in screen_text(app))
    assert TranscriptStore(tmp_path / "transcripts").open(first).title == "About slots"


async def test_leaving_a_conversation_stops_its_turn_and_keeps_it(tmp_path: Path) -> None:
    backend = CueBackend([TextDelta(text="Left behind"), None], said("New one."))
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Left behind" in screen_text(app))
        old = app.chat.conversation.transcript
        await pilot.press("ctrl+n")
        await ask(pilot, "second")
        assert "New one." in screen_text(app) and "Left behind" not in screen_text(app)
        assert old.head is not None and old.head.status == "stopped" and old.head.text == "Left behind"


async def test_sending_while_a_reply_is_written_gives_the_text_back(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend([TextDelta(text="Busy"), None])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Busy" in screen_text(app))
        await send(pilot, "more")
        await wait_until(pilot, lambda: app.chat.prompt.text == "more" and "Esc stops it" in screen_text(app))


async def test_a_second_window_can_only_read_and_follows(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("One."), said("Two."))) as (app, pilot):
        await ask(pilot, "go")
        transcript_id = app.chat.conversation.transcript.id
        async with chat(tmp_path, CueBackend(), resume=transcript_id) as (other, other_pilot):
            # One process holds the file here, so the lock is that of another only where flock is per open file.
            assert "One." in screen_text(other)
            await send(other_pilot, "not mine")
            await wait_until(other_pilot, lambda: "here it can only be read" in flat(other))
            assert other.chat.prompt.text == "not mine"
            await ask(pilot, "more")
            other.chat.check_saved()
            await wait_until(other_pilot, lambda: "Two." in screen_text(other))


async def test_a_folder_that_cannot_be_written_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    # A file in its place: neither root nor anybody else can make a conversation in it.
    folder = tmp_path / "transcripts"
    folder.write_text("")
    async with chat(tmp_path, CueBackend(said("Still here."))) as (app, pilot):
        await ask(pilot, "go")
        app.chat.check_saved()
        await wait_until(pilot, lambda: "Still here." in screen_text(app) and "not saved" in screen_text(app))
        folder.unlink()  # and when it can be, it is
        app.chat.check_saved()
        await wait_until(pilot, lambda: "not saved" not in screen_text(app))
        assert len(list(folder.glob("*.jsonl"))) == 1


async def test_what_cannot_be_saved_is_left_after_a_warning(tmp_path: Path) -> None:
    (tmp_path / "transcripts").write_text("")
    async with chat(tmp_path, CueBackend(said("One."), [TextDelta(text="Two"), None])) as (app, pilot):
        await ask(pilot, "go")
        first = app.chat.conversation.transcript
        await pilot.press("ctrl+n")
        (notice,) = app._notifications
        assert "/export FILE keeps it elsewhere" in notice.message and str(tmp_path) in notice.message
        assert app.chat.conversation.transcript is first
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat.conversation.transcript is not first)
        assert len(app._notifications) == 1, "it is said once"
        await send(pilot, "on")  # a reply that grows can be left; its end tells
        await wait_until(pilot, lambda: "Two" in screen_text(app))
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: any(n.message.startswith("on: the newest part") for n in app._notifications))


async def test_slash_commands_and_unknown_ones(tmp_path: Path) -> None:
    backend = CueBackend(said("a"))
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "/think low")
        await wait_until(pilot, lambda: app.chat.conversation.session.effort == "low")
        await send(pilot, "/think")
        await wait_until(pilot, lambda: "Thinking is low" in screen_text(app))
        await wait_until(pilot, lambda: app.chat.prompt.text == "")
        await pilot.pause()  # the box being emptied is no reason to take it away
        await wait_until(pilot, lambda: "Thinking is low" in screen_text(app))
        await send(pilot, "/nonsense")
        await wait_until(pilot, lambda: "There is no command /nonsense" in screen_text(app))
        assert not backend.turns


async def test_export_writes_a_new_file_and_no_other(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend(said("Exported."))) as (app, pilot):
        await ask(pilot, "go")
        file = tmp_path / "out.md"
        app.run_action_id("export", str(file))
        await wait_until(pilot, lambda: "Written to" in screen_text(app))
        assert "Exported." in file.read_text()
        app.run_action_id("export", str(file))
        await wait_until(pilot, lambda: "File exists" in flat(app))
        app.run_action_id("export", "out.txt")
        await wait_until(pilot, lambda: ".md, .json or .html" in screen_text(app))


async def test_every_action_of_the_chat_has_a_method() -> None:
    missing = [
        action.id
        for action in (*of_scope("chat"), *of_scope("turn"))
        if action.id not in ("send", "new_line") and not hasattr(ChatScreen, f"action_{action.id}")
    ]
    assert missing == []


async def test_quitting_in_the_middle_of_a_reply_keeps_it(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend([TextDelta(text="Kept"), None])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "Kept" in screen_text(app))
        transcript_id = app.chat.conversation.transcript.id
        await pilot.press("ctrl+q")
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("engine", "measure") and thread.is_alive()
    ]
    head = TranscriptStore(tmp_path / "transcripts").open(transcript_id).head
    assert head is not None and head.text == "Kept" and head.status == "stopped"


async def test_a_failure_of_the_screen_names_the_log_and_keeps_the_conversation_off_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with chat(tmp_path, CueBackend(said("A secret."))) as (app, pilot):
            await ask(pilot, "go")
            app.call_later(lambda: 1 // 0)
            await wait_until(pilot, lambda: app.return_code == 1)
    err = "".join(capsys.readouterr().err.split())
    assert "unexpectedfailure:ZeroDivisionError" in err and "Thetracebackisin" in err and "secret" not in err


async def test_a_failure_that_looks_like_markup_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("no such tag [/x]")

    with pytest.raises(ValueError, match="no such tag"):
        async with chat(tmp_path, CueBackend()) as (app, pilot):
            app.call_later(fail)
            await wait_until(pilot, lambda: app.return_code == 1)
    assert "unexpectedfailure:ValueError:nosuchtag[/x]" in "".join(capsys.readouterr().err.split())


async def test_quitting_warns_once_of_what_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "transcripts").write_text("")
    async with chat(tmp_path, CueBackend(said("One."))) as (app, pilot):
        await ask(pilot, "go")
        await pilot.press("ctrl+q")
        assert app.is_running and "the same again leaves it" in next(iter(app._notifications)).message
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: app.return_code == 0)


@pytest.mark.parametrize("size", [(29, 20), (80, 7), (1, 1)])
async def test_a_window_that_is_too_small_says_so(tmp_path: Path, size: tuple[int, int]) -> None:
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        await pilot.resize_terminal(*size)
        await wait_until(pilot, lambda: app.chat.has_class("-too-small"))
        assert size == (1, 1) or "too small" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: "all actions" in screen_text(app))
        await wait_until(pilot, lambda: app.focused is app.chat.prompt.editor)


async def test_a_price_that_comes_in_another_conversation_answers_nothing_there(tmp_path: Path) -> None:
    backend = CueBackend(said("first"))
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "one")
        await wait_until(pilot, lambda: app.chat.conversation.running is None and len(backend.turns) == 1)
        asked: list[int] = []
        app.host.measure = lambda ticket, request: asked.append(ticket)  # type: ignore[method-assign]
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(asked) == 1)
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat.conversation.transcript.head is None)
        app.host.mailbox.put(Measured(ticket=asked[0], cost=backend.cost))
        await send(pilot, "two")
        await wait_until(pilot, lambda: app.chat.conversation.running is None and len(backend.turns) == 2)
        assert [node.text for node in app.chat.conversation.transcript.path()] == ["two", "yes"]


async def test_another_model_brings_its_own_defaults_and_forgets_what_the_old_one_refused(tmp_path: Path) -> None:
    backend = CueBackend()
    backend.failure_to_measure = PromptError("the prompt is too long for the demo")
    async with chat(tmp_path, backend) as (app, pilot):
        app._session_of = lambda one, model: ChatSession(one, effort=None if model.is_demo else "high")
        assert app.chat.conversation.session.effort is None
        await pilot.press(*"hello")
        await wait_until(pilot, lambda: "too long for the demo" in screen_text(app))
        backend.failure_to_measure = None
        backend.let_open()
        app.reopen(ModelChoice(folder=tmp_path, origin="settings", is_demo=False))
        assert app.chat.conversation.session.effort == "high"
        await pilot.press("enter")
        await wait_until(pilot, lambda: [turn.effort for turn in backend.turns] == ["high"])
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        app.chat.action_think("low")
        backend.let_open()
        app.reopen(app.choice)
        assert app.chat.conversation.session.effort == "low"  # the user said so


async def test_a_conversation_that_is_still_being_stopped_is_not_opened_a_second_time(tmp_path: Path) -> None:
    stops = threading.Event()

    class Slow(CueBackend):
        def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
            yield from super().generate(request, lambda: should_stop() and stops.is_set())

    backend = Slow([TextDelta(text="a part"), None, *said("the rest")])
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "one")
        await wait_until(pilot, lambda: "a part" in screen_text(app))
        first = app.chat.conversation.transcript.id
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat.conversation.transcript.id != first)
        app.open_transcript(first)
        assert app.chat.conversation.transcript.id != first
        stops.set()
        backend.cue()
        await wait_until(pilot, lambda: not app.chat._left)
        app.open_transcript(first)
        assert app.chat.conversation.transcript.id == first and not app.chat.conversation.transcript.read_only


async def test_a_long_reply_that_is_gone_on_with_while_it_is_put_together_goes_on_growing(tmp_path: Path) -> None:
    backend = CueBackend(
        [TextDelta(text="word " * 2_000), turn_done("length")], [None, TextDelta(text="more"), turn_done()]
    )
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "one")
        await wait_until(pilot, lambda: len(backend.turns) == 1 and app.chat.conversation.running is None)
        app.chat.action_continue_reply()
        await wait_until(pilot, lambda: len(backend.turns) == 2)
        running = app.chat.conversation.running
        assert running is not None and running.rows.is_long
        await app.chat._settle(running.rows)
        backend.cue()
        await wait_until(pilot, lambda: app.chat.conversation.running is None)
        assert app.chat.conversation.transcript.path()[-1].text.endswith("word more")


async def test_a_reply_that_grows_in_another_window_is_followed_here(tmp_path: Path) -> None:
    backend = CueBackend([TextDelta(text="The first "), None, TextDelta(text="and the second"), turn_done()])
    async with chat(tmp_path, backend) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: "The first" in screen_text(app))
        async with chat(tmp_path, CueBackend(), resume=app.chat.conversation.transcript.id) as (other, other_pilot):

            def looked(text: str) -> bool:
                other.chat.check_saved()
                return text in screen_text(other)

            await wait_until(other_pilot, lambda: looked("being written in another window"))
            backend.cue()
            await wait_until(other_pilot, lambda: looked("The first and the second"))
            await wait_until(other_pilot, lambda: not looked("being written in another window"))


async def test_a_conversation_that_could_only_be_read_is_chosen_again_once_it_is_free(tmp_path: Path) -> None:
    with TranscriptStore(tmp_path / "transcripts").create() as held:
        ChatSession(held).add_user("first")
        async with chat(tmp_path, CueBackend(), resume=held.id) as (app, pilot):
            assert app.chat.conversation.transcript.read_only
            held.close()
            await pilot.press("ctrl+t")
            await wait_until(pilot, lambda: any(found.option_count for found in app.screen.query(OptionList)))
            await pilot.press("enter")
            await wait_until(pilot, lambda: app.screen is app.chat)
            assert not app.chat.conversation.transcript.read_only
            await ask(pilot, "more")
            assert [node.text for node in app.chat.conversation.transcript.path()] == ["first", "more", "yes"]


async def test_an_empty_chat_says_whose_it_is_when_another_model_is_chosen(tmp_path: Path) -> None:
    backend = CueBackend()
    async with chat(tmp_path, backend) as (app, pilot):
        assert "This is the bundled demo" in screen_text(app)
        backend.let_open()
        app.reopen(ModelChoice(folder=Path("/models/flash"), origin="settings", is_demo=False))
        await wait_until(pilot, lambda: "/models/flash" in screen_text(app))
        assert "bundled demo" not in screen_text(app)


async def test_a_title_of_wide_signs_leaves_room_for_the_models_name(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        app.run_action_id("title", "\u65e5" * 60)
        await wait_until(pilot, lambda: screen_text(app).startswith(" \u65e5"))
        assert screen_text(app).splitlines()[0].endswith("...  demo")
