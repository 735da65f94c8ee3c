"""The engine thread and its mailbox: the only place where a thread meets the screen.

The one thing a reader would get wrong: the engine never waits for the screen. It leaves events in the mailbox, which
merges what can be merged, and the screen takes them when it paints.
"""

import gc
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from app import logs
from app.backends.base import Backend, OpenEvent, PromptCost, RunFacts, TurnRequest
from app.progress import CountProgress
from engine.errors import Stopped
from engine.events import Event, LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn

SWITCH_INTERVAL_S = 0.0005
"""Python's switch between threads while an engine runs: median lag of the event loop under a spinning thread falls
from 6 ms to 0.8 ms against the default of 0.005."""

_IDLE_S = 1.5
"""Nobody asked for anything for this long: time to warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The model begins to be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The model is ready."""

    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFailed:
    """The model could not be opened; the next turn tries again."""

    error: Exception
    """`Stopped` when the user stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens were drawn since the mailbox was last emptied."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegan:
    """The engine took up a turn; its events follow up to TurnDone or TurnFailed."""

    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn ended with an error; what it wrote before stays."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a request would cost."""

    ticket: int
    cost: PromptCost | None
    """None when it cannot be run; `error` says why."""
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warming:
    """Experts are read ahead while nobody waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Reading ahead ended, or gave way."""

    n_experts: int


HostEvent = (
    Event | CountProgress | Opening | Opened | OpenFailed | Drawn | TurnBegan | TurnFailed | Measured | Warming | Warmed
)


class Mailbox:
    """Events on their way from the engine thread to the screen, merged so that a burst is one entry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[HostEvent] = []
        self._n_drawn = 0

    def put(self, event: HostEvent) -> None:
        """Leave `event`. From any thread; never waits for the reader's work."""
        with self._lock:
            last = self._events[-1] if self._events else None
            if isinstance(event, TokenDrawn):
                self._n_drawn += 1  # between deltas, which it must not keep apart
            elif type(event) is not type(last):
                self._events.append(event)
            elif isinstance(event, TextDelta | ThinkingDelta) and isinstance(last, TextDelta | ThinkingDelta):
                self._events[-1] = replace(event, text=last.text + event.text)
            elif isinstance(event, LoadProgress | PrefillProgress | CountProgress):
                self._events[-1] = event  # only the newest matters
            else:
                self._events.append(event)

    def take(self) -> list[HostEvent]:
        """Everything since the last call, oldest first; the drawn tokens in one record before it."""
        with self._lock:
            events, self._events = self._events, []
            n_drawn, self._n_drawn = self._n_drawn, 0
        return [Drawn(n_tokens=n_drawn), *events] if n_drawn else events


class Sink(Protocol):
    """Who keeps what a turn gives: a transcript's writer. Called on the engine thread, before the screen is told."""

    def set_facts(self, facts: RunFacts) -> None:
        """What the reply depends on; before the first event."""
        ...

    def take(self, event: Event) -> None:
        """One event."""
        ...

    def finish(self, error: str = "") -> object:
        """The turn is over, also when no TurnDone came: with `error` it failed of that, without it was stopped."""
        ...


class States(Protocol):
    """Who keeps the engine's state of a conversation in a file. Called on the engine thread."""

    def restore(self, backend: Backend, tell: Callable[[str], None]) -> None:
        """Before a turn of the conversation."""
        ...

    def save(self, backend: Backend, tell: Callable[[str], None]) -> None:
        """After a turn, when there is time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn to be run."""

    number: int
    request: TurnRequest
    sink: Sink | None = None
    states: States | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    make_backend: Callable[[], Backend] | None
    """Another backend from now on; None opens the one there is."""
    stop: threading.Event


@dataclass(frozen=True, slots=True)
class _Turn:
    turn: Turn
    stop: threading.Event


_Command = _Turn | _Open | None


