"""How long forwards take, phase by phase, beside the least that this machine's memory and drives allow.

The one thing a reader would get wrong: the floor is of the same minute. Memory and drives are measured before and after
every run, because what they give moves with whatever else the machine does; a ratio is of one run to the floor around
it, and medians are taken of ratios.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from engine.errors import Stopped
from engine.kernels import native
from engine.kernels.calls import CallTime, timed_calls
from engine.model import Model, ShouldStop, never
from engine.phases import PhaseTotals
from engine.state import State

ArmName = Literal["prefill", "prefill in turn", "blocks of 32", "decode in memory", "decode"]

ARMS: tuple[ArmName, ...] = ("prefill", "prefill in turn", "blocks of 32", "decode in memory", "decode")
"""The prompt from cold slots, a wave of experts read while one is multiplied; the same, reading and multiplying in
turn; 32 positions behind it in one forward; a decode step whose experts are all in memory; decode steps as they come.
"""

BLOCK_TOKENS = 32
_MEMORY_BYTES = 256 << 20
"""Read to see what memory gives; last caches hold up to some 100 MB."""
_RATE_EXPERTS = 32
"""Read to see what the drives give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One arm, once."""

    n_tokens: int
    seconds: float
    phases: PhaseTotals
    native_s: float
    """Inside the native library; 0 on the torch path."""
    wait_s: float
    """Waiting for experts and rows."""
    memory_bytes_s: float
    """What memory gave around the run."""
    drive_bytes_s: float
    """What the drives gave around the run."""

    @property
    def read_bytes(self) -> int:
        """Experts read from the drives."""
        return self.phases.bytes["expert_reads"]

    @property
    def weights_bytes(self) -> int:
        """Stored weights that the arithmetic went through, once a forward."""
        return sum(self.phases.bytes.values()) - self.read_bytes

    @property
    def floor_s(self) -> float:
        """The least that these bytes allow: weights through memory, then what was read from the drives."""
        return self.weights_bytes / self.memory_bytes_s + self.read_bytes / self.drive_bytes_s

    @property
    def outside_s(self) -> float:
        """Neither in the native library nor waiting for the drives: Python, and torch."""
        return max(0.0, self.seconds - self.native_s - self.wait_s)


@dataclass(slots=True, kw_only=True)
class Arm:
    """One way of running the model, and its runs of the complete rounds."""

    name: ArmName
    runs: list[Run] = field(default_factory=list)


class ForwardBench:
    """Rounds of all arms, one run each, so that whatever else the machine does meets them alike.

    Args:
        prompt: Ids of the prompt; its last ones are decoded and taken as the block behind it.
        chunk_tokens: Positions in one forward of the prefill.
        compare: Whether to run the two other ways to prefill as well.
        n_steps: Steps of each decode arm in a round.

    Attributes:
        arms: Results so far.
        n_rounds: Complete rounds.
    """

    def __init__(
        self, model: Model, prompt: Sequence[int], *, chunk_tokens: int, compare: bool = False, n_steps: int = 6
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._chunk_tokens = chunk_tokens
        self._n_steps = n_steps
        self._memory = torch.ones(_MEMORY_BYTES // 4)
        self._random = random.Random(0)
        self._spent = CallTime()
        others = ("prefill in turn", "blocks of 32")
        self.arms = [Arm(name=name) for name in ARMS if compare or name not in others]
        self.n_rounds = 0

    def round(self, should_stop: ShouldStop = never, on_arm: Callable[[], None] = lambda: None) -> bool:
        """Run every arm once; `on_arm` is told of each that ended. False when it was stopped: nothing of it counts.

        Raises: what a forward raises.
        """
        state = self._model.new_state()
        runs: list[tuple[Arm, Run]] = []
        # Every other round the ways to prefill change places, so that neither always comes first.
        prefills = [arm for arm in self.arms if arm.name.startswith("prefill")]
        rest = [arm for arm in self.arms if arm not in prefills]
        try:
            with timed_calls(native()) as self._spent:
                for arm in (*(prefills if self.n_rounds % 2 == 0 else reversed(prefills)), *rest):
                    if arm in prefills:
                        state = self._model.new_state()
                    runs.append((arm, self._run(arm.name, state, should_stop)))
                    on_arm()
        except Stopped:
            return False
        finally:
            self._model.streams.experts.waves_ahead = 1
        for arm, run in runs:
            arm.runs.append(run)
        self.n_rounds += 1
        return True

    def _run(self, name: ArmName, state: State, should_stop: ShouldStop) -> Run:
        model, experts, prompt = self._model, self._model.streams.experts, self._prompt
        watch = _Watch(model, self._spent)
        memory, drive = [self.memory_rate()], [self.drive_rate()]
        match name:
            case "prefill" | "prefill in turn":
                experts.clear()
                experts.waves_ahead = 1 if name == "prefill" else 0
                with watch.on(len(prompt)):
                    for first in range(0, len(prompt), self._chunk_tokens):
                        chunk = prompt[first : first + self._chunk_tokens]
                        state.commit(model.forward(state, chunk, "prefill", should_stop=should_stop).step)
                experts.waves_ahead = 1
            case "blocks of 32":
                block = prompt[:BLOCK_TOKENS]
                with watch.on(len(block)):
                    model.forward(state, block, "prefill", should_stop=should_stop)
            case "decode in memory":
                # Nothing is committed: the first of two equal steps brings its experts in, the second is measured.
                for token in prompt[-self._n_steps :]:
                    model.forward(state, [token], "decode", should_stop=should_stop)
                    with watch.on(1):
                        model.forward(state, [token], "decode", should_stop=should_stop)
            case "decode":
                with watch.on(min(self._n_steps, len(prompt))):
                    for token in prompt[: self._n_steps]:
                        state.commit(model.forward(state, [token], "decode", should_stop=should_stop).step)
        memory.append(self.memory_rate())
        drive.append(self.drive_rate())
        return watch.run(memory_bytes_s=sum(memory) / 2, drive_bytes_s=sum(drive) / 2)

    def memory_rate(self) -> float:
        """Bytes a second of reading a large array once, with all threads."""
        kernels = native()
        before = time.perf_counter()
        if kernels is not None:
            kernels.read(self._memory)
        else:
            self._memory.sum()
        return self._memory.nbytes / (time.perf_counter() - before)

    def drive_rate(self) -> float:
        """Bytes a second of reading experts drawn at random, with nothing beside it."""
        return self._model.streams.read_rate(_RATE_EXPERTS, self._random)


class _Watch:
    """Adds up what happens in a model while it is on."""

    def __init__(self, model: Model, spent: CallTime) -> None:
        self._model = model
        self._spent = spent
        self._n_tokens = 0
        self._seconds = self._native_s = self._wait_s = 0.0
        self._phases = model.clock.totals().since(model.clock.totals())  # nothing yet

    @contextmanager
    def on(self, n_tokens: int) -> Iterator[None]:
        """Watch a part of a run that takes `n_tokens` forward."""
        phases, native_s = self._model.clock.totals(), self._spent.seconds
        wait_s = self._model.streams.figures().wait_s
        begun = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begun
        self._phases = self._phases.plus(self._model.clock.totals().since(phases))
        self._native_s += self._spent.seconds - native_s
        self._wait_s += self._model.streams.figures().wait_s - wait_s
        self._n_tokens += n_tokens

    def run(self, *, memory_bytes_s: float, drive_bytes_s: float) -> Run:
        """Everything watched, beside what the machine gave around it."""
        return Run(
            n_tokens=self._n_tokens,
            seconds=self._seconds,
            phases=self._phases,
            native_s=self._native_s,
            wait_s=self._wait_s,
            memory_bytes_s=memory_bytes_s,
            drive_bytes_s=drive_bytes_s,
        )
