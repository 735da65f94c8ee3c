"""Pilots that wait for what is to be done, and no longer."""

import asyncio

import pytest


async def nothing_left(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Let the event loop run until nothing is left that could run at once.

    Textual's own sleeps in steps of 20 ms until the whole process has used less than one of them, twice for every key:
    a fifth of a second for a word, and a second wherever another thread works.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]  # of every loop asyncio itself makes
            return


@pytest.fixture(autouse=True)
def quick_pilots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take that for Textual's."""
    monkeypatch.setattr("textual.app.wait_for_idle", nothing_left)
    monkeypatch.setattr("textual.pilot.wait_for_idle", nothing_left)
