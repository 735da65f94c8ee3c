"""The engine thread and its mailbox, with a backend that waits for cues."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.backends.base import OpenEvent, RunFacts, TurnRequest
from app.host import (
    Drawn,
    Host,
    HostEvent,
    Mailbox,
    Measured,
    Opened,
    OpenFailed,
    Opening,
    Turn,
    TurnBegan,
    TurnFailed,
    Warmed,
    Warming,
)
from engine.errors import PromptError, Stopped
from engine.events import Event, LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn, TurnDone
from engine.sampler_settings import SamplerSettings
from tests.fakes import ScriptedBackend, turn_done

REQUEST = TurnRequest(effort=None, sampling=SamplerSettings(seed=1), max_tokens=10)


def progress(done: int) -> PrefillProgress:
    return PrefillProgress(done_tokens=done, total_tokens=9, read_bytes=0, elapsed_s=1.0)


class Heard:
    """Takes the mailbox's events and waits for some."""

    def __init__(self, host: Host) -> None:
        self.events: list[HostEvent] = []
        self._host = host

    def wait(self, ready: Callable[[list[HostEvent]], bool], timeout_s: float = 10.0) -> list[HostEvent]:
        end = time.monotonic() + timeout_s
        while True:
            self.events += self._host.mailbox.take()
            if ready(self.events):
                return self.events
            assert time.monotonic() < end, f"only {self.events}"
            time.sleep(0.002)

    def wait_for(self, kind: type, count: int = 1) -> list[HostEvent]:
        return self.wait(lambda events: sum(isinstance(event, kind) for event in events) >= count)


class Kept:
    """A sink that notes what it is given, and on which thread."""

    def __init__(self) -> None:
        self.facts: RunFacts | None = None
        self.events: list[Event] = []
        self.finished: list[str] = []
        self.threads: set[str] = set()

    def set_facts(self, facts: RunFacts) -> None:
        self.facts = facts

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    def finish(self, error: str = "") -> None:
        self.finished.append(error)


@pytest.fixture
def hosts() -> Iterator[Callable[..., tuple[Host, Heard]]]:
    started: list[Host] = []

    def start(backend: ScriptedBackend, **options: float) -> tuple[Host, Heard]:
        host = Host(lambda: backend, **options)
        started.append(host)
        host.start()
        return host, Heard(host)

    yield start
    for host in started:
        assert host.close(), "the engine thread did not end"


def test_a_burst_of_text_is_one_entry_and_tokens_are_counted_beside_it() -> None:
    mailbox = Mailbox()
    for text in "abc":
        mailbox.put(TokenDrawn(token=1))
        mailbox.put(TextDelta(text=text))
    assert mailbox.take() == [Drawn(n_tokens=3), TextDelta(text="abc")]
    assert mailbox.take() == []


def test_of_progress_the_newest_is_left_and_order_is_kept() -> None:
    mailbox = Mailbox()
    for event in (progress(1), progress(2), ThinkingDelta(text="h"), ThinkingDelta(text="m"), TextDelta(text="x"),
                  Notice(text="n"), Notice(text="n"), TextDelta(text="y")):  # fmt: skip
        mailbox.put(event)
    assert mailbox.take() == [
        progress(2), ThinkingDelta(text="hm"), TextDelta(text="x"), Notice(text="n"), Notice(text="n"),
        TextDelta(text="y"),
    ]  # fmt: skip


def test_the_model_is_opened_at_once_and_a_turn_runs_on_the_engine_thread(hosts: Callable[..., tuple]) -> None:
    backend = ScriptedBackend([TextDelta(text="hi"), turn_done()], loading=[Notice(text="direct reads are off")])
    host, heard = hosts(backend)
    kept = Kept()
    host.submit(Turn(number=7, request=REQUEST, sink=kept))
    kinds = [type(event) for event in heard.wait_for(TurnDone)]
    assert kinds == [Opening, Notice, Opened, TurnBegan, TextDelta, TurnDone]
    assert [type(event) for event in kept.events] == [TextDelta, TurnDone]
    assert kept.facts == backend.facts() and kept.finished == [""] and kept.threads == {"engine"}


def test_stop_ends_what_was_asked_for_and_not_what_is_asked_for_later(hosts: Callable[..., tuple]) -> None:
    go = threading.Semaphore(0)
    begun = threading.Event()

    def before_each() -> None:
        begun.set()
        go.acquire(timeout=10)

    host, heard = hosts(
        ScriptedBackend([TextDelta(text="a"), TextDelta(text="b"), turn_done()], before_each=before_each)
    )
    host.submit(Turn(number=1, request=REQUEST))
    assert begun.wait(10)
    host.stop()
    host.submit(Turn(number=2, request=REQUEST))
    go.release(10)
    heard.wait_for(TurnDone, 2)
    assert [event.reason for event in heard.events if isinstance(event, TurnDone)] == ["stopped", "stop"]


