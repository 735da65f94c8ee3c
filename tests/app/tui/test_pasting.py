"""Pastes on their way from a terminal to the box, in one piece whatever is inside."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from threading import Event

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Input

from app.tui.app import ArtesianApp
from app.tui.pasting import BEGIN, END, PasteParser
from app.tui.terminal import TerminalDriver
from tests.app.tui.chat_stage import CueBackend, chat
from tests.fakes import Clock

HOSTILE = "one\rtwo \x1b[31mred\x1b[0m\x1b\x1b[A \x1b]52;c;eA==\x07 \x1b[200~ \x1b[201 end\x1b"
"""Line ends as terminals send them, colours, keys, a clipboard, the brackets and parts of them."""


def _heard(messages: Iterable[Message]) -> list[tuple[str, str]]:
    return [
        ("paste", one.text) if isinstance(one, Paste) else ("key", one.key)
        for one in messages
        if isinstance(one, Paste | Key)
    ]


def _read(*pieces: str) -> list[tuple[str, str]]:
    """What a fresh parser makes of these reads."""
    parser = PasteParser(XTermParser())
    return [one for piece in pieces for one in _heard(parser.feed(piece))]


def test_a_paste_is_one_whatever_is_in_it_and_wherever_it_is_cut() -> None:
    stream = f"a{BEGIN}{HOSTILE}{END}\x1b[Ab"
    wanted = [("key", "a"), ("paste", HOSTILE), ("key", "up"), ("key", "b")]
    assert _read(stream) == wanted
    assert _read(*stream) == wanted
    for at in range(1, len(stream)):
        assert _read(stream[:at], stream[at:]) == wanted, at


def test_two_pastes_and_an_empty_one_follow_each_other() -> None:
    assert _read(f"{BEGIN}one{END}{BEGIN}{END}{BEGIN}tw\0o{END}") == [("paste", "one"), ("paste", ""), ("paste", "two")]


def test_keys_are_what_they_were_without_brackets() -> None:
    stream = "x\x1b[A\x1b[1;5B\r\x0a\x1b[13;2u\x1b[<64;10;5M\x1b[I\x1b[O"
    plain = [str(one) for one in XTermParser().feed(stream)]
    assert [str(one) for one in PasteParser(XTermParser()).feed(stream)] == plain and len(plain) == 9


def test_a_paste_without_an_end_is_taken_after_a_while_and_keys_are_heard_again() -> None:
    clock = Clock()
    parser = PasteParser(XTermParser(), end_wait_s=5.0, clock=clock)
    assert _heard(parser.feed(f"{BEGIN}half of it\r")) == []
    clock.now_s += 4.9
    assert _heard(parser.tick()) == []
    assert _heard(parser.feed("more\x1b[20")) == []
    clock.now_s += 4.9
    assert _heard(parser.tick()) == [], "it is counted from the last of it"
    clock.now_s += 0.2
    assert _heard(parser.tick()) == [("paste", "half of it\rmore\x1b[20")]
    assert _heard(parser.feed("x\r")) == [("key", "x"), ("key", "enter")]


def test_of_a_paste_without_measure_only_enough_is_kept_to_see_that_it_is() -> None:
    parser = PasteParser(XTermParser(), most_chars=1_000)
    heard = [one for _ in range(10) for one in _heard(parser.feed("x" * 997))]
    assert len(heard) == 9_970, "without brackets they are keys"
    assert _heard(parser.feed(BEGIN)) == []
    for _ in range(100):
        assert _heard(parser.feed("y" * 997)) == []
    assert sum(map(len, parser._kept)) <= 1_001
    assert _heard(parser.feed(f"{END}z")) == [("paste", "y" * 1_001), ("key", "z")]


async def test_the_chat_hears_a_terminal_by_this_driver_and_by_textuals_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat(tmp_path, CueBackend()) as (app, _):
        assert app.get_driver_class() is TerminalDriver
        monkeypatch.setitem(sys.modules, "app.tui.terminal", None)  # as where its base cannot be imported
        assert ArtesianApp.get_driver_class(app).__name__ == "LinuxDriver"


async def test_controls_are_shown_in_a_line_of_text_too_not_sent(tmp_path: Path) -> None:
    hostile, shown = "a\x1b]52;c;eA==\x07\rb", "a\N{SYMBOL FOR ESCAPE}]52;c;eA==\N{SYMBOL FOR BELL}"
    async with chat(tmp_path, CueBackend()) as (app, pilot):
        for keys in (["ctrl+f"], ["escape", "ctrl+p"], ["escape", "ctrl+t", "slash"]):
            await pilot.press(*keys)
            await pilot.pause()
            line = app.screen.query_one(Input)
            assert app.focused is line
            app.post_message(Paste(hostile))
            await pilot.pause()
            assert line.value == shown, keys
            line.value = ""
            app.copy_to_clipboard(hostile)  # a reply may hold such text
            await pilot.press("ctrl+v")
            assert line.value == shown, keys
        await pilot.press("escape", "escape")
        await pilot.press("ctrl+v")
        assert app.chat.prompt.text == f"{shown}\nb"


class _Heard(TerminalDriver):
    """Reads a pipe, and notes what it is told by it."""

    def __init__(self, fileno: int) -> None:  # without the app and the signals of a real one
        self.fileno = fileno
        self._debug = False
        self.exit_event = Event()
        self.heard: list[Message] = []

    def process_message(self, message: Message) -> None:
        self.heard.append(message)


def test_bytes_that_are_no_text_do_no_harm_and_the_end_of_the_terminal_ends_the_reading() -> None:
    source, sink = os.pipe()
    os.write(sink, b"\xff" + f"{BEGIN}caf".encode() + b"\xe9\r\xc3\xa9" + END.encode())
    os.close(sink)
    driver = _Heard(source)
    driver.run_input_thread()
    os.close(source)
    assert _heard(driver.heard)[1:] == [("paste", "caf\N{REPLACEMENT CHARACTER}\ré")]
