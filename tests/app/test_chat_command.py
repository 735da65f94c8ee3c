"""`artesian chat`: what its options reach, and how it ends."""

from pathlib import Path

import pytest

from app.cli import main
from app.commands import chat
from app.drafting import DraftOptions
from app.model_choice import ModelChoice
from app.paths import demo_folder
from app.reading import MemoryOptions, ReadingOptions
from app.run_options import RunOptions
from app.settings import Settings
from app.transcripts.files import FileOps
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.tui.app import ArtesianApp
from tests.app.transcripts.faulty import FaultyFiles
from tests.fakes import ScriptedBackend


def test_the_app_is_given_the_options_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def open_chat(*arguments: object) -> int:
        given.append(arguments[-1])
        return 0

    monkeypatch.setattr(chat, "wants_plain", lambda: False)
    monkeypatch.setattr(chat, "open_chat", open_chat)
    assert main(["--ram", "8GB", "--slots", "3", "--draft", "off", "--chunk-tokens", "16"]) == 0
    assert main([]) == 0
    options = RunOptions(
        memory=MemoryOptions(ram="8GB"),
        reading=ReadingOptions(slots=3),
        drafting=DraftOptions(draft="off"),
        chunk_tokens=16,
    )
    assert given == [options, RunOptions()]


def _quit_after_a_message(
    monkeypatch: pytest.MonkeyPatch, folder: Path, files: FileOps, *, return_code: int | None = None
) -> int:
    """The exit code of a chat in which a message was sent, which waits to be saved when `files` fail."""

    def run(app: ArtesianApp, **options: object) -> None:
        app.chat.conversation.transcript.add("user", "hi", None)
        app._return_code = return_code

    monkeypatch.setattr(ArtesianApp, "run", run)
    return chat.open_chat(
        lambda choice: ScriptedBackend(),
        ModelChoice(folder=demo_folder(), origin="demo", is_demo=True),
        TranscriptStore(folder, files=files),
        Settings(),
        lambda transcript, _: ChatSession(transcript),
        None,
        RunOptions(),
    )


def test_what_could_not_be_saved_is_said_when_the_chat_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = FaultyFiles(fail_on=range(1, 1000))
    assert _quit_after_a_message(monkeypatch, tmp_path, files) == 1
    out, err = capsys.readouterr()
    begin = f"artesian: the newest part of the conversation could not be saved: {tmp_path}"
    assert out == "" and err.startswith(begin) and err.endswith(".jsonl: No space left on device\n")
    assert err.count("\n") == 1 and list(tmp_path.glob("*.jsonl")) == []


def test_what_is_saved_while_leaving_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _quit_after_a_message(monkeypatch, tmp_path, FaultyFiles(fail_on={1})) == 0
    assert capsys.readouterr() == ("", "")
    store = TranscriptStore(tmp_path)
    assert [info.title for info in store.list()] == ["hi"]


def test_a_signal_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = FaultyFiles(fail_on=range(1, 1000))
    assert _quit_after_a_message(monkeypatch, tmp_path, files, return_code=143) == 143
    assert "could not be saved" in capsys.readouterr().err
