"""Experts in memory: asked for by layer, handed out in waves, read from the drives when they are not there.

Puts together the books (`waves`) and the bytes (`loader`). For one thread: the one that runs the model. The one thing
to get right in a caller: a wave's bytes are good until the next wave is asked for, and waves come in no useful order,
so results must be added up by the router's rank and never by arrival.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, NamedTuple, Self, TypeVar

from storage.expert_layout import ExpertLayout
from storage.ids import ExpertId
from storage.loader import Loader, Reader
from storage.policy import DEFAULT_POLICY
from storage.ticket import CHECK_S, Check, no_check
from storage.waves import WAVE_EXPERTS, ExpertSlots, Phase, Place, StepPlan, WavePlan

Observer = Callable[[int, Sequence[int], Phase], None]
"""Told of a request: layer, distinct experts, phase."""

_WARM_IN_FLIGHT = 2
"""One warm-up being read and one queued behind it; more would only have to be waited for when a turn begins."""


T = TypeVar("T")

Attach = Callable[[ExpertId, tuple[memoryview, ...]], T]
"""Makes what a caller works with out of the payloads of an expert's tensors, in the order of `EXPERT_PARTS`."""


class Resident(NamedTuple, Generic[T]):
    """An expert whose bytes are in memory."""

    expert: int
    content: T
    """What `attach` made of it, the same object for as long as the expert stays."""


class Wave(NamedTuple, Generic[T]):
    """Experts to be used together. Good until the next wave is asked for, or the generator is closed."""

    experts: tuple[Resident[T], ...]
    wait_s: float
    """Time that was waited for their reads."""
    read_bytes: int
    """Payload bytes of those reads; nothing for experts that were in memory."""


@dataclass(slots=True, kw_only=True)
class LayerStats:
    """What one layer asked for since the cache was made."""

    n_hits: int = 0
    """Experts found in memory, or on their way by a warm-up."""
    n_misses: int = 0
    """Experts read because a step needed them."""
    n_warmed: int = 0
    """Experts read ahead at idle."""
    read_bytes: int = 0
    """Payload bytes of both."""
    wait_s: float = 0.0
    """Time the model waited for reads."""
    n_evictions: int = 0
    """Experts given up for others; those of the lent slots count for no layer."""
    n_split_steps: int = 0
    """Decode steps that did not fit into the slots at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Figures of the cache: layer by layer, and together."""

    layers: Mapping[int, LayerStats]
    total: LayerStats


