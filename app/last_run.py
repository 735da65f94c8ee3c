"""What was predicted of the last turn on each model, and what then happened: for `artesian plan --last`.

One small JSON file in the cache folder. A file that cannot be used is begun anew.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from app.planning import Planned
from app.private_files import PRIVATE_FILE
from app.whole_files import replace_file
from engine.events import MemoryFigures, TurnStats, Work
from engine.small_files import read_regular
from planner.explain import Unit
from planner.predict import DRAFTING, WAITING, Forecast, Predictor
from planner.solve import popularity

_MOST_BYTES = 1_000_000
_MOST_MODELS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure, predicted and measured."""

    label: str
    unit: str
    """As in `planner.explain.Figure`."""
    predicted: float
    happened: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """One turn."""

    model: str
    at: float
    """Seconds since 1970."""
    warm: bool
    """Whether another turn had filled the slots before."""
    figures: tuple[Compared, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForecast:
    """What the plan says of a turn of a given length."""

    prompt: Forecast | None
    """None when nothing was read."""
    answer: Forecast
    """Nothing of it when nothing was decoded."""


def forecast(planned: Planned, stats: TurnStats, *, warm: bool) -> TurnForecast:
    """The turn that `stats` measured, as it is predicted; `warm` when another turn had filled the slots before."""
    plan = planned.plan
    laws = popularity(planned.footprint, planned.shares, drafting=plan.drafting)
    predictor = Predictor(planned.facts, planned.footprint, plan, laws)
    read = stats.prompt_tokens - stats.reused_tokens
    drafts = stats.draft
    # The first token of a reply comes with the prompt.
    n = drafts.forwards if drafts is not None and drafts.forwards else max(0, drawn(stats) - 1)
    rows = 1.0 + (drafts.drafted / n if drafts is not None and n else 0.0)
    return TurnForecast(
        prompt=predictor.prompt(read, after_tokens=stats.reused_tokens, cold=not warm) if read else None,
        answer=predictor.answer(
            n,
            rows=rows,
            after_tokens=stats.prompt_tokens,
            fresh_rows=None if warm else read,
            n_rounds=drafts.rounds if drafts is not None else 0,
        ),
    )


Seconds = Mapping[str, tuple[float, float]]
"""By the forecast's name of a phase: predicted and measured."""


def phase_seconds(expected: Forecast | None, stats: TurnStats, work: Work) -> Seconds:
    """Where the time of reading the prompt or of decoding was to go, and where it went; the longest first.

    The clock of a forward knows its parts, a forecast its weights: what multiplies the trunk's is taken together, the
    engram's reads with it.
    """
    both: dict[str, tuple[float, float]] = {}
    for phase in expected.phases if expected is not None else ():
        name = _TRUNK.get(phase.name, phase.name)
        before, measured = both.get(name, (0.0, 0.0))
        both[name] = (before + phase.seconds, measured)
    for figure in stats.phases:
        if figure.work == work:
            name = _FORECAST_NAMES.get(figure.phase, figure.phase)
            predicted, before = both.get(name, (0.0, 0.0))
            both[name] = (predicted, before + figure.seconds)
    return dict(sorted(both.items(), key=lambda item: -max(item[1])))


_TRUNK = {"attention": "trunk", "trunk on cards": "trunk"}
_FORECAST_NAMES = {
    "expert_reads": WAITING,
    "attention": "trunk",
    "indexer": "trunk",
    "dense": "trunk",
    "engram": "trunk",
    "draft": DRAFTING,
}
_LEAST_SHARE = 0.01
"""Of a turn's time, which a phase must take or have been said to take to be named."""


def drawn(stats: TurnStats) -> int:
    """Tokens of the reply."""
    return stats.answer_tokens + stats.thinking_tokens


def compare(expected: TurnForecast, stats: TurnStats, memory: MemoryFigures, *, warm: bool, model: str) -> LastRun:
    """The turn's figures beside what was predicted of it."""
    read, prompt, answer = stats.prompt_tokens - stats.reused_tokens, expected.prompt, expected.answer
    figures = [
        Compared(
            label="memory, all slots full", unit="bytes", predicted=memory.planned_bytes, happened=memory.peak_bytes
        ),
    ]
    if prompt is not None and stats.prefill_s > 0:
        figures.append(
            Compared(label="prompt", unit="tokens/s", predicted=prompt.tokens_s, happened=read / stats.prefill_s)
        )
    if answer.n_tokens and stats.decode_s > 0:
        figures.append(
            Compared(
                label="answer",
                unit="tokens/s",
                predicted=drawn(stats) / answer.seconds if answer.seconds else 0.0,
                happened=drawn(stats) / stats.decode_s,
            )
        )
    n_experts = stats.expert_hits + stats.expert_misses
    if n_experts:
        figures += [
            Compared(
                label="experts found in memory",
                unit="share",
                predicted=_hit_rate(prompt, answer),
                happened=stats.expert_hits / n_experts,
            ),
            Compared(
                label="read from drives",
                unit="bytes",
                predicted=(prompt.read_bytes if prompt else 0) + answer.read_bytes,
                happened=stats.read_bytes,
            ),
        ]
    least_s = _LEAST_SHARE * (stats.prefill_s + stats.decode_s)
    works: tuple[tuple[str, Work, Forecast | None], ...] = (("prompt", "prefill", prompt), ("answer", "decode", answer))
    for label, work, part in works:
        figures += [
            Compared(label=f"{label}: {name}", unit="seconds", predicted=predicted, happened=happened)
            for name, (predicted, happened) in phase_seconds(part, stats, work).items()
            if max(predicted, happened) > least_s
        ]
    return LastRun(model=model, at=time.time(), warm=warm, figures=tuple(figures))


def _hit_rate(*parts: Forecast | None) -> float:
    """Of several phases, weighed by the experts they ask for."""
    asked = sum(part.n_asked for part in parts if part is not None)
    found = sum(part.n_asked * part.hit_rate for part in parts if part is not None)
    return found / asked if asked else 1.0


def save_run(path: Path, run: LastRun) -> None:
    """Keep `run` as its model's last. A folder that cannot be written to is no trouble."""
    runs = {known.model: known for known in load_runs(path)} | {run.model: run}
    newest = sorted(runs.values(), key=lambda one: -one.at)[:_MOST_MODELS]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps([asdict(one) for one in newest]).encode(), mode=PRIVATE_FILE)


def load_runs(path: Path) -> Sequence[LastRun]:
    """The last run of each model; nothing for a file that cannot be used."""
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return [_run(entry) for entry in json.loads(read_regular(path, _MOST_BYTES))]
    return []


_LATEST_S = 32_503_680_000
"""The year 3000."""


def _run(entry: dict[str, Any]) -> LastRun:
    """Raises: what is suppressed above, for anything that could not be shown."""
    figures = tuple(
        Compared(
            label=str(one["label"]),
            unit=str(one["unit"]),
            predicted=float(one["predicted"]),
            happened=float(one["happened"]),
        )
        for one in entry["figures"]
    )
    run = LastRun(model=str(entry["model"]), at=float(entry["at"]), warm=bool(entry["warm"]), figures=figures)
    numbers = [value for one in figures for value in (one.predicted, one.happened)]
    if not (0 <= run.at <= _LATEST_S and all(map(isfinite, numbers)) and {one.unit for one in figures} <= _UNITS):
        raise ValueError("a figure that no run has")
    return run


_UNITS = frozenset(get_args(Unit))
