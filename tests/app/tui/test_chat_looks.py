"""Pictures of the chat in its states and sizes."""

from pathlib import Path

import pytest

from app.backends.base import PromptCost
from app.tui.app import ArtesianApp
from app.tui.widgets.side_panel import LEAST_WIDTH
from engine.events import (
    DraftStats,
    DriveFigures,
    Event,
    LoadProgress,
    Notice,
    PhaseFigures,
    PrefillProgress,
    TextDelta,
    ThinkingDelta,
)
from storage.errors import StorageError
from tests.app.tui.chat_stage import CueBackend, ask, chat, screen_text, send
from tests.app.tui.snapshot import NARROW, WIDE, check, wait_until
from tests.fakes import turn_done

pytestmark = pytest.mark.tui

QUESTION = "How does a router choose experts, and what is read from the drives?"

ANSWER = """\
Each layer has **384 routed experts**; the router scores all of them for every token and keeps the best six.

1. The hidden state is multiplied by the router's weights: one score an expert.
2. The six best go on; a bias helps experts that are used too little.
3. Their gates are scaled so that they add up to `1.5`.

```python
scores = router_scores(x)                # [T, E]
chosen = top_k(scores + bias, k=6)       # ties to the lowest
gate = renormalise(scores.gather(1, chosen))
```

Those that lie in a *slot* cost memory bandwidth alone. The others are read:

| drive | reads | rate     |
|-------|------:|---------:|
| nvme0 | 1,204 | 6.8 GB/s |
| nvme1 |   700 | 5.1 GB/s |
"""

THINKING = "The user asks about routing. I should name the top six, the bias and the gates, then the reads."


def backend_for_looks(*scripts: list[Event | None]) -> CueBackend:
    """A backend whose context is the released one."""
    backend = CueBackend(*scripts)
    backend.cost = PromptCost(prompt_tokens=24, reused_tokens=0, context_tokens=65_536, expected_s=None)
    return backend


def is_settled(app: ArtesianApp) -> bool:
    """Whether everything that comes by itself is on the screen."""
    view, shown = app.chat.view, screen_text(app)
    is_at_end = not view.follows or view.scroll_y == view.max_scroll_y
    return is_at_end and "65,536 tokens" in shown and (app.size.width < LEAST_WIDTH or "Drafts" in shown)


def drive(name: str, payload: int, rate: float) -> DriveFigures:
    return DriveFigures(
        drive=name, n_reads=payload // 18_800_000, payload_bytes=payload, read_bytes=payload, busy_s=payload / rate,
        queue_s=1.9, rate_bytes_s=rate, n_errors=0,
    )  # fmt: skip


READING = PrefillProgress(
    done_tokens=1_536, total_tokens=4_212, read_bytes=35_800_000_000, elapsed_s=15.7, reused_tokens=1_024,
    expert_hits=312, expert_misses=1_904, drives=(drive("nvme0", 20_500_000_000, 6.8e9),
                                                  drive("nvme1", 15_300_000_000, 5.1e9)),
)  # fmt: skip

FIGURES = {
    "read_bytes": 61_000_000_000,
    "wait_s": 72.0,
    "expert_hits": 78_000,
    "expert_misses": 22_000,
    "prompt_tokens": 5_236,
    "reused_tokens": 1_024,
    "prefill_s": 43.0,
    "decode_s": 176.0,
    "drives": (drive("nvme0", 35_000_000_000, 6.8e9), drive("nvme1", 26_000_000_000, 5.1e9)),
    "phases": (
        PhaseFigures(work="decode", phase="expert_reads", seconds=72.0, bytes=61_000_000_000, rate_bytes_s=8.5e8),
        PhaseFigures(work="decode", phase="experts", seconds=58.0, bytes=900_000_000_000, rate_bytes_s=1.55e10),
        PhaseFigures(work="decode", phase="attention", seconds=30.0, bytes=0, rate_bytes_s=0.0),
        PhaseFigures(work="decode", phase="other", seconds=16.0, bytes=0, rate_bytes_s=0.0),
    ),
    "draft": DraftStats(
        rounds=240, drafted=1_200, accepted=552, drafted_by_position=(240, 240, 240, 240, 240),
        accepted_by_position=(190, 142, 102, 70, 48), mean_accepted=2.3, forwards=260, tokens_per_forward=3.1,
        propose_s=9.0, verify_s=150.0, pauses=(), off_reason="",
    ),
}  # fmt: skip


