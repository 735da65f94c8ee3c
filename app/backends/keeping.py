"""Keeps a run to its plan, and what is learnt from a turn for the next: rates, what was predicted and what happened.

Made by the backend that runs; nothing here knows how a token is made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.card_governor import CardGovernor, CardSlots, WatchedCard
from app.governor import Governor, Slots
from app.last_run import TurnForecast, compare, forecast, save_run
from app.planning import Planned, drive_facts, gather_facts, plan_for
from app.rates import RateBook
from engine.device import measure_arithmetic
from engine.events import MemoryFigures, TurnDone, TurnStats
from engine.kernels import path, set_threads
from planner.cards import card_slot_bytes
from planner.facts import own_bytes, peak_bytes
from planner.footprint import Footprint
from planner.plan import Wishes
from storage.waves import Phase

LEAST_READ_BYTES = 200_000_000
"""A turn that read less from a drive says nothing of its rate."""


LEAST_FORWARDS = 8
"""A shorter answer, or prompt, says nothing of the arithmetic's speed."""


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
        self._card_governor: CardGovernor | None = None
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
        return cls(planned, book, model=str(folders[0].resolve()), runs=runs)

    def watch(
        self,
        slots: Slots,
        say: Callable[[str], None],
        cards: CardSlots | None = None,
        free: Mapping[int, Callable[[], int | None]] | None = None,
    ) -> None:
        """Give slots back when memory runs short, from now on; on cards too, whose free memory `free` tells."""
        sizes, plan = self.planned.footprint, self.planned.plan
        self._governor = Governor(slots, plan, sizes.slot_bytes(1), say=say)
        if cards is None or free is None:
            return
        watched = [
            WatchedCard(
                name=card.name,
                n_planned=sum(card.slots.values()),
                left_bytes=max(0, self.planned.facts.cards[card.card].free_bytes - card.ceiling_bytes),
                free=free[card.card],
            )
            for card in plan.cards
            if card.card in free
        ]
        self._card_governor = CardGovernor(cards, watched, card_slot_bytes(sizes), say=say)

    def record(self, layer: int, experts: Sequence[int], phase: Phase) -> None:
        """A request for experts is about to be served: time to look at the machine's memory."""
        self.tick()

    def tick(self) -> None:
        """Look at the machine's memory, if it is time."""
        if self._governor is not None:
            self._governor.tick()
        if self._card_governor is not None:
            self._card_governor.tick()

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
        expected = forecast(self.planned, stats, warm=self._warm)
        if self._runs is not None:
            save_run(self._runs, compare(expected, stats, memory, warm=self._warm, model=self._model))
        if not self.planned.plan.cards:  # what one took says nothing of the processor, which the factors are kept for
            self._learn_factors(stats, expected)
        self._book.save()
        self._warm = True
        self._look_up()

    def _learn_factors(self, stats: TurnStats, expected: TurnForecast) -> None:
        rates = self.planned.facts.rates
        answer_s, prompt_s = _arithmetic_s(stats, "decode"), _arithmetic_s(stats, "prefill")
        long = expected.answer.n_tokens >= LEAST_FORWARDS
        self._book.note_factors(
            answer=rates.answer_factor * answer_s / expected.answer.arithmetic_s if answer_s and long else None,
            prompt=rates.prompt_factor * prompt_s / expected.prompt.arithmetic_s
            if prompt_s and expected.prompt is not None and expected.prompt.n_tokens >= LEAST_FORWARDS
            else None,
        )

    def _look_up(self) -> None:
        """Predict the next turn by what is known of the machine now. The plan itself stays as it is."""
        facts, book = self.planned.facts, self._book
        drives = tuple(drive_facts(drive.name, drive.kind, book) for drive in facts.drives)
        rates = book.arithmetic(self.planned.plan.threads, path()) or facts.rates
        self.planned = replace(self.planned, facts=replace(facts, drives=drives, rates=rates))


def _arithmetic_s(stats: TurnStats, work: Phase) -> float:
    """What reading the prompt or decoding took beside waiting for drives and drafting, which is no measure of it."""
    parts = (part for part in stats.phases if part.phase not in ("expert_reads", "draft"))
    return sum(part.seconds for part in parts if part.work == work)
