"""A plan on one screen, and as JSON: bars of what lives where, the figures, the advice. It computes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from app.report import format_bytes, format_seconds, short_seconds, table
from app.sanitize import one_line
from planner.explain import Explanation, Figure, Place, Unit
from planner.predict import Forecast

if TYPE_CHECKING:
    from app.last_run import LastRun

BAR_WIDTH = 24


def lines(title: str, explanation: Explanation, notes: Sequence[str]) -> Iterator[str]:
    """The screen, line by line, for 80 columns and more."""
    yield one_line(title)
    for place in explanation.places:
        yield ""
        yield from _place(place)
    yield ""
    rows = [(figure.label, shown(figure), one_line(figure.note)) for figure in explanation.figures]
    yield table(rows, right=(1,))
    yield ""
    yield f"one token of an answer: {_times(explanation.answer)}"
    yield f"a prompt of {explanation.prompt.n_tokens:,} tokens: {_times(explanation.prompt)}"
    yield ""
    for advice in explanation.advice:
        yield f"+ {one_line(advice.sentence)}"
    for note in (*explanation.notes, *notes):
        yield f"! {one_line(note)}"


def shown(figure: Figure) -> str:
    """The figure's value with its unit."""
    match figure.unit:
        case "bytes":
            return format_bytes(figure.value)
        case "bytes/s":
            return f"{format_bytes(figure.value)}/s"
        case "share":
            return f"{figure.value:.0%}"
        case "tokens/s":
            return f"{figure.value:.2g}/s" if figure.value < 10 else f"{figure.value:,.0f}/s"
        case "seconds":
            return short_seconds(figure.value)
        case "tokens" | "count":
            return f"{figure.value:,.0f}"


def bar(n_bytes: int, of_bytes: int, width: int = BAR_WIDTH) -> str:
    """A share as a bar: full cells for it, dots for the rest; something shows of what is not nothing."""
    cells = round(width * n_bytes / of_bytes) if of_bytes else 0
    cells = min(width, max(cells, 1 if n_bytes else 0))
    return "#" * cells + "." * (width - cells)


def _place(place: Place) -> Iterator[str]:
    used = sum(row.n_bytes for row in place.rows)
    head = f"{place.title}: {format_bytes(used)}"
    if place.ceiling_bytes != used:
        head += f" of {format_bytes(place.ceiling_bytes)}, never above"
    yield one_line(head)
    if place.note:
        yield f"  {one_line(place.note)}"
    rows = [
        (
            f"  {one_line(row.label)}",
            format_bytes(row.n_bytes),
            bar(row.n_bytes, place.ceiling_bytes),
            one_line(row.note),
        )
        for row in place.rows
    ]
    if rows:
        yield table(rows, right=(1,))


def _times(forecast: Forecast) -> str:
    whole = forecast.seconds
    named = sorted(forecast.phases, key=lambda phase: -phase.seconds)
    shares = ", ".join(f"{p.name} {p.seconds / whole:.0%}" for p in named if whole and p.seconds >= 0.005 * whole)
    return f"{f'{whole * 1000:,.0f} ms' if whole < 10 else format_seconds(whole)} ({shares})"


def last_lines(run: "LastRun") -> Iterator[str]:
    """A turn that was run: what was predicted, what happened, and the ratio."""
    warm = "with experts of earlier turns in memory" if run.warm else "from a cold start"
    yield one_line(f"{run.model}: the last turn, {datetime.fromtimestamp(run.at):%Y-%m-%d %H:%M}, {warm}")
    yield ""
    rows = [("", "predicted", "happened", "")]
    for one in run.figures:
        unit = cast(Unit, one.unit)
        both = [shown(Figure(label=one.label, value=value, unit=unit)) for value in (one.predicted, one.happened)]
        ratio = f"x {one.happened / one.predicted:.2f}" if one.predicted > 0 else ""
        rows.append((one_line(one.label), both[0], both[1], ratio))
    yield table(rows, right=(1, 2, 3))


def as_data(explanation: Explanation) -> dict[str, Any]:
    """The same for `--json`; units are in the key names."""
    plan = explanation.plan
    return {
        "ceiling_bytes": plan.ceiling_bytes,
        "planned_bytes": plan.planned_bytes,
        "available_bytes": plan.available_bytes,
        "reserve_bytes": plan.reserve_bytes,
        "ruled_by": plan.ruled_by,
        "parts": [asdict(part) for part in plan.parts],
        "slots_by_layer": {str(layer): n for layer, n in plan.slots.items()},
        "spare_slots": plan.spare_slots,
        "cache_rows": plan.cache_rows,
        "embedding_rows": plan.embedding_rows,
        "context_tokens": plan.context_tokens,
        "chunk_tokens": plan.chunk_tokens,
        "depth_by_drive": dict(plan.depth),
        "threads": plan.threads,
        "drafting": plan.drafting,
        "cards": [asdict(card) | {"slots": {str(k): n for k, n in card.slots.items()}} for card in plan.cards],
        "answer": forecast_data(explanation.answer),
        "prompt": forecast_data(explanation.prompt),
        "advice": [asdict(advice) for advice in explanation.advice],
        "notes": list(explanation.notes),
    }


def forecast_data(forecast: Forecast) -> dict[str, Any]:
    """A forecast for `--json`."""
    return {
        "n_tokens": forecast.n_tokens,
        "seconds": forecast.seconds,
        "tokens_s": forecast.tokens_s,
        "hit_rate": forecast.hit_rate,
        "read_bytes": forecast.read_bytes,
        "phases": [asdict(phase) for phase in forecast.phases],
    }
