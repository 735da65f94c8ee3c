"""Brackets around pasted text, as terminals send them: all between them becomes one paste, whatever is inside.

The one thing a reader would get wrong: Textual's parser knows the brackets too, but leaves its paste at the first
escape sign inside. The rest would be typed, and the end of its first line is Enter: half a paste would be sent. So what
stands between the brackets never gets to it; it is told of the brackets alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from textual.events import Paste
from textual.message import Message

BEGIN = "\x1b[200~"
END = "\x1b[201~"

MOST_CHARS = 1_000_000
"""What the box holds after a paste, at most: a quarter of a million tokens. Beside so much a key takes 20 ms more."""

QUICK_LINE = 50_000
"""Characters of a line up to which keys are quick in the box: it is wrapped anew with each, 10 ms for 10,000."""

END_WAIT_S = 5.0
"""A paste whose end does not come this long after its last character is taken as it is: keys are heard again."""


class KeyParser(Protocol):
    """What turns characters of a terminal into keys and the like; Textual's, which reports a paste by its brackets."""

    def feed(self, data: str) -> Iterable[Message]:
        """Take characters; what they mean. "" is the end of the stream."""
        ...

    def tick(self) -> Iterable[Message]:
        """Look at the time: a lone escape sign is the key."""
        ...


class PasteParser:
    """A parser that takes pastes out of the stream before another one reads the keys."""

    def __init__(
        self,
        keys: KeyParser,
        *,
        most_chars: int = MOST_CHARS,
        end_wait_s: float = END_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of a paste over `most_chars` one character more than these is kept, so that it is seen to be too long."""
        self._keys = keys
        self._most_chars = most_chars
        self._end_wait_s = end_wait_s
        self._clock = clock
        self._is_pasting = False
        self._tail = ""  # what was read last, in which a bracket may have begun
        self._kept: list[str] = []
        self._n_kept = 0
        self._heard_s = 0.0

    def feed(self, data: str) -> Iterator[Message]:
        """What `data` means: keys and the like, and whole pastes in their place among them."""
        while data:
            if self._is_pasting:
                self._heard_s = self._clock()
            bracket = END if self._is_pasting else BEGIN
            seen = self._tail + data
            at = seen.find(bracket)
            if at < 0:
                n_tail = len(bracket) - 1
                if self._is_pasting:
                    self._keep(seen[:-n_tail])
                else:
                    yield from self._keys.feed(data)
                self._tail = seen[-n_tail:]
                return
            rest = seen[at + len(bracket) :]
            if self._is_pasting:
                self._keep(seen[:at])
                yield from self._ended()
            else:
                # The bracket too: part of it may have been read already.
                yield from self._keys.feed(data[: len(data) - len(rest)])
                self._is_pasting, self._tail, self._heard_s = True, "", self._clock()
            data = rest

    def tick(self) -> Iterator[Message]:
        """What the passing of time means: a lone escape sign is the key, and a paste without an end has ended."""
        if not self._is_pasting:
            yield from self._keys.tick()
        elif self._clock() - self._heard_s >= self._end_wait_s:
            self._keep(self._tail)
            yield from self._ended()

    def _keep(self, text: str) -> None:
        text = text[: self._most_chars + 1 - self._n_kept]
        if text:
            self._kept.append(text)
            self._n_kept += len(text)

    def _ended(self) -> Iterator[Message]:
        text = "".join(self._kept)
        self._is_pasting, self._tail, self._kept, self._n_kept = False, "", [], 0
        # It was told where the paste begins and now where it ends, so it may report one, with nothing in it.
        yield from (message for message in self._keys.feed(END) if not isinstance(message, Paste))
        yield Paste(text.replace("\0", ""))
