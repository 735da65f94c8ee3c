"""A plan in records that a command or a screen can show: what lives where, the figures, and what more would buy.

Numbers stay numbers; whoever shows them formats them. Sentences are complete and plain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.errors import DoesNotFit, PlanError
from planner.facts import Gpu, MachineFacts, with_drives
from planner.footprint import Footprint
from planner.plan import Abilities, Plan, Size, Wishes
from planner.predict import AT_TOKENS, WAITING, Forecast, Predictor
from planner.solve import UNTRIED, gb, make_plan, popularity

Unit = Literal["bytes", "bytes/s", "tokens", "tokens/s", "share", "count", "seconds"]

MORE_RAM_BYTES = 16_000_000_000
MORE_VRAM_BYTES = 8_000_000_000
VRAM_SHARE = 0.9
"""Of a card, where nobody said how much of it may be used."""
SAMPLE_PROMPT = 1_000
"""Tokens of the prompt a figure is given for."""
ASSUMED_RATES = "rates of this machine are assumed"
"""Noted of figures that rest on rates nobody measured."""
CURVE_POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing in one place."""

    label: str
    n_bytes: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory, a card, or a drive, and what is in it."""

    title: str
    rows: tuple[Row, ...]
    ceiling_bytes: int
    """What may be used of it; of drives, what the rows come to."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number."""

    label: str
    value: float
    unit: Unit
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One more step of something, and what it would buy."""

    change: str
    """"16 GB more memory"."""
    tokens_s: float | None
    """Tokens of an answer a second then; None where it cannot be used at all."""
    gain: float
    """That over what it is now, less one."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan, explained."""

    plan: Plan
    places: tuple[Place, ...]
    figures: tuple[Figure, ...]
    answer: Forecast
    """One token of an answer, warm, behind a short conversation."""
    prompt: Forecast
    """A prompt of `SAMPLE_PROMPT` tokens from a cold start."""
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]


Shares = Mapping[int, Sequence[float]]


def explain(
    facts: MachineFacts,
    footprint: Footprint,
    plan: Plan,
    wishes: Wishes,
    abilities: Abilities,
    shares: Shares,
) -> Explanation:
    """Everything a person wants to know of `plan`, which was made from the other arguments."""
    predictor = Predictor(facts, footprint, plan, popularity(footprint, shares, drafting=plan.drafting))
    answer, prompt = predictor.answer(1), predictor.prompt(SAMPLE_PROMPT)
    return Explanation(
        plan=plan,
        places=_places(facts, footprint, plan),
        figures=_figures(facts, plan, answer, prompt),
        answer=answer,
        prompt=prompt,
        advice=_advice(facts, footprint, wishes, abilities, shares, answer.tokens_s),
        notes=plan.notes,
    )


def curve(
    facts: MachineFacts, footprint: Footprint, wishes: Wishes, abilities: Abilities, shares: Shares, most_bytes: int
) -> tuple[tuple[int, float], ...]:
    """Tokens of an answer a second against the ceiling in bytes, from the least that runs up to `most_bytes`."""
    points = []
    least = _least_bytes(facts, footprint, wishes, abilities, shares)
    for i in range(CURVE_POINTS):
        ceiling = round(least + i * max(0, most_bytes - least) / (CURVE_POINTS - 1))
        here, capped = _at_ceiling(facts, wishes, ceiling)
        tokens_s = _tokens_s(here, footprint, capped, abilities, shares)
        if tokens_s is not None:
            points.append((ceiling, tokens_s))
    return tuple(points)


def _places(facts: MachineFacts, footprint: Footprint, plan: Plan) -> tuple[Place, ...]:
    def rows(place: str) -> tuple[Row, ...]:
        return tuple(
            Row(label=part.name, n_bytes=part.n_bytes, note=part.note) for part in plan.parts if part.place == place
        )

    ruled = {"system": "what the system has available", "assumed": "assumed"}.get(plan.ruled_by, plan.ruled_by)
    note = f"{gb(plan.available_bytes)} available ({ruled}), {gb(plan.reserve_bytes)} left to the system"
    memory = Place(title="RAM", rows=rows("RAM"), ceiling_bytes=plan.ceiling_bytes, note=note)
    cards = tuple(
        Place(title=f"card {c.card}: {c.name}", rows=rows(f"card {c.card}"), ceiling_bytes=c.ceiling_bytes)
        for c in plan.cards
    )
    in_memory = sum(plan.slots.values()) + sum(sum(card.slots.values()) for card in plan.cards)
    on_drives = (
        Row(
            label="experts",
            n_bytes=footprint.experts_bytes,
            note=f"{gb(footprint.expert_bytes)} each, {in_memory:,} of them in memory",
        ),
        Row(label="engram, embedding", n_bytes=footprint.tables_bytes, note="read row by row"),
    )
    names = ", ".join(f"{d.name} {gb(round(d.rate_bytes_s))}/s {d.source}" for d in facts.drives) or "no drive known"
    total = sum(row.n_bytes for row in on_drives)
    drives = Place(title="drives", rows=tuple(r for r in on_drives if r.n_bytes), ceiling_bytes=total, note=names)
    return (memory, *cards, drives)


