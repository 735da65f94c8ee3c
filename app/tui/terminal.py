"""The terminal as the chat hears it: Textual's driver, with whole pastes and with bytes that are no text.

The one thing a reader would get wrong: the loop below runs on a thread of Textual's. A failure there ends the chat, and
so would a byte that is not UTF-8, which a terminal sends whenever such text is pasted.
"""

import os
from codecs import getincrementaldecoder
from selectors import EVENT_READ, SelectSelector

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from app.tui.pasting import PasteParser

_LOOK_S = 0.1
"""How long it waits for input before it looks at the time, and at whether it is to end."""

_READ_BYTES = 1 << 16


class TerminalDriver(LinuxDriver):
    """A terminal on Linux and its like."""

    def run_input_thread(self) -> None:
        """Read keys and pastes until the terminal is given back, or is gone."""
        parser = PasteParser(XTermParser(self._debug))
        decoder = getincrementaldecoder("utf-8")("replace")
        with SelectSelector() as selector:
            selector.register(self.fileno, EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_LOOK_S):
                    data = self._read()
                    if not data:
                        return  # hung up on: others end the chat
                    for message in parser.feed(decoder.decode(data)):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            return b""