class Host:
    """One long-lived thread that opens a backend, runs turns on it, and warms it in between; a second one that measures
    what a request would cost, meanwhile.
    """

    def __init__(self, make_backend: Callable[[], Backend], *, idle_s: float = _IDLE_S) -> None:
        """`make_backend` is called on the thread, so that what it imports keeps nobody waiting."""
        self.mailbox = Mailbox()
        self._make_backend = make_backend
        self._idle_s = idle_s
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._questions: queue.SimpleQueue[tuple[int, TurnRequest] | None] = queue.SimpleQueue()
        self._newest_ticket = 0
        self._making = threading.Lock()
        self._backend: Backend | None = None
        self._is_open = False
        self._wants_warmth = False
        self._to_save: States | None = None
        """Of the conversation that had the newest turn, until it is saved."""
        self._facts: RunFacts | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._measurer = threading.Thread(target=self._run_measurer, name="measure", daemon=True)

    def start(self) -> None:
        """Start the thread; it begins by opening the model."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._commands.put(_Open(None, self._stop))
        self._thread.start()
        self._measurer.start()

    def submit(self, turn: Turn) -> None:
        """Run `turn` once what was asked before is done; opens the model again if that failed."""
        self._commands.put(_Turn(turn, self._stop))

    def measure(self, ticket: int, request: TurnRequest) -> None:
        """Ask what `request` would cost; only the newest question gets an answer."""
        self._newest_ticket = ticket
        self._questions.put((ticket, request))

    def reopen(self, make_backend: Callable[[], Backend]) -> None:
        """Close what is open and open another; a turn that runs is stopped."""
        self.stop()
        self._commands.put(_Open(make_backend, self._stop))

    def look(self) -> None:
        """Leave in the mailbox how far the prompt is read, if one is: a chunk of it may take a minute."""
        backend = self._backend
        progress = None if backend is None else backend.reading()
        if progress is not None:
            self.mailbox.put(progress)

    def stop(self) -> None:
        """Stop what was asked for so far, a turn or the loading, within one layer's time; what is asked later runs."""
        old, self._stop = self._stop, threading.Event()
        old.set()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Stop everything, give back the model and end the thread; whether it ended in time."""
        self.stop()
        self._commands.put(None)
        self._questions.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (command := self._next()) is not None:
            match command:
                case _Open(make_backend, stop):
                    if make_backend is not None:
                        self._drop(make_backend)
                    self._open_quietly(stop.is_set)
                case _Turn(turn, stop):
                    self._take(turn, stop.is_set)
        self._drop()

    def _next(self) -> _Command:
        if self._is_open and self._wants_warmth:
            try:
                return self._commands.get(timeout=self._idle_s)
            except queue.Empty:
                self._save_state()
                self._warm()
        return self._commands.get()

    def _the_backend(self) -> Backend:
        with self._making:  # both threads may be the first to need it
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend

    def _open(self, should_stop: Callable[[], bool], sink: Sink | None = None) -> None:
        """Raises: what the backend's `open` raises."""
        put = self.mailbox.put

        def tell(event: OpenEvent) -> None:
            if sink is not None and isinstance(event, Notice):
                sink.take(event)
            put(event)

        put(Opening())
        try:
            self._the_backend().open(tell, should_stop)
            facts = self._facts = self._the_backend().facts()
        except Exception as error:
            self._drop()
            put(OpenFailed(error=error))
            raise
        self._is_open = self._wants_warmth = True
        # What was loaded stays: without this each full collection goes through it all, and keys wait 50 ms and more.
        gc.freeze()
        put(Opened(facts=facts))

    def _open_quietly(self, should_stop: Callable[[], bool]) -> None:
        try:
            self._open(should_stop)
        except Exception as error:  # the engine thread's net; the screen was told
            _noted(error)

    def _run_measurer(self) -> None:
        while (question := self._questions.get()) is not None:
            ticket, request = question
            if ticket == self._newest_ticket:
                self._answer(ticket, request)

    def _answer(self, ticket: int, request: TurnRequest) -> None:
        try:
            cost = self._the_backend().measure(request)
        except Exception as error:  # this thread's net
            self.mailbox.put(Measured(ticket=ticket, cost=None, error=error))
            return
        self.mailbox.put(Measured(ticket=ticket, cost=cost))

    def _take(self, turn: Turn, should_stop: Callable[[], bool]) -> None:
        put, sink = self.mailbox.put, turn.sink
        put(TurnBegan(turn=turn.number))
        error = ""
        failed: TurnFailed | None = None
        try:
            if not self._is_open:
                self._open(should_stop, sink)
            if sink is not None and self._facts is not None:
                sink.set_facts(self._facts)
            if turn.states is not None:
                if self._to_save is not turn.states:
                    self._save_state()
                turn.states.restore(self._the_backend(), self._say)
                self._to_save = turn.states
            for event in self._the_backend().generate(turn.request, should_stop):
                if sink is not None:
                    sink.take(event)
                put(event)
        except Exception as failure:  # the engine thread's net
            error = "" if isinstance(failure, Stopped) else str(failure) or type(failure).__name__
            failed = TurnFailed(error=_noted(failure))
        finally:
            try:
                if sink is not None:
                    sink.finish(error)
            finally:
                if failed is not None:
                    put(failed)  # once it is saved
        self._wants_warmth = True

    def _warm(self) -> None:
        self._wants_warmth = False
        self.mailbox.put(Warming())
        n_experts = 0
        try:
            n_experts = self._the_backend().warm(lambda: not self._commands.empty())
        except Exception as error:  # the engine thread's net; a drive that fails here fails again when it is needed
            _noted(error)
        self.mailbox.put(Warmed(n_experts=n_experts))

    def _save_state(self) -> None:
        states, self._to_save = self._to_save, None
        if states is not None and self._backend is not None and self._is_open:
            try:
                states.save(self._backend, self._say)
            except Exception as error:  # the engine thread's net
                _noted(error)

    def _say(self, text: str) -> None:
        self.mailbox.put(Notice(text=text))

    def _drop(self, make_backend: Callable[[], Backend] | None = None) -> None:
        """Close what is open; `make_backend` makes the next, for whoever needs one from this moment on."""
        self._save_state()
        with self._making:
            backend, self._backend, self._is_open = self._backend, None, False
            self._make_backend = make_backend or self._make_backend
        if backend is not None:
            try:
                backend.close()
            except Exception as error:  # the engine thread's net
                _noted(error)


def _noted(error: Exception) -> Exception:
    """The error, with its traceback in the log unless the user asked for it."""
    if not isinstance(error, Stopped):
        logs.log.error("engine thread\n%s", "".join(traceback.format_exception(error)))
    return error
