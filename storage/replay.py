"""Recorded requests replayed over the slot tables, with no bytes moved: what a policy and a size would have cost.

The tables and the waves are the ones a run uses, so what is measured is what runs; only the reads are left out. Misses
are the fair measure: each is an expert read from a drive.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