class ExpertCache(Generic[T]):
    """A fixed number of slots per layer, filled on demand; the memory they take is a ceiling.

    Args:
        layout: Where each expert is; its order is the flat expert index, by which replicas share the reads.
        reader: Reads extents. Not closed by the cache.
        slots_per_layer: For every layer, or by layer; no layer gets more than it has experts.
        attach: Called once when an expert has arrived and is first handed out: wrap its bytes, check them. When it
            raises, so does the step.
        policy: A name in `POLICIES`.
        spare_slots: Slots lent to whichever layer needs more than its own. With `2 * wave_experts` a prefill of any
            length leaves what decoding uses alone.
        wave_experts: Most experts a prefill wave reads.
        waves_ahead: Waves whose reads are in flight while one is used; 0 reads, then lets it be used, then reads on.
        observers: Told of every request (layer, distinct experts, phase): `UsageProfile.record`, `TraceWriter.record`.
        on_notice: Told once if a decode step does not fit into the slots.

    Raises: ArenaTooLarge.
    """

    def __init__(
        self,
        layout: Mapping[ExpertId, ExpertLayout],
        reader: Reader,
        slots_per_layer: int | Mapping[int, int],
        *,
        attach: Attach[T],
        policy: str = DEFAULT_POLICY,
        spare_slots: int = 0,
        wave_experts: int = WAVE_EXPERTS,
        waves_ahead: int = 1,
        seed: int = 0,
        observers: Sequence[Callable[[int, Sequence[int], Phase], None]] = (),
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        n_experts: dict[int, int] = {}
        for key in layout:
            n_experts[key.layer] = n_experts.get(key.layer, 0) + 1
        asked = slots_per_layer if isinstance(slots_per_layer, Mapping) else dict.fromkeys(n_experts, slots_per_layer)
        n_slots = {layer: min(asked[layer], n) for layer, n in n_experts.items()}
        assert all(n > 0 for n in n_slots.values()), "a layer without a slot cannot run"
        self._slots = ExpertSlots(n_slots, policy=policy, spare_slots=spare_slots, wave_experts=wave_experts, seed=seed)
        self._made_with = n_slots
        self._loader = Loader(layout, reader, self._slots, attach)
        self.waves_ahead = waves_ahead
        """As given; a change counts from the next wave on."""
        self.recall: Callable[[], None] = lambda: None
        """Has whoever borrows experts give all of them back now."""
        self._observers = tuple(observers)
        self._on_notice = on_notice
        self._stats = {layer: LayerStats() for layer in n_experts}
        self._open: Generator[Wave[T], None, None] | None = None
        self._noticed = False
        self._lent: dict[ExpertId, Place] = {}

    @property
    def ceiling_bytes(self) -> int:
        """The most memory the slots can ever use."""
        return self._loader.ceiling_bytes

    def waves(
        self,
        layer: int,
        experts: Sequence[int],
        *,
        phase: Phase,
        check: Check = no_check,
        asked: Sequence[int] | None = None,
    ) -> Generator[Wave[T], None, None]:
        """The experts a step of `layer` needs, each once, in waves; reads for the next are in flight while one is used.

        Experts asked for first are preferred when not all can stay. A decode step that fits into the slots is at
        most two waves: what is in memory, and what is not. Asking for another request ends an unfinished one; closing
        the generator takes back the reads that have not begun. So does what `check` raises, which is looked at while
        reads are waited for. Where somebody else serves a part of the request, `asked` is the whole of it: what
        observers are told.

        Raises: StorageError when a read failed on every replica. The slots stay usable, and the next request reads
        again.
        """
        self._end_open()
        distinct = tuple(dict.fromkeys(experts))
        everything = distinct if asked is None else tuple(dict.fromkeys(asked))
        for observe in self._observers:
            observe(layer, everything, phase)
        stats, room = self._stats[layer], self._slots.room(layer)
        if phase == "decode" and len(distinct) > room:
            self._note_split(stats, len(distinct), room)
        self._open = self._walk(stats, self._slots.plan(layer, distinct, phase), check)
        return self._open

    def warm(self, wanted: Mapping[int, Sequence[int]], should_stop: Callable[[], bool]) -> int:
        """Read experts ahead while nobody waits, into slots that hold nothing a step has used; how many were read.

        Args:
            wanted: Experts of each layer, hottest first. The hottest of every layer come before the second of any.
            should_stop: Asked often. A read under way is then left to end by itself, and found if it is needed.

        Raises: StorageError when a read failed on every replica.
        """
        self._end_open()
        self._loader.reap()
        order = by_rank({layer: experts[: self._slots.tables[layer].n_slots] for layer, experts in wanted.items()})
        keep = frozenset(order)
        under_way: list[ExpertId] = []
        n_read = 0
        try:
            for key in order:
                if should_stop():
                    break
                if not self._start_warm(key, keep):
                    continue
                under_way.append(key)
                if len(under_way) == _WARM_IN_FLIGHT:
                    n_read += self._finish_warm(under_way, should_stop)
            while under_way and not should_stop():
                n_read += self._finish_warm(under_way, should_stop)
        finally:
            for key in under_way:
                self._loader.leave(key)
        return n_read

    def __contains__(self, key: ExpertId) -> bool:
        """Is the expert in memory, and not lent?"""
        place = self._slots.find(key)
        return place is not None and key not in self._lent and place.table.is_ready(key)

    def lend(self, key: ExpertId) -> T | None:
        """An expert that is in memory, which stays there until `take_back`; None when it is not, or is lent already.

        Whatever reads it may do so on another thread. Counts as no use of it.
        """
        place = self._slots.find(key)
        if place is None or key not in self:
            return None
        content = self._loader.content(key, place)
        place.table.pin(place.slot)
        self._lent[key] = place
        return content

    def take_back(self, key: ExpertId) -> None:
        """What was lent is no longer needed."""
        place = self._lent.pop(key)
        place.table.unpin(place.slot)

    def clear(self) -> None:
        """Give up every expert, so that whatever is asked for next is read: for measurements that begin cold."""
        self._end_open()
        self.recall()
        self._loader.drain()
        self._slots.clear()

    def held(self) -> dict[int, int]:
        """Experts in each layer's own slots, those on their way included. For the thread that runs the model."""
        return {layer: len(table) for layer, table in self._slots.tables.items()}

    def resize(self, slots_per_layer: Mapping[int, int]) -> int:
        """Give each layer so many of the slots it was made with, at least 1; the bytes given back to the system.

        Between two requests, on the thread that runs the model. The least wanted experts leave; slots that a read is
        under way into stay, and the caller asks again. Slots taken back are empty.
        """
        self._end_open()
        self._loader.reap()
        n_bytes = 0
        for layer, n_slots in slots_per_layer.items():
            table = self._slots.tables[layer]
            for slot in table.resize(max(1, min(n_slots, self._made_with[layer]))):
                n_bytes += self._loader.forget(table, slot)
        return n_bytes

    def stats(self) -> CacheStats:
        """Figures so far; may be asked for from any thread."""
        layers = {
            layer: replace(stats, n_evictions=self._slots.tables[layer].evictions)
            for layer, stats in self._stats.items()
        }
        total = LayerStats()
        for stats in layers.values():
            for field in fields(stats):
                setattr(total, field.name, getattr(total, field.name) + getattr(stats, field.name))
        if self._slots.spare is not None:
            total.n_evictions += self._slots.spare.evictions
        return CacheStats(layers=layers, total=total)

    def close(self) -> None:
        """End what is open, wait for what is in flight, give the memory back. A second call does nothing."""
        self._end_open()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_open(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _walk(self, stats: LayerStats, plan: StepPlan, check: Check) -> Generator[Wave[T], None, None]:
        self._loader.reap()
        in_hand: list[WavePlan] = []
        try:
            while plan.n_left or in_hand:
                if not in_hand and not self._take(plan, stats, in_hand):
                    # Every slot is lent, or held by a read that somebody stopped waiting for.
                    self.recall()
                    self._loader.drain(check)
                    self._take(plan, stats, in_hand)
                # Their reads queue behind those of the wave that is waited for.
                while len(in_hand) <= self.waves_ahead and self._take(plan, stats, in_hand):
                    pass
                wave = in_hand[0]
                wait_s = self._finish(wave, stats, check)
                yield Wave(
                    tuple(Resident(key.expert, self._loader.content(key, at)) for key, at in wave.members()),
                    wait_s,
                    sum(self._loader.payload_bytes(key) for key, _ in wave.missing),
                )
                in_hand.pop(0).release()
        finally:
            for wave in in_hand:
                for key, _ in wave.members():
                    self._loader.leave(key)
                wave.release()

    def _take(self, plan: StepPlan, stats: LayerStats, in_hand: list[WavePlan]) -> bool:
        """Plan a wave and begin its reads; False when all is planned, or no slot is to be had at the moment."""
        wave = plan.take()
        if wave is None:
            return False
        in_hand.append(wave)
        stats.n_hits += len(wave.ready) + len(wave.coming)
        stats.n_misses += len(wave.missing)
        stats.read_bytes += sum(self._loader.payload_bytes(key) for key, _ in wave.missing)
        for key, _ in wave.coming:
            self._loader.promote(key)
        self._loader.start(wave.missing)
        return True

    def _finish(self, wave: WavePlan, stats: LayerStats, check: Check) -> float:
        """Wait for a wave's reads; how long."""
        begun = time.perf_counter()
        waited_s = 0.0
        try:
            for key, _ in (*wave.coming, *wave.missing):
                self._loader.wait_checking(key, check)
        finally:
            waited_s = time.perf_counter() - begun
            stats.wait_s += waited_s
        return waited_s

    def _start_warm(self, key: ExpertId, keep: frozenset[ExpertId]) -> bool:
        if self._slots.find(key) is not None:
            return False
        table = self._slots.tables[key.layer]
        slot = table.reserve(key, "warm", keep)
        if slot is None:
            return False
        self._loader.start([(key, Place(table, slot))], "warm")
        return True

    def _finish_warm(self, under_way: list[ExpertId], should_stop: Callable[[], bool]) -> bool:
        """Wait for the oldest warm-up read; False when stopped before it had ended."""
        key = under_way[0]
        while not self._loader.wait(key, CHECK_S):
            if should_stop():
                return False
        del under_way[0]
        stats = self._stats[key.layer]
        stats.n_warmed += 1
        stats.read_bytes += self._loader.payload_bytes(key)
        return True

    def _note_split(self, stats: LayerStats, n_needed: int, n_room: int) -> None:
        stats.n_split_steps += 1
        if not self._noticed:
            self._noticed = True
            self._on_notice(
                f"A step needs {n_needed} experts of a layer and {n_room} fit: it is read in parts, which is slow. "
                f"Memory for {n_needed - n_room} slots more a layer would hold it."
            )


def by_rank(wanted: Mapping[int, Sequence[int]]) -> list[ExpertId]:
    """First choices of every layer, then second ones, and so on."""
    depth = max(map(len, wanted.values()), default=0)
    return [
        ExpertId(layer, experts[rank])
        for rank in range(depth)
        for layer, experts in wanted.items()
        if rank < len(experts)
    ]
