"""A turn stopped at random moments, in each of the things it does, and gone on with: nothing of it may show.

A moment is a look at `should_stop` (loading, prefill, decode, draft, verify), or a read of a drive that hangs until the
turn has come back. Usage: python -m tests.engine.stop_matrix [MOMENTS]     (100; prints what was stopped and how fast)
"""

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from engine.config import load_config
from engine.conversation import Conversations
from engine.draft.drafter import make_drafter
from engine.draft.settings import DraftSettings
from engine.errors import Stopped
from engine.events import TextDelta, TokenDrawn, TurnDone
from engine.model import Model
from engine.prompt import AssistantMessage, UserMessage, render
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.streams import StreamSettings
from engine.tokens import ChatTokenizer
from storage.checkpoint import Checkpoint
from storage.replica_files import ReplicaFiles
from storage.syscalls import Syscalls
from tests.geometries import CASES
from tests.maker import make

QUESTION = UserMessage(parts=("what draws the water up through the rock, and why does it rise so slowly?",))
MAX_TOKENS = 10
PATIENCE_S = 20.0
"""Far beyond any layer of the small model on a busy machine: what takes longer hangs."""


class HangingDrive(Syscalls):
    """A drive of which one read hangs from when it begins until `let`."""

    def __init__(self) -> None:
        self.n_reads = 0
        self.hang_at = 0
        """Which read, counted from 1; 0 is none."""
        self.hanging = threading.Event()
        self.hung_s = 0.0
        """When it began to."""
        self._let = threading.Event()
        self._lock = threading.Lock()

    def arm(self, hang_at: int) -> None:
        """Count anew."""
        self.n_reads, self.hang_at = 0, hang_at
        self.hanging.clear()
        self._let.clear()

    def let(self) -> None:
        """End the read that hangs; none does any more."""
        self.hang_at = 0
        self._let.set()

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The real one, sooner or later."""
        with self._lock:
            self.n_reads += 1
            hangs = self.n_reads == self.hang_at
        if hangs:
            self.hung_s = time.monotonic()
            self.hanging.set()
            self._let.wait()
        return super().pread(fd, target, offset)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a stop is asked for: at the n-th look, or when the n-th read hangs."""

    loading: bool
    reading: bool
    number: int


class Bench:
    """A small model with drafts on a drive that can hang, next to no expert in memory, and its undisturbed turn."""

    def __init__(self, folder: Path, drive: HangingDrive, checkpoint: Checkpoint, sampling: SamplerSettings) -> None:
        self.folder = folder
        self.drive = drive
        self.checkpoint = checkpoint
        self.config = load_config(folder).config
        self.tokenizer = ChatTokenizer.load(folder)
        self.sampling = sampling
        self.where: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.n_looks = self.n_loading_looks = self.n_reads = self.n_loading_reads = 0
        self.whole: tuple[int, ...] = ()

    def open(self, should_stop: "Stop") -> Model:
        """Open the model. Raises: Stopped."""
        streams = StreamSettings(slots_per_layer=1, spare_slots=0, cache_rows=0, io="buffered")
        return Model.open(self.checkpoint, self.config, streams=streams, drafts=True, should_stop=should_stop)

    def conversations(self, model: Model) -> Conversations:
        """No states kept yet."""
        drafter = make_drafter(model, DraftSettings(mode="on"))
        return Conversations(model, self.tokenizer, context_tokens=512, chunk_tokens=24, drafter=drafter)

    def turn(
        self, chat: Conversations, begun: tuple[int, ...], should_stop: "Stop"
    ) -> tuple[tuple[int, ...], TurnDone]:
        """What a turn draws, and its end."""
        messages: tuple[UserMessage | AssistantMessage, ...] = (QUESTION,)
        if begun:
            text = self.text(begun)
            messages = (QUESTION, AssistantMessage(text=text, ids=begun, prefix=True))
        prompt = render(self.tokenizer, messages, thinking=False)
        assert prompt.n_begun == len(begun)
        sampler = Sampler(self.sampling)
        drawn, done = [], None
        for event in chat.answer(
            prompt, sampler=sampler, max_tokens=MAX_TOKENS - len(begun), stop_ids=(), should_stop=should_stop
        ):
            if isinstance(event, TokenDrawn):
                drawn.append(event.token)
            done = event if isinstance(event, TurnDone) else done
        assert done is not None
        return tuple(drawn), done

    def text(self, ids: tuple[int, ...]) -> str:
        """What a turn shows of ids."""
        from engine.reply import ReplyParser

        parser = ReplyParser(self.tokenizer, thinking=False)
        deltas = [delta for token in ids for delta in parser.push(token)] + parser.finish()
        return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))

    def undisturbed(self, model: Model) -> None:
        """Measure how many moments a turn has, and what it says."""
        self.drive.arm(0)
        stop = Stop(self.drive)
        self.whole, done = self.turn(self.conversations(model), (), stop)
        assert done.reason == "length" and len(self.whole) == MAX_TOKENS
        self.n_looks, self.n_reads = stop.n_looks, self.drive.n_reads

    def check(self, model: Model, moment: Moment) -> None:
        """Stop a turn of a new conversation at a moment, go on with it until it ends, and compare."""
        chat, stop = self.conversations(model), Stop(self.drive, moment)
        self.drive.arm(moment.number if moment.reading else 0)
        drawn, done = self.turn(chat, (), stop)
        self.drive.let()
        if done.reason == "stopped":
            self._note(moment, stop)
        else:
            self.where["too late"] += 1  # reads in flight side by side come in no fixed number
        assert drawn == self.whole[: len(drawn)]
        if len(drawn) < MAX_TOKENS:
            more, done = self.turn(chat, drawn, Stop(self.drive))
            assert done.reason == "length" and drawn + more == self.whole, f"{moment}: {drawn} + {more}"

    def check_loading(self, moment: Moment) -> None:
        """Stop the loading at a moment; afterwards it loads."""
        stop = Stop(self.drive, moment)
        self.drive.arm(moment.number if moment.reading else 0)
        try:
            self.open(stop).close()
            self.where["too late"] += 1
        except Stopped:
            self._note(moment, stop)
        finally:
            self.drive.let()

    def _note(self, moment: Moment, stop: "Stop") -> None:
        """A stop came back: how fast, and out of what. Raises: AssertionError when it hung."""
        took_s = time.monotonic() - stop.asked_s
        assert took_s < PATIENCE_S, f"{moment}: came back after {took_s:.1f} s"
        self.slowest_s = max(self.slowest_s, took_s)
        self.where[f"{'a hanging read' if moment.reading else 'a look'} in {stop.work}"] += 1


