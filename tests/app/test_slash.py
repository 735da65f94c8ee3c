import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.actions import BY_ID, BY_SLASH
from app.slash import Command, Say, Unknown, completions, parse


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "/usr/bin/env is what?",
        "//x",
        " /help",
        "\n/help",
        "/2",
        "/help.txt says what?",
        "a /help",
    ],
)
def test_what_is_no_command_is_said_as_typed(text: str) -> None:
    assert parse(text) == Say(text)


@pytest.mark.parametrize(
    ("text", "action", "argument"),
    [
        ("/help", "help", ""),
        ("/HELP", "help", ""),
        ("/help \n ", "help", ""),
        ("/find  a needle ", "find", "a needle"),
        ("/system be brief\nand kind", "system", "be brief\nand kind"),
        ("/copy-all", "copy_chat", ""),
    ],
)
def test_commands_are_known_in_any_case_with_what_follows(text: str, action: str, argument: str) -> None:
    assert parse(text) == Command(BY_ID[action], argument)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("/regenrate", "Did you mean /regenerate?"),
        ("/tran", "Did you mean /transcripts?"),
        ("/qqq", "/help lists them all."),
        ("/", "A command has a name"),
        ("/ x", "A command has a name"),
        ("/copy this please", "/copy takes nothing after it."),
        ("/help me\nwith this", "/help takes nothing after it."),
        ("/resume", "/resume needs ID after it."),
    ],
)
def test_what_cannot_be_done_is_named_and_not_sent(text: str, part: str) -> None:
    entry = parse(text)
    assert isinstance(entry, Unknown) and part in entry.problem


@given(st.text())
def test_any_text_is_one_of_the_three_and_a_message_is_unchanged(text: str) -> None:
    entry = parse(text)
    assert not isinstance(entry, Say) or entry.text == text
    assert isinstance(entry, Say) or text.startswith("/")


def test_completions_are_those_that_go_on() -> None:
    assert completions("/") == tuple(BY_SLASH.values())
    assert [action.slash for action in completions("/Co")] == ["continue", "copy", "code", "copy-all"]
    assert completions("/copy ") == () and completions("co") == () and completions("/zz") == ()
