"""What the screen costs a token, early and late in a long reply: `python -m tests.app.tui.screen_cost`.

Processor time of the event loop's thread, the engine's thread being idle: laying out, painting and writing.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from engine.events import TextDelta, TokenDrawn
from tests.app.tui.chat_stage import CueBackend, chat, send
from tests.app.tui.long_text import long_reply, pieces
from tests.app.tui.snapshot import wait_until
from tests.app.tui.test_flow import HOSTILE, times_prose

PER_DRAIN = 4
"""Tokens of one drain: 80 a second."""


async def cost_per_token(text: str, windows: list[tuple[int, int]], size: tuple[int, int] = (80, 24)) -> list[float]:
    """Processor seconds a token, for each window of token numbers."""
    tokens = pieces(text)
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with chat(Path(folder), CueBackend([None]), size=size) as (app, pilot):
            await send(pilot, "go")
            await wait_until(pilot, lambda: app.chat.conversation.running is not None)
            at = 0

            async def feed(end: int) -> None:
                nonlocal at
                while at < end:
                    for token in tokens[at : at + PER_DRAIN]:
                        app.host.mailbox.put(TokenDrawn(token=0))
                        app.host.mailbox.put(TextDelta(text=token))
                    at += PER_DRAIN
                    app.drain()
                    await pilot.pause()

            for begin, end in windows:
                # What lies between is fed at once: it must be there, not be paid for in small coins.
                app.host.mailbox.put(TextDelta(text="".join(tokens[at:begin])))
                at = begin
                app.drain()
                await pilot.pause()
                started = time.thread_time()
                await feed(end)
                costs.append((time.thread_time() - started) / (end - begin))
            app.host.stop()
    return costs


async def main() -> int:
    """Print the figures."""
    windows = [(500, 1_500), (9_500, 10_500), (29_500, 30_500)]
    costs = await cost_per_token(long_reply(31_000), windows)
    for (begin, _), cost in zip(windows, costs, strict=True):
        print(f"token {begin:>6,}: {cost * 1e3:.3f} ms of processor time")
    print(f"ratio 10,000 / 500: {costs[1] / costs[0]:.2f}")
    print("hostile text, times the processor time of prose of the same length:")
    for name in HOSTILE:
        print(f"  {name:24} {times_prose(name):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
