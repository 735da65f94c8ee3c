"""Reads that whoever waits may stop waiting for."""

import threading

import pytest

from storage.errors import StorageError
from storage.extents import Extent
from storage.stoppable import StoppableReads

EXTENT = Extent(shard="a", offset=0, length=3)


class StopWaitingError(Exception):
    """What a check raises."""


def never() -> None:
    """Nobody stops."""


def test_bytes_come_as_they_are_read() -> None:
    def read(extent: Extent, target: memoryview) -> None:
        target[:] = bytes(range(extent.length))

    target = bytearray(3)
    with StoppableReads(read) as reads:
        reads.read_into(EXTENT, memoryview(target), never)
    assert target == b"\x00\x01\x02"


def test_what_the_read_raises_is_raised_where_it_is_waited_for() -> None:
    def read(extent: Extent, target: memoryview) -> None:
        raise StorageError("the drive failed")

    with StoppableReads(read) as reads:
        for _ in range(2):  # the thread goes on
            with pytest.raises(StorageError, match="the drive failed"):
                reads.read_into(EXTENT, memoryview(bytearray(3)), never)


def test_a_read_that_hangs_holds_nobody() -> None:
    begun, let, ended = threading.Event(), threading.Event(), threading.Event()

    def read(extent: Extent, target: memoryview) -> None:
        begun.set()
        let.wait(60)
        target[:] = b"abc"
        ended.set()

    def check() -> None:
        if begun.is_set():
            raise StopWaitingError

    target = bytearray(3)
    with StoppableReads(read) as reads, pytest.raises(StopWaitingError):
        reads.read_into(EXTENT, memoryview(target), check)
    assert target == bytes(3)
    let.set()
    assert ended.wait(60) and target == b"abc"  # it ended by itself, into memory that was kept for it