def _figures(facts: MachineFacts, plan: Plan, answer: Forecast, prompt: Forecast) -> tuple[Figure, ...]:
    source = {"measured": "", "remembered": ""}.get(facts.rates.source, ASSUMED_RATES)
    return (
        Figure(label="ceiling", value=plan.ceiling_bytes, unit="bytes", note="never above"),
        Figure(label="planned", value=plan.planned_bytes, unit="bytes"),
        Figure(label="context", value=plan.context_tokens, unit="tokens"),
        Figure(label="prompt chunk", value=plan.chunk_tokens, unit="tokens"),
        Figure(label="threads", value=plan.threads, unit="count"),
        Figure(label="experts found in memory", value=answer.hit_rate, unit="share", note="once warm"),
        Figure(label="answer", value=answer.tokens_s, unit="tokens/s", note=source),
        Figure(
            label="prompt",
            value=prompt.tokens_s,
            unit="tokens/s",
            note=f"{SAMPLE_PROMPT:,} tokens from a cold start",
        ),
        Figure(label="waiting for drives", value=_share_of(answer, WAITING), unit="share"),
    )


def _share_of(forecast: Forecast, name: str) -> float:
    seconds = sum(phase.seconds for phase in forecast.phases if phase.name == name)
    return seconds / forecast.seconds if forecast.seconds > 0 else 0.0


def _advice(
    facts: MachineFacts,
    footprint: Footprint,
    wishes: Wishes,
    abilities: Abilities,
    shares: Shares,
    now: float,
) -> tuple[Advice, ...]:
    """What one more step of memory, of a card's memory and of drives would buy."""
    free = replace(wishes, ram=_raised(wishes.ram, MORE_RAM_BYTES), slots=None)  # what is bought is to be used
    ram = replace(
        facts, total_bytes=facts.total_bytes + MORE_RAM_BYTES, available_bytes=facts.available_bytes + MORE_RAM_BYTES
    )
    changes: list[tuple[str, float | None]] = [
        (f"{gb(MORE_RAM_BYTES)} more memory", _tokens_s(ram, footprint, free, abilities, shares))
    ]
    cards = facts.cards
    if abilities.cards:
        base = cards[0] if cards else Gpu(name="a card", total_bytes=0, free_bytes=0)
        bigger = replace(
            base,
            total_bytes=base.total_bytes + MORE_VRAM_BYTES,
            free_bytes=base.free_bytes + MORE_VRAM_BYTES,
        )
        vram = replace(facts, gpus=(bigger, *cards[1:]))
        asked = replace(wishes, vram=_raised(wishes.vram, MORE_VRAM_BYTES) or Size(share=VRAM_SHARE))
        changes.append((f"{gb(MORE_VRAM_BYTES)} more VRAM", _tokens_s(vram, footprint, asked, abilities, shares)))
    else:
        changes.append((f"{gb(MORE_VRAM_BYTES)} more VRAM", None))
    if facts.drives:
        drives = with_drives(facts, len(facts.drives) + 1)
        changes.append(("one more drive as fast", _tokens_s(drives, footprint, wishes, abilities, shares)))
    advice = [_advised(change, then, now) for change, then in changes]
    if abilities.cards:  # the second of them: what a card gives is assumed
        advice[1] = replace(advice[1], sentence=f"{advice[1].sentence} {UNTRIED}")
    return tuple(advice)


def _raised(size: Size | None, n_bytes: int) -> Size | None:
    """What was asked for, with so much more; a share grows by itself."""
    return size if size is None or size.n_bytes is None else Size(n_bytes=size.n_bytes + n_bytes)


def _advised(change: str, then: float | None, now: float) -> Advice:
    if then is None:
        sentence = f"{change}: nothing, this version computes on the processor only."
        return Advice(change=change, tokens_s=None, gain=0.0, sentence=sentence)
    gain = then / now - 1 if now > 0 else 0.0
    worth = f"{_speed(then)} instead of {_speed(now)} tokens/s ({gain:+.0%})"
    if abs(gain) < 0.01 or _speed(then) == _speed(now):
        worth = "next to nothing"
    return Advice(change=change, tokens_s=then, gain=gain, sentence=f"{change}: {worth}.")


def _speed(tokens_s: float) -> str:
    return f"{tokens_s:.2g}" if tokens_s < 10 else f"{tokens_s:,.0f}"


def _tokens_s(
    facts: MachineFacts, footprint: Footprint, wishes: Wishes, abilities: Abilities, shares: Shares
) -> float | None:
    """Tokens of an answer a second under the plan for these facts; None when none fits."""
    try:
        plan = make_plan(facts, footprint, wishes, abilities, shares)
    except PlanError:
        return None
    laws = popularity(footprint, shares, drafting=plan.drafting)
    return Predictor(facts, footprint, plan, laws).answer(1, after_tokens=AT_TOKENS).tokens_s


def _at_ceiling(facts: MachineFacts, wishes: Wishes, ceiling_bytes: int) -> tuple[MachineFacts, Wishes]:
    """The same machine, and the same wishes with this ceiling, which it has the memory for."""
    size = Size(n_bytes=ceiling_bytes)
    return (
        replace(facts, available_bytes=max(facts.available_bytes, ceiling_bytes)),
        replace(wishes, ram=size, reserve=None),
    )


def _least_bytes(
    facts: MachineFacts, footprint: Footprint, wishes: Wishes, abilities: Abilities, shares: Shares
) -> int:
    """The least ceiling that runs."""
    try:
        here, capped = _at_ceiling(facts, wishes, 0)
        make_plan(here, footprint, capped, abilities, shares)
    except DoesNotFit as error:
        return error.needed_bytes
    return 0
