"""Tokens a second with the screen on and off: `python -m tests.app.tui.screen_rate MODEL [SECONDS]`.

The chat runs in a terminal that is read, and a reply is written and saved all the while. Every second the screen rests
or goes on: each second with it is compared with the seconds before and after, in the same process, and the median of
all these ratios counts, with the interval it lies in. Other programs disturb both kinds
alike, and what they take is counted: when there are enough seconds in which they took little, only those are used.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
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
from engine.events import Event, TokenDrawn, TurnDone
from engine.sampler_settings import SamplerSettings
from tests.app.tui.latency import BOX, Terminal

PROMISED = 0.97
SLICE_S = 1.0
SETTLE_S = 0.3
"""What follows a change is not counted: a second's text is then shown at once, which no reply asks for."""
QUIET_CORES = 0.25
"""Other programs that take less are no disturbance."""
LEAST_QUIET = 12
"""So many undisturbed ratios are enough to leave the others out."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A second of the reply."""

    shows: bool
    rate: float
    """Tokens a second."""
    others: float
    """Cores that other programs took."""

    @classmethod
    def parse(cls, line: str) -> "Slice":
        """As the child writes it."""
        shows, rate, others = line.split()
        return cls(shows == "on", float(rate), float(others))


class Switch:
    """Turns the screen off and on, and notes how fast the tokens come."""

    def __init__(self, results: Path) -> None:
        self.shows = True
        self._results = results
        self._n_tokens = 0
        self._seconds = -SETTLE_S
        self._last_s: float | None = None
        self._marks = self._cpu()

    def token(self) -> None:
        """One was drawn."""
        now = time.perf_counter()
        if self._last_s is not None:
            self._n_tokens += self._seconds >= 0
            self._seconds += now - self._last_s
        self._last_s = now
        if self._seconds >= SLICE_S:
            self._turn()

    def pause(self) -> None:
        """What comes now is no decoding."""
        self._last_s = None

    def _turn(self) -> None:
        before, self._marks = self._marks, self._cpu()
        wall, busy, ours = (now - then for now, then in zip(self._marks, before, strict=True))
        with self._results.open("a") as file:
            kind = "on" if self.shows else "off"
            file.write(f"{kind} {self._n_tokens / self._seconds} {max(busy - ours, 0.0) / wall}\n")
        self.shows = not self.shows
        self._n_tokens, self._seconds = 0, -SETTLE_S

    def _cpu(self) -> tuple[float, float, float]:
        """Seconds by the clock, of all cores together, and of this process."""
        times = psutil.cpu_times()
        return time.perf_counter(), sum(times) - times.idle - getattr(times, "iowait", 0.0), time.process_time()


class Endless:
    """A backend whose reply begins anew whenever the model ends it."""

    def __init__(self, backend: Backend, switch: Switch) -> None:
        self._backend = backend
        self._switch = switch

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """What the engine gives, but its end."""
        end: Event | None = None
        while end is None or not should_stop():
            self._switch.pause()
            for event in self._backend.generate(request, should_stop):
                if isinstance(event, TokenDrawn):
                    self._switch.token()
                if isinstance(event, TurnDone):
                    end = event
                else:
                    yield event
        yield end


class RestingApp(ArtesianApp):
    """The chat, which shows nothing of the reply while the switch is off."""

    CSS_PATH = Path(app_module.__file__).with_name("artesian.tcss")
    switch: Switch

    def drain(self) -> None:
        """As the chat does, or not at all."""
        if self.switch.shows:
            super().drain()


def child(model: Path, folder: Path) -> None:
    """The chat on this terminal."""
    choice = ModelChoice(folder=model, origin="--model", is_demo=False)
    settings = Settings()
    how = make_reading(ReadingOptions(), settings, choice)
    local = make_local(choice, "exact", "published", how, make_wishes(MemoryOptions(), settings, how))
    switch = Switch(folder / "slices")
    backend: Backend = Endless(local, switch)  # type: ignore[assignment]

    def session_of(transcript: Transcript) -> ChatSession:
        return ChatSession(transcript, sampling=SamplerSettings(temperature=0.0, seed=1))

    app = RestingApp(
        backend_factory=lambda chosen: backend, choice=choice, store=TranscriptStore(folder / "transcripts"),
        settings=settings, session_of=session_of, keeps_drafts=False,
    )  # fmt: skip
    app.switch = switch
    app.run()
    app.close()


def measure(model: Path, seconds: float) -> list[Slice]:
    """What came of a reply that went on for so long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        results = folder / "slices"
        command = [sys.executable, "-m", "tests.app.tui.screen_rate", str(model), "--child", name]
        terminal = Terminal(command, folder)
        try:
            terminal.wait_for(BOX)
            terminal.send("go on\r")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                terminal.drain(0.1)
        finally:
            terminal.close()
        return [Slice.parse(line) for line in results.read_text().splitlines()] if results.exists() else []


def ratios_of(slices: Sequence[Slice]) -> list[tuple[float, float]]:
    """Of each second with the screen on: its rate over that of its neighbours, and the most that others took then."""
    return [
        (on.rate / ((before.rate + after.rate) / 2), max(before.others, on.others, after.others))
        for before, on, after in zip(slices, slices[1:], slices[2:], strict=False)
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
    words = sys.argv[1:]
    model = Path(words[0])
    if "--child" in words:
        child(model, Path(words[words.index("--child") + 1]))
        return 0
    slices = measure(model, float(words[1]) if len(words) > 1 else 120.0)[2:]  # it begins with laying out
    for shows in (False, True):
        rates = [one.rate for one in slices if one.shows is shows]
        print(f"screen {'on ' if shows else 'off'} median {statistics.median(rates):.1f} tokens/s, "
              f"{min(rates):.1f} to {max(rates):.1f} in {len(rates)} seconds")  # fmt: skip
    found = ratios_of(slices)
    quiet = [ratio for ratio, others in found if others < QUIET_CORES]
    used = quiet if len(quiet) >= LEAST_QUIET else [ratio for ratio, _ in found]
    taken = statistics.median(one.others for one in slices)
    print(f"other programs took {taken:.2f} cores; {len(quiet)} of {len(found)} comparisons were undisturbed")
    share, (low, high) = statistics.median(used), interval(used)
    print(f"with the screen on {share:.1%} of the rate with it off, median of {len(used)}, 95% sure between "
          f"{low:.1%} and {high:.1%}; promised are {PROMISED:.0%}")  # fmt: skip
    return 0 if share >= PROMISED else 1


if __name__ == "__main__":
    sys.exit(main())
