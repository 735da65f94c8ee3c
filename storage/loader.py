"""The memory behind the slot tables, and the reads into it that are under way.

A slot is filled or failed only when its read has ended, whoever has stopped waiting meanwhile: until then the drive may
write into it. So a read nobody waits for any more stays in the books, and is taken in the next time somebody looks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from storage.arena import Arena, locate, place, stride_for
from storage.batch import ReadRequest, Ticket, Urgency
from storage.errors import StorageError
from storage.expert_layout import ExpertLayout
from storage.extents import align
from storage.ids import ExpertId, SlotIndex
from storage.slots import SlotTable
from storage.syscalls import PAGE_BYTES
from storage.ticket import CHECK_S, Check, no_check
from storage.waves import ExpertSlots, Place

T = TypeVar("T")


class Reader(Protocol):
    """The part of `BatchReader` that is used here."""

    @property
    def block_bytes(self) -> int:
        """What reads start and end on."""
        ...

    def submit(self, requests: Sequence[ReadRequest], urgency: Urgency = "demand") -> Ticket:
        """Queue reads and return at once."""
        ...


@dataclass(slots=True, kw_only=True)
class _Bank(Generic[T]):
    """A slot table's memory."""

    arena: Arena
    first: int
    """Arena slot of the table's slot 0."""
    views: list[tuple[memoryview, ...]]
    """Of each slot, the payloads of what was last read into it."""
    contents: list[T | None]
    """What was made of them; None until somebody asks."""


class _Read(NamedTuple):
    place: Place
    ticket: Ticket