def test_a_failure_is_told_and_the_next_turn_runs(hosts: Callable[..., tuple]) -> None:
    backend = ScriptedBackend([TextDelta(text="so far")], failure=PromptError("too long"))
    host, heard = hosts(backend)
    kept = Kept()
    host.submit(Turn(number=1, request=REQUEST, sink=kept))
    heard.wait_for(TurnFailed)
    assert kept.finished == ["too long"]
    host.submit(Turn(number=2, request=REQUEST))
    heard.wait_for(TurnFailed, 2)


class _OpensLater(ScriptedBackend):
    """Fails to open the first time, or waits for the stop."""

    def __init__(self, failure: Exception | None) -> None:
        super().__init__([turn_done()])
        self._failure = failure
        self.waiting = threading.Event()
        self.n_opened = 0

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        self.n_opened += 1
        if self.n_opened > 1:
            return
        if self._failure is not None:
            raise self._failure
        on_event(LoadProgress(done_bytes=1, total_bytes=2, elapsed_s=1.0))
        self.waiting.set()
        while not should_stop():
            time.sleep(0.002)
        raise Stopped("stopped")


def test_a_model_that_could_not_be_opened_is_opened_again_for_the_next_turn(hosts: Callable[..., tuple]) -> None:
    backend = _OpensLater(OSError(5, "gone"))
    host, heard = hosts(backend)
    heard.wait_for(OpenFailed)
    host.submit(Turn(number=1, request=REQUEST))
    heard.wait_for(TurnDone)
    assert backend.n_opened == 2


def test_loading_can_be_stopped_and_the_waiting_turn_with_it(hosts: Callable[..., tuple]) -> None:
    backend = _OpensLater(None)
    host, heard = hosts(backend)
    kept = Kept()
    assert backend.waiting.wait(10)
    host.stop()
    heard.wait_for(OpenFailed)
    host.submit(Turn(number=1, request=REQUEST, sink=kept))
    heard.wait_for(TurnDone)
    assert backend.n_opened == 2 and kept.finished == [""]


def test_only_the_newest_question_about_a_price_is_answered(hosts: Callable[..., tuple]) -> None:
    held, asked = threading.Event(), threading.Event()

    class Slow(ScriptedBackend):
        def measure(self, request: TurnRequest):  # type: ignore[no-untyped-def]
            asked.set()
            held.wait(10)
            return super().measure(request)

    host, heard = hosts(Slow())
    host.measure(1, REQUEST)
    assert asked.wait(10)
    for ticket in (2, 3, 4):
        host.measure(ticket, REQUEST)
    held.set()
    heard.wait(lambda events: any(isinstance(e, Measured) and e.ticket == 4 for e in events))
    assert [event.ticket for event in heard.events if isinstance(event, Measured)] == [1, 4]


def test_a_price_is_told_while_a_turn_runs(hosts: Callable[..., tuple]) -> None:
    go = threading.Event()

    def before_each() -> None:
        go.wait(10)

    host, heard = hosts(ScriptedBackend([turn_done()], before_each=before_each))
    host.submit(Turn(number=1, request=REQUEST))
    heard.wait_for(TurnBegan)
    host.measure(1, REQUEST)
    heard.wait_for(Measured)
    assert not any(isinstance(event, TurnDone) for event in heard.events)
    go.set()


def test_idle_time_warms_once_and_gives_way(hosts: Callable[..., tuple]) -> None:
    class Warm(ScriptedBackend):
        def warm(self, should_stop: Callable[[], bool]) -> int:
            while not should_stop():
                time.sleep(0.002)
            return 5

    host, heard = hosts(Warm([turn_done()]), idle_s=0.01)
    heard.wait_for(Warming)
    host.submit(Turn(number=1, request=REQUEST))
    heard.wait_for(TurnDone)
    events = heard.events
    assert events.index(Warmed(n_experts=5)) < next(i for i, e in enumerate(events) if isinstance(e, TurnBegan))


def test_another_model_is_opened_after_the_first_was_closed(hosts: Callable[..., tuple], tmp_path: Path) -> None:
    first, second = ScriptedBackend(), ScriptedBackend([turn_done()])
    host, heard = hosts(first)
    heard.wait_for(Opened)
    host.reopen(lambda: second)
    host.submit(Turn(number=1, request=REQUEST))
    heard.wait_for(TurnDone)
    assert first.closed and second.opened
