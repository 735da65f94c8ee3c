"""What the drives give right now, read as the engine reads: whole items at the planned depth, one after another.

No arithmetic beside it, so it is the most that a forward can get of its reads.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

from storage.arena import Arena, place, stride_for
from storage.batch import ReadRequest, Ticket
from storage.errors import StorageError
from storage.extents import Extent, align
from storage.ids import SlotIndex
from storage.loader import Reader
from storage.syscalls import PAGE_BYTES

_ITEMS_IN_FLIGHT = 16
"""Two waves of a prefill."""


def read_rate(
    reader: Reader, items: Sequence[tuple[int, Sequence[Extent]]], *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Payload bytes a second of reading `items`, each its flat index, by which replicas share, and its extents.

    Takes memory for 16 items. Raises: DriveError; ArenaTooLarge.
    """
    block = reader.block_bytes
    stride = max(stride_for((extent.length for extent in extents), block) for _, extents in items)
    with Arena(_ITEMS_IN_FLIGHT, stride, align_bytes=max(block, PAGE_BYTES)) as arena:
        under_way: deque[Ticket] = deque()
        begun = clock()
        try:
            for number, (flat_index, extents) in enumerate(items):
                if len(under_way) == _ITEMS_IN_FLIGHT:
                    under_way[0].wait()
                    under_way.popleft()
                memory = arena.slot(SlotIndex(number % _ITEMS_IN_FLIGHT))
                requests = [
                    ReadRequest(
                        extent=extent, target=memory[start : start + align(extent, block).length], flat_index=flat_index
                    )
                    for extent, start, _ in place(extents, block)
                ]
                under_way.append(reader.submit(requests))
            while under_way:
                under_way[0].wait()
                under_way.popleft()
        finally:
            for ticket in under_way:  # the memory must outlive what is in flight
                ticket.cancel()
            for ticket in under_way:
                _settle(ticket)
        elapsed_s = clock() - begun
    return sum(extent.length for _, extents in items for extent in extents) / elapsed_s


def _settle(ticket: Ticket) -> None:
    """Wait until nothing of it is in flight; how its reads ended was or is about to be told."""
    while not ticket.done:
        try:
            ticket.wait()
        except StorageError:
            return