_WORK = {"weights.py": "loading", "head.py": "a draft", "verify.py": "a verify"}
"""By the innermost of these files on the stack; a forward outside them is of a prompt or of a plain token."""


class Stop:
    """Asks for a stop at a moment, or never. Counts how often it was looked at."""

    def __init__(self, drive: HangingDrive, moment: Moment | None = None) -> None:
        self.n_looks = 0
        self.asked_s = 0.0
        self.work = ""
        self._drive = drive
        self._moment = moment

    def __call__(self) -> bool:
        self.n_looks += 1
        if self._moment is None:
            return False
        due = self._drive.hanging.is_set() if self._moment.reading else self.n_looks >= self._moment.number
        if due and not self.asked_s:
            self.asked_s = self._drive.hung_s if self._moment.reading else time.monotonic()
            self.work = _work_of(sys._getframe())
        return due


def _work_of(frame: FrameType | None) -> str:
    """What the program does there."""
    files = []
    while frame is not None:
        files.append(Path(frame.f_code.co_filename).name)
        frame = frame.f_back
    return next((_WORK[name] for name in files if name in _WORK), "a prompt, or between two steps")


@contextmanager
def bench(folder: Path, sampling: SamplerSettings) -> Iterator[tuple[Bench, Model]]:
    """A bench and its open model; every file of the model is on the drive that can hang."""
    make(folder, CASES["released-roles"].geometry, seed=2)
    drive = HangingDrive()
    real = ReplicaFiles.open.__func__  # type: ignore[attr-defined]
    before = ReplicaFiles.__dict__["open"]
    ReplicaFiles.open = classmethod(  # type: ignore[method-assign, assignment]
        lambda cls, *arguments, **options: real(cls, *arguments, **{**options, "system": drive})
    )
    try:
        with ExitStack() as undo:
            checkpoint = undo.enter_context(Checkpoint.open(folder, system=drive))
            place = Bench(folder, drive, checkpoint, sampling)
            drive.arm(0)
            stop = Stop(drive)
            model = undo.enter_context(closing(place.open(stop)))
            place.n_loading_looks, place.n_loading_reads = stop.n_looks, drive.n_reads
            undo.callback(drive.let)
            place.undisturbed(model)
            yield place, model
    finally:
        ReplicaFiles.open = before  # type: ignore[method-assign]


def moments(place: Bench, n: int, seed: int) -> Iterator[Moment]:
    """Random moments: of a turn, three in four, and of the loading; half of them looks and half of them reads."""
    draw = random.Random(seed)
    for number in range(n):
        loading, reading = number % 4 == 3, (number + number // 4) % 2 == 1
        most = (
            (place.n_loading_reads if reading else place.n_loading_looks)
            if loading
            else (place.n_reads if reading else place.n_looks)
        )
        yield Moment(loading, reading, draw.randint(1, most))


def run(folder: Path, n: int, *, seed: int = 0, sampling: SamplerSettings | None = None) -> Bench:
    """Stop at `n` random moments; the bench with what came of it. Raises: AssertionError."""
    with bench(folder, sampling or SamplerSettings(temperature=1.2, seed=3)) as (place, model):
        for moment in moments(place, n, seed):
            if moment.loading:
                place.check_loading(moment)
            else:
                place.check(model, moment)
    return place


def main() -> None:
    """Run the whole and print the figures."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        place = run(Path(folder) / "model", n)
    print(f"{n} moments of {place.n_looks} looks and {place.n_reads} reads of a turn, and of the loading")
    for where, count in sorted(place.where.items()):
        print(f"  {count:>3} {where}")
    print(f"the slowest stop took {place.slowest_s * 1000:.0f} ms; every reply went on as if it had not been stopped")


if __name__ == "__main__":
    main()
