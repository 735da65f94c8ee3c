"""Tokens a second with the screen on and off: `python -m tests.app.tui.screen_rate MODEL [--seconds S] [--ram SIZE]`.

MODEL is any checkpoint folder, the bundled demo or one of gigabytes. The chat runs in a terminal that is read, and a
reply is written and saved all the while. It is one short reply over and over, drawn with the same seed, so that each
round of it asks the engine for exactly the same work; in every other round the screen's thread sleeps, timers and all.
Each round with it is compared with the rounds before and after, in the same process, and the median of all these ratios
counts, with the interval it lies in. Other programs disturb both kinds alike, and what they take is counted: when there
are enough rounds in which they took little, only those are used.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, comb
from pathlib import Path

import psutil

from app.backends.base import Backend, TurnRequest
from app.commands.ask import make_local
from app.model_choice import ModelChoice
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.settings import Settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from app.tui import app as app_module
from app.tui.app import ArtesianApp
from engine.draft.settings import DraftMode, DraftSettings
from engine.events import Event, TokenDrawn, TurnDone
from engine.sampler_settings import SamplerSettings
from tests.app.tui.latency import BOX, Terminal

PROMISED = 0.97
ROUND_S = 1.0
"""A round is as many tokens as come in this time; with the screen on it is painted twice at least."""
LEAST_TOKENS = 8
UNSETTLED = 4
"""So many rounds at the beginning read experts that stay in memory from then on."""
QUIET_CORES = 0.25
"""Other programs that take less are no disturbance."""
LEAST_QUIET = 12
"""So many undisturbed ratios are enough to leave the others out."""


@dataclass(frozen=True, slots=True)
class Round:
    """The reply, written once more."""

    shows: bool
    rate: float
    """Tokens a second."""
    others: float
    """Cores that other programs took."""
    painting: float
    """Share of the time in which the screen's thread computed."""

    @classmethod
    def parse(cls, line: str) -> "Round":
        """As the child writes it."""
        shows, rate, others, painting = line.split()
        return cls(shows == "on", float(rate), float(others), float(painting))


class Switch:
    """Turns the screen off and on, and notes how fast the tokens come."""

    def __init__(self, results: Path) -> None:
        self.shows = threading.Event()
        self.shows.set()
        self.rest: Callable[[], object] = lambda: None
        """Asks the screen's thread to sleep until it shows again."""
        self.screen_clock: int | None = None
        self.n_tokens = 0
        """Of the round, those that another one came before."""
        self.seconds = 0.0
        self._results = results
        self._last_s: float | None = None
        self._marks = self._read_clocks()

    def begin(self) -> None:
        """A round begins."""
        self.n_tokens, self.seconds = 0, 0.0
        self.pause()
        self._marks = self._read_clocks()

    def token(self) -> None:
        """One was drawn."""
        now = time.perf_counter()
        if self._last_s is not None:
            self.n_tokens += 1
            self.seconds += now - self._last_s
        self._last_s = now

    def pause(self) -> None:
        """What comes now is no decoding."""
        self._last_s = None

    def end(self) -> None:
        """The round is over: note it, and turn the screen off or on."""
        wall, busy, ours, screen = (
            now - then for now, then in zip(self._read_clocks(), self._marks, strict=True)
        )  # fmt: skip
        kind = "on" if self.shows.is_set() else "off"
        with self._results.open("a") as file:
            file.write(f"{kind} {self.n_tokens / self.seconds} {max(busy - ours, 0.0) / wall} {screen / wall}\n")
        if self.shows.is_set():
            self.shows.clear()
            self.rest()
        else:
            self.shows.set()

    def _read_clocks(self) -> tuple[float, float, float, float]:
        """Seconds by the clock, of all cores together, of this process, and of the screen's thread."""
        times = psutil.cpu_times()
        screen_s = 0.0 if self.screen_clock is None else time.clock_gettime(self.screen_clock)
        busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        return time.perf_counter(), busy_s, time.process_time(), screen_s