def answer() -> list[Event | None]:
    """The answer with all its figures."""
    done = turn_done("stop", answer_tokens=790, thinking_tokens=22, **FIGURES)
    return [READING, ThinkingDelta(text=THINKING), TextDelta(text=ANSWER), done]


@pytest.mark.parametrize(
    ("name", "size", "theme"),
    [("chat", (80, 24), None), ("chat-narrow-light", NARROW, "artesian-light"), ("chat-wide", WIDE, None)],
)
async def test_a_finished_answer(tmp_path: Path, name: str, size: tuple[int, int], theme: str | None) -> None:
    async with chat(tmp_path, backend_for_looks(answer()), size=size, theme=theme) as (app, pilot):
        await ask(pilot, QUESTION)
        await wait_until(pilot, lambda: is_settled(app) or size == NARROW)
        check(app, name)


async def test_a_new_conversation_while_the_model_loads_with_the_price_of_the_draft(tmp_path: Path) -> None:
    backend = CueBackend(waits_to_open=True)
    backend.loading = [LoadProgress(done_bytes=3_100_000_000, total_bytes=8_300_000_000, elapsed_s=1.5)]
    backend.cost = PromptCost(prompt_tokens=24, reused_tokens=0, context_tokens=65_536, expected_s=None)
    async with chat(tmp_path, backend) as (app, pilot):
        await pilot.press(*"hello")
        await wait_until(pilot, lambda: "to read" in screen_text(app) and "loading 3.10 GB" in screen_text(app))
        check(app, "chat-loading")


async def test_reading_the_prompt(tmp_path: Path) -> None:
    async with chat(tmp_path, CueBackend([READING, None])) as (app, pilot):
        await send(pilot, QUESTION)
        await wait_until(pilot, lambda: "reading prompt" in screen_text(app) and "read " in screen_text(app))
        await wait_until(pilot, lambda: "reading |" in screen_text(app))
        check(app, "chat-reading")


async def test_trouble_with_a_drive_and_a_turn_that_fails(tmp_path: Path) -> None:
    failure = StorageError(
        "model-00011-of-00048.safetensors: read error at 1,204,224 (errno 5)",
        hint="The drive or its mount failed, and there is no other copy. Fetching the shard again will not help.",
    )
    trouble = Notice(text="nvme1 failed (errno 5); its shards are read from nvme0 from now on")
    script = [trouble, TextDelta(text="The router of each layer "), failure]
    async with chat(tmp_path, CueBackend(script)) as (app, pilot):  # type: ignore[arg-type]
        await ask(pilot, QUESTION)
        check(app, "chat-failed")


async def test_the_block_cursor_and_open_thinking_without_colour(tmp_path: Path) -> None:
    async with chat(tmp_path, backend_for_looks(answer()), theme="none") as (app, pilot):
        await ask(pilot, QUESTION)
        await pilot.press("ctrl+up", "t", "ctrl+up", "ctrl+up")
        await wait_until(pilot, lambda: is_settled(app))
        check(app, "chat-cursor-no-colour")


async def test_finding_text_in_sixteen_colours(tmp_path: Path) -> None:
    async with chat(tmp_path, backend_for_looks(answer()), theme="ansi") as (app, pilot):
        await ask(pilot, QUESTION)
        app.run_action_id("find", "the")
        await wait_until(pilot, lambda: "13 of 13" in screen_text(app) and is_settled(app))
        check(app, "chat-find-ansi")