class Loader(Generic[T]):
    """Reads experts into the slots of `slots`. For one thread.

    Tables whose slots have one size share an arena; the lent slots take an expert of any layer.

    Raises: ArenaTooLarge.
    """

    def __init__(
        self,
        layout: Mapping[ExpertId, ExpertLayout],
        reader: Reader,
        slots: ExpertSlots,
        attach: Callable[[ExpertId, tuple[memoryview, ...]], T],
    ) -> None:
        self._layout = layout
        self._attach = attach
        self._flat = {key: index for index, key in enumerate(layout)}
        self._reader = reader
        self._reads: dict[ExpertId, _Read] = {}
        self._arenas: list[Arena] = []
        self._banks: dict[SlotTable[ExpertId], _Bank[T]] = {}
        strides: dict[int, int] = {}
        for key, where in layout.items():
            stride = stride_for((extent.length for extent in where.extents), reader.block_bytes)
            strides[key.layer] = max(strides.get(key.layer, 0), stride)
        for stride in sorted(set(strides.values())):
            self._allocate([slots.tables[layer] for layer in strides if strides[layer] == stride], stride)
        if slots.spare is not None:
            self._allocate([slots.spare], max(strides.values()))

    @property
    def ceiling_bytes(self) -> int:
        """The most memory the slots can ever use."""
        return sum(arena.ceiling_bytes for arena in self._arenas)

    def content(self, key: ExpertId, where: Place) -> T:
        """What `attach` makes of the expert in a ready slot, made once for as long as it stays."""
        bank = self._banks[where.table]
        content = bank.contents[where.slot]
        if content is None:
            content = bank.contents[where.slot] = self._attach(key, bank.views[where.slot])
        return content

    def payload_bytes(self, key: ExpertId) -> int:
        """Bytes that reading an expert asks for."""
        return self._layout[key].payload_bytes

    def start(self, experts: Sequence[tuple[ExpertId, Place]], urgency: Urgency = "demand") -> None:
        """Begin to read experts into slots reserved for them.

        Raises: what submitting raises; the slots whose reads did not begin are then empty.
        """
        for i, (key, where) in enumerate(experts):
            try:
                self._reads[key] = _Read(where, self._reader.submit(self._requests(key, where), urgency))
            except BaseException:
                for _, (table, slot) in experts[i:]:
                    table.fail(slot)
                raise

    def promote(self, key: ExpertId) -> None:
        """Somebody waits for a warm-up read now."""
        self._reads[key].ticket.promote()

    def wait_checking(self, key: ExpertId, check: Check) -> None:
        """Wait for an expert under way, however long, but look at `check` fifty times a second.

        Raises: as `wait`; what `check` raises, and the read then goes on with nobody waiting.
        """
        while not self.wait(key, None if check is no_check else CHECK_S):
            check()

    def wait(self, key: ExpertId, timeout_s: float | None = None) -> bool:
        """Wait for an expert under way; its slot is then ready. False when `timeout_s` was too short.

        Raises: what its read failed with; its slot is then empty.
        """
        where, ticket = self._reads[key]
        try:
            if not ticket.wait(timeout_s):
                return False
        except BaseException:
            if ticket.done:  # not so when the wait itself was interrupted
                del self._reads[key]
                where.table.fail(where.slot)
            raise
        del self._reads[key]
        where.table.fill(where.slot)
        return True

    def leave(self, key: ExpertId) -> None:
        """Nobody waits for this any more: take it back, unless some of it has begun: whoever needs it next waits for
        the rest. Does nothing for what is not under way.
        """
        if key in self._reads:
            self._reads[key].ticket.withdraw()

    def reap(self) -> None:
        """Take in the reads that have ended with nobody waiting. Whoever needs one that failed reads it again."""
        for key in [key for key, read in self._reads.items() if read.ticket.done]:
            self._settle(key)

    def drain(self, check: Check = no_check) -> None:
        """Take back what has not begun, wait for the rest: nothing is under way afterwards.

        Raises: what `check` raises; some is under way then.
        """
        for key in self._reads:
            self.leave(key)
        for key in list(self._reads):
            self._settle(key, check)

    def close(self) -> None:
        """Drain, and give the memory back. A second call does nothing."""
        self.drain()
        self._banks.clear()
        while self._arenas:
            self._arenas.pop().close()

    def forget(self, table: SlotTable[ExpertId], slot: SlotIndex) -> int:
        """Give the memory of a slot that holds nothing back to the system; the bytes that were in use, 0 if none."""
        bank = self._banks[table]
        used = bool(bank.views[slot])
        bank.views[slot], bank.contents[slot] = (), None
        if used:
            bank.arena.forget(SlotIndex(bank.first + slot))
        return bank.arena.stride_bytes if used else 0

    def _requests(self, key: ExpertId, where: Place) -> list[ReadRequest]:
        """The reads of an expert into a slot; from now on the slot's views are this expert's."""
        bank = self._banks[where.table]
        memory = bank.arena.slot(SlotIndex(bank.first + where.slot))
        layout, block = self._layout[key], self._reader.block_bytes
        placements = place(layout.extents, block)
        bank.contents[where.slot] = None
        offsets = [locate(placements, part) for part in layout.parts]
        bank.views[where.slot] = tuple(
            memory[offset : offset + part.length] for offset, part in zip(offsets, layout.parts, strict=True)
        )
        return [
            ReadRequest(
                extent=extent, target=memory[start : start + align(extent, block).length], flat_index=self._flat[key]
            )
            for extent, start, _ in placements
        ]

    def _settle(self, key: ExpertId, check: Check = no_check) -> None:
        try:
            self.wait_checking(key, check)
        except StorageError:
            return

    def _allocate(self, tables: Sequence[SlotTable[ExpertId]], stride: int) -> None:
        n_slots = sum(table.n_slots for table in tables)
        arena = Arena(n_slots, stride, align_bytes=max(self._reader.block_bytes, PAGE_BYTES))
        self._arenas.append(arena)
        first = 0
        for table in tables:
            self._banks[table] = _Bank(
                arena=arena, first=first, views=[()] * table.n_slots, contents=[None] * table.n_slots
            )
            first += table.n_slots
