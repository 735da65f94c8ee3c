"""Answers from a checkpoint under a ceiling while a thread watches the process's memory; prints JSON.

Usage: python -m tests.planner.watched_run MODEL CEILING PROMPT_TOKENS ANSWER_TOKENS
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.reading import MemoryOptions, Reading, make_wishes
from app.settings import Settings
from engine.events import TurnDone
from engine.sampler_settings import SamplerSettings


class Watcher:
    """Looks at /proc/self/status fifty times a second.

    Attributes:
        most: The largest anonymous and resident sizes seen.
    """

    def __init__(self) -> None:
        self.most = {"RssAnon": 0, "VmRSS": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for line in Path("/proc/self/status").read_text("ascii").splitlines():
                name, _, value = line.partition(":")
                if name in self.most:
                    self.most[name] = max(self.most[name], int(value.split()[0]) * 1024)


def run(folder: Path, ceiling: str, prompt_tokens: int, answer_tokens: int) -> dict[str, Any]:
    """One long prompt and its answer, and what they took."""
    wishes = make_wishes(MemoryOptions(ram=ceiling, context=2 * prompt_tokens), Settings(), Reading())
    backend = LocalBackend(
        folder, numerics="exact", index_owner="published", reading=Reading(), token_map_cache=None, profiles=None,
        wishes=wishes,
    )  # fmt: skip
    request = TurnRequest(
        raw_text=" ".join(f"w{i % 97}{i % 89}" for i in range(prompt_tokens // 4)), effort=None,
        sampling=SamplerSettings(seed=1), max_tokens=answer_tokens,
    )  # fmt: skip
    with Watcher() as watcher:
        backend.open(lambda event: None, lambda: False)
        done = [event for event in backend.generate(request, lambda: False) if isinstance(event, TurnDone)][-1]
        planned = backend.planned
        backend.close()
    assert planned is not None
    return {
        "ceiling_bytes": planned.plan.ceiling_bytes,
        "planned_bytes": planned.plan.planned_bytes,
        "prompt_tokens": done.stats.prompt_tokens,
        "n_slots": planned.plan.n_slots,
        "chunk_tokens": planned.plan.chunk_tokens,
        "anonymous_bytes": watcher.most["RssAnon"],
        "resident_bytes": watcher.most["VmRSS"],
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]))))
