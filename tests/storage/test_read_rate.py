"""The rate of reading whole items, on a reader of memory and a clock turned by hand."""

import random

import pytest

from storage.errors import DriveError
from storage.extents import Extent
from storage.read_rate import read_rate
from tests.storage.readers import MemoryReader


def items(n: int) -> list[tuple[int, tuple[Extent, ...]]]:
    """Items of two extents, 70 bytes each, at odd offsets."""
    return [
        (i, (Extent(shard="s", offset=3 + 90 * i, length=40), Extent(shard="s", offset=50 + 90 * i, length=30)))
        for i in range(n)
    ]


def test_the_rate_is_the_payload_over_the_time() -> None:
    reader = MemoryReader({"s": random.Random(1).randbytes(90 * 40 + 90)})
    times = iter([10.0, 14.0])
    assert read_rate(reader, items(40), clock=lambda: next(times)) == 40 * 70 / 4.0
    assert len(reader.tickets) == 40
    assert all(ticket.done and not ticket.cancelled for ticket in reader.tickets)


def test_a_failed_read_is_raised_when_nothing_is_in_flight_any_more() -> None:
    reader = MemoryReader({"s": bytes(90 * 40 + 90)})
    reader.fail_on = {2}
    with pytest.raises(DriveError):
        read_rate(reader, items(40))
    assert len(reader.tickets) == 18  # 16 in flight, and two more as the first two ended
    assert all(ticket.done for ticket in reader.tickets)
