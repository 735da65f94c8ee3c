"""Saves a reply while it is made.

The one thing a reader would get wrong: text is saved at intervals, not with each token. `saved_tokens` says how far;
a power failure costs at most what came since, half a second of it or 64 tokens, and a killed process no more.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from app.backends.base import RunFacts
from app.transcripts.plain import to_plain
from app.transcripts.records import Node, Run, Status
from app.transcripts.transcript import Transcript
from engine.events import DoneReason, Event, Notice, TextDelta, ThinkingDelta, TokenDrawn, TurnDone

SAVE_EVERY_S = 0.5
SAVE_EVERY_TOKENS = 64

_STATUS: dict[DoneReason, Status] = {"stop": "complete", "length": "cut", "context": "cut", "stopped": "stopped"}


class ReplyWriter:
    """One reply that is being made, or gone on with.

    `take` and `finish` may wait for the drive: they belong on the thread that generates, not on the screen's. Neither
    raises for the drive's sake; see `Transcript.problem`.
    """

    def __init__(self, transcript: Transcript, node: Node, run: Run, *, clock: Callable[[], float]) -> None:
        """A reply under `node`, or more of it when it is a reply itself.

        Raises: TranscriptError when the transcript can only be read, or others follow the reply.
        """
        transcript.require_writable()
        self._transcript = transcript
        self._clock = clock
        with transcript.lock:
            if node.role == "assistant":
                self._id = node.id
                growing = transcript.go_on(node.id, run, run_record(run))
            else:
                self._id = transcript.add_reply(node.id, run, run_record(run)).id
                growing = transcript.growing(self._id)
        transcript.flush(sync=False)
        self._growing = growing
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._ids: list[int] = []
        self._at = [growing.n_ids, growing.n_text, growing.n_thinking]
        self._saved_at_s = clock()
        self._saved_tokens = growing.n_ids
        self._ended = False

    @property
    def node(self) -> Node:
        """The reply as it is now."""
        with self._transcript.lock:
            return self._growing.node()

    @property
    def saved_tokens(self) -> int:
        """How many ids of the reply are on the drive."""
        return self._saved_tokens

    def set_facts(self, facts: RunFacts) -> None:
        """What the reply depends on, when it was not known at the beginning."""
        with self._transcript.lock:
            self._growing.change_run(facts=facts)
            self._transcript.note({"kind": "facts", "id": self._id, "facts": to_plain(facts)})
        self._transcript.flush(sync=False)

    def take(self, event: Event) -> None:
        """One event of the turn, in the order they come."""
        match event:
            case TextDelta():
                self._grow(text=event.text)
            case ThinkingDelta():
                self._grow(thinking=event.text)
            case TokenDrawn():
                self._grow(ids=(event.token,))
            case Notice():
                with self._transcript.lock:
                    self._growing.change(notices=(*self._growing.node().notices, event.text))
                    self._transcript.note({"kind": "notice", "id": self._id, "text": event.text})
                self._transcript.flush(sync=False)
            case TurnDone():
                status = _STATUS[event.reason]
                with self._transcript.lock:
                    self._growing.change(status=status, reason=event.reason)
                    self._growing.change_run(stats=event.stats, reason=event.reason)
                    self._note_end({"status": status, "reason": event.reason, "stats": asdict(event.stats)})
                self._save()

    def finish(self, error: str = "") -> Node:
        """The turn is over; the reply as it stays.

        Needed where no TurnDone came: with `error` the reply failed of it, without it was stopped. After TurnDone it
        changes nothing.
        """
        if not self._ended:
            status: Status = "failed" if error else "stopped"
            with self._transcript.lock:
                self._growing.change(status=status, error=error)
                self._note_end({"status": status, "error": error})
            self._save()
        return self.node

    def _grow(self, *, text: str = "", thinking: str = "", ids: tuple[int, ...] = ()) -> None:
        with self._transcript.lock:
            self._growing.grow(text, thinking, ids)
            self._text.append(text)
            self._thinking.append(thinking)
            self._ids += ids
            due = self._clock() - self._saved_at_s >= SAVE_EVERY_S or len(self._ids) >= SAVE_EVERY_TOKENS
            if due:
                self._note_more()
        if due:
            self._save()

    def _note_end(self, record: dict[str, Any]) -> None:
        self._ended = True
        self._note_more()
        self._transcript.note({"kind": "end", "id": self._id, **record})

    def _note_more(self) -> None:
        """What was not handed to the file yet."""
        record = {
            "kind": "more",
            "id": self._id,
            "at": self._at,
            "text": "".join(self._text),
            "thinking": "".join(self._thinking),
            "ids": self._ids,
        }
        growing, before = self._growing, self._at
        self._at = [growing.n_ids, growing.n_text, growing.n_thinking]
        self._text, self._thinking, self._ids = [], [], []
        if self._at != before:
            self._transcript.note(record)

    def _save(self) -> None:
        n_ids = self._at[0]
        if self._transcript.flush():
            self._saved_tokens = n_ids
        self._saved_at_s = self._clock()


def run_record(run: Run) -> dict[str, Any]:
    """A run as it stands in the file."""
    return {
        "first": [run.first, run.first_text, run.first_thinking],
        "effort": run.effort,
        "sampling": asdict(run.sampling),
        "max_tokens": run.max_tokens,
        "facts": to_plain(run.facts),
    }
