"""Runs turns on a checkpoint under a ceiling and holds the plan against them: memory, and tokens a second.

Usage: python -m tests.planner.real_run MODEL CEILING [TURNS [PROMPT_TOKENS [ANSWER_TOKENS]]]

CEILING is a size, or - for what the machine or its cgroup leaves.

Every turn has a conversation of its own, of words drawn at random, so that nothing is reused and the experts asked for
are not those of the turn before. The first turn is a rehearsal: from it the rates are learnt. Before every other the
arithmetic is measured again, because another program that is busy at the same time slows both alike. Prints one JSON
object; give it a cache folder of its own in XDG_CACHE_HOME.
"""

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.last_run import load_runs
from app.paths import rates_file, runs_file
from app.reading import MemoryOptions, Reading, make_wishes
from app.settings import Settings
from engine.device import measure_arithmetic
from engine.events import TurnDone
from engine.sampler_settings import SamplerSettings
from planner.facts import own_bytes, peak_bytes


def run(folder: Path, ceiling: str, turns: int, prompt_tokens: int, answer_tokens: int) -> dict[str, Any]:
    """The plan, and each turn's figures beside it."""
    wishes = make_wishes(MemoryOptions(ram=None if ceiling == "-" else ceiling), Settings(), Reading())
    made = {"numerics": "exact", "index_owner": "published", "reading": Reading(), "token_map_cache": None}
    backend = LocalBackend(folder, **made, profiles=None, wishes=wishes, rates=rates_file())  # type: ignore[arg-type]
    backend.open(lambda event: None, lambda: False)
    keeper = backend._keeper
    assert keeper is not None
    book, plan = keeper._book, keeper.planned.plan
    draw = random.Random(0)
    seen: list[dict[str, Any]] = []
    for turn in range(turns):
        if turn:
            rates = measure_arithmetic()
            path = next(iter(book._table("arithmetic"))).rpartition(" x")[0]
            book.note_arithmetic(plan.threads, path, rates)
            keeper._look_up()
        words = (
            "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 7))) for _ in range(prompt_tokens)
        )
        text = " ".join(words)[: 2 * prompt_tokens]
        request = TurnRequest(raw_text=text, effort=None, sampling=SamplerSettings(seed=turn), max_tokens=answer_tokens)
        drives = keeper.planned.facts.drives
        done = [event for event in backend.generate(request, lambda: False) if isinstance(event, TurnDone)][-1]
        figures = {figure.label: asdict(figure) for figure in load_runs(runs_file())[0].figures}
        seen.append(
            {"prompt_tokens": done.stats.prompt_tokens, "anonymous_bytes": own_bytes()}
            | {label: (figure["predicted"], figure["happened"]) for label, figure in figures.items()}
            | {"drives_bytes_s": [drive.rate_bytes_s for drive in drives]}
        )
    backend.close()
    judged = seen[1:]
    ratios = {
        label: median(turn[label][0] / turn[label][1] for turn in judged)
        for label in ("answer", "prompt", "read from drives")
        if all(label in turn for turn in judged)
    }
    return {
        "planned_bytes": plan.planned_bytes,
        "ceiling_bytes": plan.ceiling_bytes,
        "ruled_by": plan.ruled_by,
        "peak_bytes": peak_bytes(),
        "peak_over_planned": peak_bytes() / plan.planned_bytes,
        "slots": list(plan.slots.values()),
        "chunk_tokens": plan.chunk_tokens,
        "predicted_over_happened": ratios,
        "turns": seen,
    }


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[3:]]
    turns, prompt, answer = [*numbers, *(5, 200, 24)[len(numbers) :]]
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], turns, prompt, answer), indent=1))
