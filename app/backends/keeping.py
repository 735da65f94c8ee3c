"""Keeps a run to its plan, and what is learnt from a turn for the next: rates, what was predicted and what happened.

Made by the backend that runs; nothing here knows how a token is made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.governor import Governor, Slots
from app.last_run import compare, save_run
from app.planning import Planned, gather_facts, plan_for
from app.rates import RateBook
from engine.device import measure_arithmetic
from engine.events import MemoryFigures, TurnDone, TurnStats
from engine.kernels import path, set_threads
from planner.facts import own_bytes, peak_bytes
from planner.footprint import Footprint
from planner.plan import Wishes
from storage.waves import Phase

LEAST_READ_BYTES = 200_000_000
"""A turn that read less from a drive says nothing of its rate."""


class Keeper:
    """The plan of one run and its keeping. For the thread that runs the model.

    Attributes:
        planned: The plan, with all it was made from.
    """

    def __init__(self, planned: Planned, book: RateBook, *, model: str, runs: Path | None) -> None:
        """`runs` is the file of `last_run`, or None to keep nothing."""
        self.planned = planned
        self._book = book
        self._model = model
        self._runs = runs
        self._governor: Governor | None = None
        self._warm = False

    @classmethod
    def plan(
        cls,
        sizes: Footprint,
        folders: Sequence[Path],
        wishes: Wishes,
        shares: Mapping[int, Sequence[float]],
        book: RateBook,
        *,
        runs: Path | None,
    ) -> "Keeper":
        """Plan for the machine as it is now, and set the threads that the plan says.

        Where rates are remembered, those of the arithmetic are measured on the first run. Raises: PlanError.
        """
        planned = plan_for(gather_facts(folders, book), sizes, wishes, shares)
        threads = planned.plan.threads
        set_threads(threads)
        if book.keeps and book.arithmetic(threads, path()) is None:
            rates = measure_arithmetic()
            book.note_arithmetic(threads, path(), rates)
            book.save()
            planned = replace(planned, facts=replace(planned.facts, rates=rates))
        return cls(planned, book, model=str(folders[0]), runs=runs)

    def watch(self, slots: Slots, say: Callable[[str], None]) -> None:
        """Give slots back when memory runs short, from now on."""
        sizes = self.planned.footprint
        self._governor = Governor(slots, self.planned.plan, sizes.slot_bytes(1), say=say)

    def record(self, layer: int, experts: Sequence[int], phase: Phase) -> None:
        """A request for experts is about to be served: time to look at the machine's memory."""
        self.tick()

    def tick(self) -> None:
        """Look at the machine's memory, if it is time."""
        if self._governor is not None:
            self._governor.tick()

    def finish(self, done: TurnDone) -> TurnDone:
        """The turn's last event with its memory figures; learns from it."""
        plan = self.planned.plan
        memory = MemoryFigures(
            ceiling_bytes=plan.ceiling_bytes,
            planned_bytes=plan.planned_bytes,
            anonymous_bytes=own_bytes(),
            peak_bytes=peak_bytes(),
        )
        self._learn(done.stats, memory)
        return replace(done, stats=replace(done.stats, memory=memory))

    def _learn(self, stats: TurnStats, memory: MemoryFigures) -> None:
        for drive in stats.drives:
            if drive.payload_bytes >= LEAST_READ_BYTES and drive.rate_bytes_s > 0:
                self._book.note_drive(drive.drive, drive.rate_bytes_s)
        if self._runs is not None:
            save_run(self._runs, compare(self.planned, stats, memory, warm=self._warm, model=self._model))
        self._book.save()
        self._warm = True