class Endless:
    """A backend that writes its reply over and over, in rounds of about a second."""

    def __init__(self, backend: Backend, switch: Switch) -> None:
        self._backend = backend
        self._switch = switch

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """What the engine gives, but its end."""
        switch = self._switch

        def is_enough() -> bool:
            return should_stop() or (switch.seconds >= ROUND_S and switch.n_tokens >= LEAST_TOKENS)

        switch.begin()
        yield from self._reply(request, is_enough)
        if switch.seconds >= ROUND_S:
            n_replies, request = 1, replace(request, max_tokens=switch.n_tokens + 1)
        else:
            n_replies = ceil(ROUND_S / switch.seconds)
        while not should_stop():
            switch.begin()
            for _ in range(n_replies):
                yield from self._reply(request, should_stop)
            switch.end()

    def _reply(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        self._switch.pause()
        for event in self._backend.generate(request, should_stop):
            if isinstance(event, TokenDrawn):
                self._switch.token()
            if not isinstance(event, TurnDone):
                yield event


class RestingApp(ArtesianApp):
    """The chat, all of which sleeps while the switch is off."""

    CSS_PATH = Path(app_module.__file__).with_name("artesian.tcss")
    switch: Switch

    def drain(self) -> float:
        """As the chat does."""
        if self.switch.screen_clock is None:
            self.switch.screen_clock = time.pthread_getcpuclockid(threading.get_ident())
            self.switch.rest = partial(asyncio.get_running_loop().call_soon_threadsafe, self._rest)
        return super().drain()

    def _rest(self) -> None:
        """Let the loop stand still. What was written meanwhile is not shown: no reply asks for two rounds at once."""
        self.switch.shows.wait()
        self.host.mailbox.take()


def child(words: argparse.Namespace) -> None:
    """The chat on this terminal."""
    folder = Path(words.child)
    choice = ModelChoice(folder=words.model, origin="--model", is_demo=False)
    settings = Settings()
    how = make_reading(ReadingOptions(), settings, choice)
    wishes = make_wishes(MemoryOptions(ram=words.ram), settings, how)
    local = make_local(choice, "exact", "published", how, wishes, DraftSettings(mode=words.draft))
    switch = Switch(folder / "rounds")
    backend: Backend = Endless(local, switch)  # type: ignore[assignment]

    def session_of(transcript: Transcript, _: ModelChoice) -> ChatSession:
        return ChatSession(transcript, sampling=SamplerSettings(temperature=1.0, seed=1))

    app = RestingApp(
        backend_factory=lambda chosen: backend, choice=choice, store=TranscriptStore(folder / "transcripts"),
        settings=settings, session_of=session_of, keeps_drafts=False,
    )  # fmt: skip
    app.switch = switch
    app.run()
    app.close()


def measure(words: argparse.Namespace) -> list[Round]:
    """The rounds of a reply that went on for so long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        results = folder / "rounds"
        ram = ["--ram", words.ram] if words.ram else []
        options = [str(words.model), "--draft", words.draft, *ram, "--child", name]
        terminal = Terminal([sys.executable, "-m", "tests.app.tui.screen_rate", *options], folder)
        try:
            terminal.wait_for(BOX)
            terminal.send("go on\r")
            end = time.monotonic() + words.seconds
            while time.monotonic() < end:
                terminal.drain(0.1)
        finally:
            terminal.close()
        return [Round.parse(line) for line in results.read_text().splitlines()] if results.exists() else []


def ratios_of(rounds: Sequence[Round]) -> list[tuple[float, float]]:
    """Of each round with the screen on: its rate over that of its neighbours, and the most that others took then."""
    return [
        (on.rate / ((before.rate + after.rate) / 2), max(before.others, on.others, after.others))
        for before, on, after in zip(rounds, rounds[1:], rounds[2:], strict=False)
        if on.shows
    ]


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The closest two of the values between which their true median lies with this confidence.

    Source: how many of n values lie below the median is binomial with a half.
    """
    ordered, n = sorted(values), len(values)
    rank = 0
    while rank + 1 < n / 2 and 2 * sum(comb(n, k) for k in range(rank + 2)) / 2**n <= 1 - confidence:
        rank += 1
    return ordered[rank], ordered[n - 1 - rank]


def main() -> int:
    """Measure, or be the child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the reply goes on")
    parser.add_argument("--ram", help="most memory, as with `artesian chat`")
    drafts: tuple[DraftMode, ...] = ("auto", "on", "off")
    parser.add_argument(
        "--draft", choices=drafts, default="off", help="with auto, rounds differ by what was measured to pay"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.child:
        child(words)
        return 0
    rounds = measure(words)[UNSETTLED:]
    found = ratios_of(rounds)
    if not found:
        print("no round was finished: it takes longer", file=sys.stderr)
        return 2
    for shows in (False, True):
        these = [one for one in rounds if one.shows is shows]
        rates = [one.rate for one in these]
        print(f"screen {'on ' if shows else 'off'} median {statistics.median(rates):.2f} tokens/s, "
              f"{min(rates):.2f} to {max(rates):.2f} in {len(rates)} rounds; its thread computed "
              f"{statistics.mean(one.painting for one in these):.2%} of the time")  # fmt: skip
    quiet = [ratio for ratio, others in found if others < QUIET_CORES]
    used = quiet if len(quiet) >= LEAST_QUIET else [ratio for ratio, _ in found]
    taken = statistics.median(one.others for one in rounds)
    print(f"other programs took {taken:.2f} cores; {len(quiet)} of {len(found)} comparisons were undisturbed")
    share, (low, high) = statistics.median(used), interval(used)
    print(f"with the screen on {share:.1%} of the rate with it off, median of {len(used)}, 95% sure between "
          f"{low:.1%} and {high:.1%}; promised are {PROMISED:.0%}")  # fmt: skip
    return 0 if share >= PROMISED else 1


if __name__ == "__main__":
    sys.exit(main())
