"""A run's folder: what a training needs to go on after a stop, and how many steps fit into the time it is given.

The schedule counts steps, not seconds. How many fit is worked out from the measured speed and corrected as the run
goes on, as a machine that does other things too is not always equally fast; `--steps` fixes it, and then a run that was
stopped goes on as if it had not been and gives the same weights on the same machine. The one thing a reader would get
wrong: everything random in a step follows from seed and step alone.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assets.demo_recipe.documents import Epochs
from assets.demo_recipe.errors import RecipeError
from assets.demo_recipe.optimise import Batch, batches

_UNTIMED_STEPS = 24
"""At the start: functions are compiled and shapes met for the first time."""
_TIMED_STEPS = 24
_SPEED_SMOOTHING = 0.01
"""Of the newest step's time in the mean that the number of steps is corrected by."""
_UNPLANNED_STEPS = 20_000
"""The length of the run until it is known: the rate rises slowly."""
_SAVE_EVERY_S = 120.0
_SAY_EVERY_S = 30.0


def say(text: str) -> None:
    """A line of progress."""
    print(f"demo_recipe: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a training may be."""

    seconds: float
    """From the call on, earlier runs in the same folder not counted."""
    steps: int | None = None
    """Exactly so many steps instead."""


StepOf = Callable[[Batch, float, random.Random], float]
"""Batch, share of the steps done, and a source of chance -> loss. Does one step."""


class Training:
    """One training in a folder, step by step, saved as it goes."""

    def __init__(self, path: Path, module: nn.Module, optim: torch.optim.AdamW, epochs: Epochs, *, seed: int) -> None:
        """`path` is the file that holds the state."""
        self._path, self._module, self._optim, self._epochs, self._seed = path, module, optim, epochs, seed
        self._step = 0
        self._steps: int | None = None

    def run(self, step_of: StepOf, budget: Budget, *, positions: int, pad: int) -> int:
        """Train to the end, from where the file says; the steps that were done in all. Raises: RecipeError."""
        started = time.monotonic()
        self._restore()
        if budget.steps is not None and self._steps is None:
            self._steps = budget.steps
        timed_from, saved, said, mean, step_s = 0.0, started, started, 0.0, 0.0
        first = self._step
        number = 0
        skipped = 0
        while not self._done():
            rng = random.Random(f"{self._seed}-batches-{number}")
            for batch in batches(self._epochs.documents(number), positions, rng, pad):
                if skipped < first:
                    skipped += 1
                    continue
                if self._done():
                    break
                now = time.monotonic()
                since = self._step - first
                if since == _UNTIMED_STEPS:
                    timed_from = now
                if since == _UNTIMED_STEPS + _TIMED_STEPS:
                    step_s = (now - timed_from) / _TIMED_STEPS
                if step_s and budget.steps is None:
                    self._steps = self._step + max(int((budget.seconds - (now - started)) / step_s), 1)
                loss = self._one(step_of, batch)
                mean = loss if self._step == first + 1 else 0.98 * mean + 0.02 * loss
                began, now = now, time.monotonic()
                step_s += _SPEED_SMOOTHING * (now - began - step_s) if step_s else 0.0
                if now - said >= _SAY_EVERY_S:
                    said = now
                    length = f"{self._steps:,}, {step_s * 1e3:.0f} ms each" if self._steps else "?"
                    say(f"step {self._step:,} of {length}, epoch {number + 1}, loss {mean:.4f}")
                if now - saved >= _SAVE_EVERY_S and self._steps is not None:
                    saved = now
                    self.save()
            number += 1
        self.save()
        return self._step

    def _one(self, step_of: StepOf, batch: Batch) -> float:
        torch.manual_seed(self._seed * 1_000_003 + self._step)
        done = self._step / (_UNPLANNED_STEPS if self._steps is None else self._steps)
        loss = step_of(batch, done, random.Random(f"{self._seed}-step-{self._step}"))
        self._step += 1
        return loss

    def _done(self) -> bool:
        return self._steps is not None and self._step >= self._steps

    def save(self) -> None:
        """Write the state, in the place of the last one once it is whole."""
        state: dict[str, Any] = {"step": self._step, "steps": self._steps, "seed": self._seed}
        state |= {"module": self._module.state_dict(), "optimiser": self._optim.state_dict()}
        fresh = self._path.with_suffix(".new")
        torch.save(state, fresh)
        os.replace(fresh, self._path)  # noqa: PTH105

    def _restore(self) -> None:
        if not self._path.exists():
            return
        state: dict[str, Any] = torch.load(self._path, weights_only=True)
        if state["seed"] != self._seed:
            raise RecipeError(f"{self._path} was begun with seed {state['seed']}, not {self._seed}")
        self._step, self._steps = state["step"], state["steps"]
        self._module.load_state_dict(state["module"])
        self._optim.load_state_dict(state["optimiser"])
        say(f"{self._path.name}: going on at step {self._step:,} of {self._steps or 0:,}")
