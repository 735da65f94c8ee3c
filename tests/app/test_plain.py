import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import paths
from app.actions import ACTIONS
from app.backends.base import TurnRequest
from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import choose_model
from app.plain import PlainChat, SpacedProgress, wants_plain
from app.plain_commands import NOT_HERE, Commands
from app.settings import Settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from engine.errors import EngineError, PromptError
from engine.events import Event, Notice, PrefillProgress, TextDelta, ThinkingDelta
from engine.prompt import UserMessage
from engine.sampler_settings import SamplerSettings
from tests.app.conftest import FillingStream
from tests.fakes import Clock, ScriptedBackend, turn_done

Run = Callable[..., ExitCode]


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend([TextDelta(text="Forty\x1b[31m-two."), turn_done()])


@pytest.fixture
def chat(backend: ScriptedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs line mode on given lines, over a pipe."""

    def run(*lines: str | bytes, use: ScriptedBackend | None = None) -> ExitCode:
        raw = b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        settings = Settings()
        return PlainChat(
            backend_factory=lambda choice: use or backend,
            choice=choose_model(None, settings, environ={}),
            store=TranscriptStore(tmp_path / "transcripts"),
            settings=settings,
            session_of=lambda transcript, _: ChatSession(transcript, sampling=SamplerSettings(seed=7)),
            out_folder=tmp_path / "out",
        ).run()

    return run


def _plain() -> PlainChat:
    settings = Settings()
    return PlainChat(
        backend_factory=lambda choice: ScriptedBackend(),
        choice=choose_model(None, settings, environ={}),
        store=TranscriptStore(Path("/nowhere")),
        settings=settings,
        session_of=lambda transcript, _: ChatSession(transcript),
    )


def test_replies_go_to_stdout_and_all_else_to_stderr(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("what is six by seven?", "", "and again?") is ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == "Forty␛[31m-two.\n" * 2
    assert "3 tokens in 2.0 s" in err
    assert "\x1b" not in out + err and "\r" not in out + err


def test_each_turn_carries_the_conversation(chat: Run, backend: ScriptedBackend) -> None:
    seen: list[int] = []
    generate = backend.generate

    def watched(request: object, stop: Callable[[], bool]) -> Iterator[Event]:
        seen.append(len(request.messages))  # type: ignore[attr-defined]
        return generate(request, stop)  # type: ignore[arg-type]

    backend.generate = watched  # type: ignore[method-assign,assignment]
    chat("one", "/regenerate", "two")
    # Alone; alone again; behind the question and the second answer.
    assert seen == [1, 1, 3]


def test_the_conversation_is_saved_and_can_be_resumed(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat("remember the word limestone")
    (info,) = TranscriptStore(tmp_path / "transcripts").list()
    assert (info.title, info.n_messages) == ("remember the word limestone", 2)
    capsys.readouterr()
    assert chat("/transcripts limestone", f"/resume {info.id[:4]}", "/find LIMESTONE") is ExitCode.DONE
    err = capsys.readouterr().err
    assert info.id in err and "1, You: remember the word limestone" in err


def test_thinking_is_announced_and_shown_on_request(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    thinks = ScriptedBackend([ThinkingDelta(text="hm hm"), TextDelta(text="yes"), turn_done()])
    chat("a", use=thinks)
    out, err = capsys.readouterr()
    assert (out, "hm hm" in err, "/thinking shows it" in err) == ("yes\n", False, True)
    chat("/thinking", "a", use=thinks)
    out, err = capsys.readouterr()
    assert (out, "hm hm" in err) == ("yes\n", True)


def test_a_long_wait_says_how_far_it_is_every_ten_seconds() -> None:
    said: list[str] = []
    clock = Clock()
    progress = SpacedProgress(said.append, clock)
    for elapsed_s in (0.5, 1.0, 2.0, 10.9, 11.0):
        clock.now_s = elapsed_s
        progress.show(PrefillProgress(done_tokens=8, total_tokens=40, read_bytes=0, elapsed_s=elapsed_s))
    # At 1 s, and at 11 s, ten later.
    assert said == [
        "reading prompt 8 of 40 tokens | 8.0/s | 4.0 s left",
        "reading prompt 8 of 40 tokens | 0.7/s | 44 s left",
    ]


def test_a_notice_is_said_harmlessly(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    chat("a", use=ScriptedBackend([Notice(text="drive\x07 gone"), turn_done()]))
    assert "artesian: drive␇ gone\n" in capsys.readouterr().err


def test_a_turn_that_fails_is_said_and_the_next_line_is_answered(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    fails = ScriptedBackend([TextDelta(text="so far")], failure=EngineError("the head is gone", hint="Run audit."))
    assert chat("a", "b", use=fails) is ExitCode.FAILED
    out, err = capsys.readouterr()
    assert out == "so far\nso far\n"
    assert err.count("artesian: the head is gone\n  Run audit.") == 2


def test_a_line_that_is_too_long_is_replaced_by_the_next(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    class Small(ScriptedBackend):
        def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
            self.requests.append(request)
            if "a novel" in str(request.messages):
                raise PromptError("the prompt has 5,000 tokens, the context 4,096")
            return super().generate(request, should_stop)

    small = Small([TextDelta(text="yes"), turn_done()])
    chat("one", "a novel", "two", use=small)
    out, err = capsys.readouterr()
    assert out == "yes\nyes\n" and "The next message replaces it." in err
    texts = [message.parts for message in small.requests[-1].messages if isinstance(message, UserMessage)]
    assert texts == [("one",), ("two",)]


def test_ctrl_c_stops_the_reply_and_keeps_it(chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The signal is sent by the engine thread after the first event, and the script waits until it was taken.
    backend = ScriptedBackend()

    def generate(request: object, should_stop: Callable[[], bool]) -> Iterator[Event]:
        yield TextDelta(text="kept")
        os.kill(os.getpid(), signal.SIGINT)
        while not should_stop():
            pass
        yield turn_done("stopped")

    backend.generate = generate  # type: ignore[method-assign,assignment]
    assert chat("a", use=backend) is ExitCode.STOPPED
    out, err = capsys.readouterr()
    assert out == "kept\n" and "stopped by you" in err
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        assert [(n.text, n.status) for n in transcript.path()] == [("a", "complete"), ("kept", "stopped")]


def test_a_stopped_reply_goes_on_under_itself(chat: Run, tmp_path: Path) -> None:
    stopped = ScriptedBackend([TextDelta(text="more "), turn_done("stopped")])
    chat("a", "/continue", use=stopped)
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        assert [node.text for node in transcript.path()] == ["a", "more more "]


def test_a_reply_that_never_began_is_begun_by_going_on(chat: Run, tmp_path: Path) -> None:
    never = ScriptedBackend([turn_done("stopped", answer_tokens=0)])
    assert chat("a", "/continue", use=never) is ExitCode.STOPPED
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        (question,) = transcript.children(None)
        assert [node.role for node in transcript.children(question)] == ["assistant", "assistant"]


def test_edit_makes_a_branch_and_branches_can_be_walked(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat("first", "/edit", "second", "/previous", "/next") is ExitCode.DONE
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        assert [node.text for node in transcript.children(None)] == ["first", "second"]
        assert transcript.path()[0].text == "second"
    assert "branch 1 of 2" in capsys.readouterr().err


def test_a_system_message_begins_a_new_branch_of_the_same_conversation(chat: Run, tmp_path: Path) -> None:
    assert chat("first", "/system Be brief.", "second") is ExitCode.DONE
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        assert [node.text for node in transcript.children(None)] == ["first", "Be brief."]
        assert [(node.role, node.text) for node in transcript.path()[:2]] == [
            ("system", "Be brief."), ("user", "second"),
        ]  # fmt: skip


def test_code_and_details_are_written_to_a_private_file(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = ScriptedBackend([TextDelta(text="Run\n```sh\nls\n```\nthen\n```\npwd\n```\n"), turn_done()])
    out = tmp_path / "out" / "clipboard.txt"
    chat("a", "/code", use=code)
    assert out.read_text() == "pwd\n" and out.stat().st_mode & 0o777 == 0o600
    chat("a", "/code 1", use=code)
    assert out.read_text() == "ls\n"
    assert chat("a", "/code 3", use=code) is ExitCode.USAGE
    assert "/code takes a number from 1 to 2, not '3'" in capsys.readouterr().err
    assert chat("a", "/code ²", use=code) is ExitCode.USAGE
    assert "/code takes a number from 1 to 2, not '²'" in capsys.readouterr().err
    chat("a question", "/details", use=code)
    text = out.read_text()
    assert text.startswith("> a question\n\nRun\n```sh") and "seed 7" in text and "3 tokens in 2.0 s" in text


def test_a_reply_that_cannot_be_shown_is_saved_and_ends_the_chat(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["For", "ty", "-", "two", "."]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", FillingStream(0))
        code = chat("six by seven?", "again?", use=ScriptedBackend([*(TextDelta(text=w) for w in words), turn_done()]))
    assert code is ExitCode.FAILED
    err = capsys.readouterr().err
    assert err.endswith(f"artesian: stdout: {os.strerror(errno.ENOSPC)}, so the answer cannot be written\n")
    store = TranscriptStore(tmp_path / "transcripts")
    with store.open(store.list()[0].id) as transcript:
        question, reply = transcript.path()
    assert question.text == "six by seven?" and reply.text.startswith("For") and reply.status in ("complete", "stopped")


def test_export_writes_a_new_file_in_the_form_of_its_name(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.html"
    assert chat("a question", f"/export {path}") is ExitCode.DONE
    assert "a question" in path.read_text() and path.read_text().startswith("<!DOCTYPE html>")
    assert chat("a question", f"/export {path}") is ExitCode.FAILED, "nothing is overwritten"
    assert chat("a question", f"/export {tmp_path / 'chat.doc'}") is ExitCode.USAGE
    assert "ends in .md, .json or .html" in capsys.readouterr().err


def test_what_could_not_be_saved_is_said_when_it_is_left(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "transcripts").write_text("")  # no folder, so nothing can be made in it
    assert chat("one", "/new") is ExitCode.FAILED
    err = capsys.readouterr().err
    assert err.count("artesian: the newest part of the conversation could not be saved") == 1  # the new one is empty
    assert chat("one") is ExitCode.FAILED
    assert "artesian: the newest part of the conversation could not be saved" in capsys.readouterr().err


def test_an_unknown_command_is_named_and_not_sent(
    chat: Run, backend: ScriptedBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat("/regenrate", "/", "/copy me") is ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == "" and "Did you mean /regenerate?" in err
    assert not (tmp_path / "transcripts").exists()


def test_a_path_goes_to_the_model(chat: Run, tmp_path: Path) -> None:
    chat("/usr/bin/env is what?", " /help as text", "//x")
    (info,) = (store := TranscriptStore(tmp_path / "transcripts")).list()
    with store.open(info.id) as transcript:
        sent = [node.text for node in transcript.path() if node.role == "user"]
    assert sent == ["/usr/bin/env is what?", " /help as text", "//x"]


def test_stdin_that_is_no_text_is_refused(chat: Run) -> None:
    with pytest.raises(UsageError, match="byte 1 of a line"):
        chat(b"a\xff\n")


def test_a_reader_that_has_gone_ends_the_chat(chat: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        chat("one", "two")
    (info,) = TranscriptStore(tmp_path / "transcripts").list()
    assert info.title == "one" and info.n_messages == 2, "the second line is not answered for nobody"


def test_without_a_terminal_and_without_a_line_it_says_how_to_ask(
    chat: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat() is ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == "" and "nothing was asked" in err and "artesian ask" in err and "-it" in err
    assert chat("a line") is ExitCode.DONE
    assert "nothing was asked" not in capsys.readouterr().err


def test_a_closed_stdin_is_an_empty_one(chat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert wants_plain({"TERM": "xterm"})
    assert _plain().run() is ExitCode.DONE


def test_settings_are_shown_and_changed_in_the_file(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = paths.settings_file()
    path.parent.mkdir(parents=True)
    path.write_text("# mine\ntop_k = 3  # few\n")
    assert chat("/settings top_k 40", "/settings top_k") is ExitCode.DONE
    assert path.read_text() == "# mine\ntop_k = 40  # few\n"
    assert "top_k = 40 (settings)" in capsys.readouterr().err
    assert chat("/settings topk 1") is ExitCode.USAGE
    assert "Did you mean top_k?" in capsys.readouterr().err


def test_every_command_does_something_or_says_why_not() -> None:
    slashed = {action.id for action in ACTIONS if action.slash}
    assert set(NOT_HERE) <= slashed
    done = {name.removeprefix("do_") for name in dir(Commands) if name.startswith("do_")}
    assert done == slashed - set(NOT_HERE)


def test_help_lists_what_works_here(chat: Run, capsys: pytest.CaptureFixture[str]) -> None:
    chat("/help")
    err = capsys.readouterr().err
    assert "/find [TEXT]: Finds text in this conversation." in err and "/theme" not in err


@pytest.mark.parametrize(
    ("term", "stdin", "stdout", "stderr", "plain"),
    [
        ("xterm", True, True, True, False),
        ("xterm", True, False, True, True),
        ("xterm", False, True, True, True),
        ("xterm", True, True, False, True),  # the screen would be painted into a file
        ("dumb", True, True, True, True),
        ("", True, True, True, True),
    ],
)
def test_line_mode_is_taken_where_a_screen_cannot_be(
    monkeypatch: pytest.MonkeyPatch, term: str, stdin: bool, stdout: bool, stderr: bool, plain: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: stderr, raising=False)
    assert wants_plain({"TERM": term}) is plain


def test_the_open_conversation_is_not_opened_a_second_time(
    chat: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat("one")
    (info,) = TranscriptStore(tmp_path / "transcripts").list()
    assert chat(f"/resume {info.id}", f"/resume {info.id}", "two") is ExitCode.DONE
    assert "This is that conversation." in capsys.readouterr().err
    (info,) = TranscriptStore(tmp_path / "transcripts").list()
    assert info.n_messages == 4


def test_bytes_that_are_no_text_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str | Exception] = [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "fine"]

    def typed(prompt: str) -> str:
        line = lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr("builtins.input", typed)
    assert _plain()._line_of_terminal("> ") == "fine"
    assert "not UTF-8" in capsys.readouterr().err
