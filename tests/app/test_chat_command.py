"""`artesian chat`: what its options reach."""

import pytest

from app.cli import main
from app.commands import chat
from app.drafting import DraftOptions
from app.reading import MemoryOptions, ReadingOptions
from app.run_options import RunOptions


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
