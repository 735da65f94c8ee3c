"""Recorded requests replayed over the slot tables, with no bytes moved: what a policy and a size would have cost.

The tables and the waves are the ones a run uses, so what is measured is what runs; only the reads are left out. Misses
are the fair measure: each is an expert read from a drive.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage.ids import ExpertId
from storage.promotion import CardBooks, Promoter, Usage
from storage.trace import Request
from storage.waves import ExpertSlots, WavePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What was asked for in one phase."""

    n_steps: int
    """Forward passes."""
    n_requests: int
    """Experts asked for, all layers together."""
    n_misses: int
    """Experts read."""

    @property
    def hit_rate(self) -> float:
        """Share of the experts asked for that were in."""
        return 1 - self.n_misses / self.n_requests if self.n_requests else 0.0

    @property
    def misses_per_step(self) -> float:
        """Experts read for a forward pass, all layers together."""
        return self.n_misses / self.n_steps if self.n_steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What one policy at one size did with a trace."""

    policy: str
    slots_per_layer: int
    decode: Tally
    prefill: Tally


def replay(
    requests: Iterable[Request],
    n_experts: Mapping[int, int],
    *,
    policy: str,
    slots_per_layer: int,
    spare_slots: int = 0,
    seed: int = 0,
) -> ReplayResult:
    """Replay `requests` from a cold start; no layer gets more slots than it has experts."""
    slots = ExpertSlots(
        {layer: min(slots_per_layer, n) for layer, n in n_experts.items()},
        policy=policy,
        spare_slots=spare_slots,
        seed=seed,
    )
    counts = {"decode": [0, 0, 0], "prefill": [0, 0, 0]}
    last_step = None
    for request in requests:
        count = counts[request.phase]
        count[0] += request.step != last_step
        count[1] += len(request.experts)
        plan = slots.plan(request.layer, request.experts, request.phase)
        in_use: list[WavePlan] = []
        while (wave := plan.take()) is not None or in_use:
            if wave is not None:
                count[2] += len(wave.missing)
                for _, (table, slot) in wave.missing:
                    table.fill(slot)
                in_use.append(wave)
            # What a decode step found stays in use while the rest is reserved, as far as there is room for both.
            while in_use and (len(in_use) > 1 or wave is None or request.phase == "prefill"):
                in_use.pop(0).release()
        last_step = request.step
    return ReplayResult(
        policy=policy,
        slots_per_layer=slots_per_layer,
        decode=_tally(counts["decode"]),
        prefill=_tally(counts["prefill"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTally:
    """Where the experts of decode steps were found, with some on a card."""

    n_requests: int
    n_on_card: int
    """Found on the card."""
    n_misses: int
    """Found nowhere: read."""
    n_promotions: int
    """Copied from memory to the card, prefill included."""


def replay_tiers(
    requests: Iterable[Request],
    n_experts: Mapping[int, int],
    *,
    policy: str,
    slots_per_layer: int,
    card_slots: Mapping[int, int],
    most_copies: int,
    promoter: Promoter | None = None,
) -> TierTally:
    """Replay `requests` with slots in memory and `card_slots` of each layer on a card, from a cold start.

    A step's copies, at most `most_copies`, are there with the next step. `promoter` is by default the one that runs.
    """
    slots = ExpertSlots({layer: min(slots_per_layer, n) for layer, n in n_experts.items()}, policy=policy)
    books = CardBooks(card_slots)
    chooser = promoter or Promoter(Usage(n_experts))
    n_requests = n_on_card = n_misses = n_promotions = 0
    step: int | None = None
    for request in requests:
        if step is not None and request.step != step:
            for _, promotion in chooser.after_step([books], most_copies, lambda key: slots.find(key) is not None):
                books.begin(promotion)
                books.arrived(promotion.key)
                n_promotions += 1
        step = request.step
        chooser.note(request.layer, request.experts)
        rest = [expert for expert in request.experts if ExpertId(request.layer, expert) not in books]
        plan = slots.plan(request.layer, rest, request.phase)
        missed = 0
        while (wave := plan.take()) is not None:
            missed += len(wave.missing)
            for _, (table, slot) in wave.missing:
                table.fill(slot)
            wave.release()
        if request.phase == "decode":
            n_requests += len(request.experts)
            n_on_card += len(request.experts) - len(rest)
            n_misses += missed
    return TierTally(n_requests=n_requests, n_on_card=n_on_card, n_misses=n_misses, n_promotions=n_promotions)


def fewest_misses(requests: Sequence[Request], n_experts: Mapping[int, int], *, slots_per_layer: int) -> Tally:
    """Decode misses of the policy that knows the future: gives up what is asked for last. No policy can have fewer.

    Prefill requests are left out of it. Source: Belady 1966, with the experts of the step itself never given up.
    """
    never = len(requests)
    next_use: list[dict[int, int]] = [{} for _ in requests]
    seen: dict[tuple[int, int], int] = {}
    for i in range(len(requests) - 1, -1, -1):
        request = requests[i]
        if request.phase == "decode":
            for expert in request.experts:
                next_use[i][expert] = seen.get((request.layer, expert), never)
                seen[request.layer, expert] = i
    held: dict[int, dict[int, int]] = {layer: {} for layer in n_experts}
    steps: set[int] = set()
    n_requests = n_misses = 0
    for request, uses in zip(requests, next_use, strict=True):
        if request.phase != "decode":
            continue
        steps.add(request.step)
        table = held[request.layer]
        for expert in request.experts:
            n_requests += 1
            if expert not in table:
                n_misses += 1
                others = [key for key in table if key not in uses]
                if len(table) >= slots_per_layer and others:
                    del table[max(others, key=table.__getitem__)]
            table[expert] = uses[expert]
        while len(table) > slots_per_layer:
            del table[max(table, key=table.__getitem__)]
    return Tally(n_steps=len(steps), n_requests=n_requests, n_misses=n_misses)


def _tally(count: Sequence[int]) -> Tally:
    return Tally(n_steps=count[0], n_requests=count[1], n_misses=count[2])
