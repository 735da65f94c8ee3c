"""The expert cache: the right bytes in every size, order and accident."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from storage.batch import BatchReader, ReadRequest
from storage.direct import DirectFile, IoMode
from storage.errors import DirectReadsRefused, DriveError, UnknownTensor
from storage.expert_cache import ExpertCache, Wave
from storage.expert_layout import EXPERT_PARTS, ExpertLayout, expert_layout, expert_layouts
from storage.extents import Extent
from storage.headers import TensorEntry, read_header
from storage.ids import ExpertId
from storage.policy import POLICIES
from storage.waves import Phase
from tests.fakes import GatedDrive
from tests.storage.readers import MemoryReader, OneFolder, open_reader

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
Tiny = tuple[dict[str, TensorEntry], dict[ExpertId, ExpertLayout]]
N_LAYERS, N_EXPERTS, N_STAGES, N_DRAFT_EXPERTS = 8, 16, 3, 8  # tests/data/tiny-a/README.md


def as_views(key: ExpertId, views: tuple[memoryview, ...]) -> tuple[memoryview, ...]:
    """The simplest attachment: the payloads themselves."""
    return views


def layout_of(
    n_layers: int, n_experts: int, part_bytes: Sequence[int] = (40, 8)
) -> tuple[dict[ExpertId, ExpertLayout], bytes]:
    """Experts of two parts in two runs each, at odd offsets of one shard, and the shard."""
    layout, at = {}, 5
    for layer in range(n_layers):
        for expert in range(n_experts):
            parts = []
            for n_bytes in part_bytes:
                parts.append(Extent(shard="s", offset=at, length=n_bytes + 2 * layer))  # layers differ in size
                at += n_bytes + 2 * layer + 3
            layout[ExpertId(layer, expert)] = ExpertLayout(parts=tuple(parts), extents=tuple(parts))
    return layout, random.Random(1).randbytes(at)


class Rig:
    """A cache over memory, and what it should hand out."""

    def __init__(self, n_slots: int, *, n_layers: int = 2, n_experts: int = 16, **options: Any) -> None:
        self.layout, self.shard = layout_of(n_layers, n_experts)
        self.reader = MemoryReader({"s": self.shard})
        self.notices: list[str] = []
        self.cache = ExpertCache(
            self.layout, self.reader, n_slots, attach=as_views, on_notice=self.notices.append, **options
        )

    def expected(self, layer: int, expert: int) -> list[bytes]:
        parts = self.layout[ExpertId(layer, expert)].parts
        return [self.shard[part.offset : part.end] for part in parts]

    def check(self, layer: int, wave: Wave[tuple[memoryview, ...]]) -> list[int]:
        for resident in wave.experts:
            assert [bytes(view) for view in resident.content] == self.expected(layer, resident.expert)
        return [resident.expert for resident in wave.experts]

    def step(self, layer: int, experts: Sequence[int], phase: Phase = "decode") -> list[list[int]]:
        """Run a step to its end; the experts of each wave."""
        waves = [self.check(layer, wave) for wave in self.cache.waves(layer, experts, phase=phase)]
        assert sorted(expert for wave in waves for expert in wave) == sorted(set(experts))
        self.check_books()
        return waves

    def check_books(self) -> None:
        slots = self.cache._slots
        for table in (*slots.tables.values(), *([slots.spare] if slots.spare else [])):
            table.check()
            assert not any(table._pins)

    def resident(self, layer: int) -> set[int]:
        return {expert for expert in range(16) if self.cache._slots.tables[layer].is_ready(ExpertId(layer, expert))}


def test_a_decode_step_that_fits_is_what_is_there_then_what_is_read_once() -> None:
    rig = Rig(6)
    assert rig.step(0, [3, 1, 4, 1, 5, 9]) == [[3, 1, 4, 5, 9]]
    assert len(rig.reader.tickets) == 5
    assert rig.step(0, [2, 9, 5]) == [[9, 5], [2]]
    assert len(rig.reader.tickets) == 6
    total = rig.cache.stats().total
    assert (total.n_hits, total.n_misses, total.n_evictions) == (2, 6, 0)
    assert total.read_bytes == 6 * 48


def test_layers_do_not_share_slots_and_may_differ_in_size() -> None:
    rig = Rig(2, n_layers=3)
    for layer in range(3):
        rig.step(layer, [layer, 7])
    for layer in range(3):
        rig.step(layer, [layer, 7])
        assert rig.cache.stats().layers[layer].n_hits == 2
        assert rig.cache.stats().layers[layer].read_bytes == 2 * (48 + 4 * layer)


@pytest.mark.parametrize("n_slots", [1, 2, 3, 5])
def test_a_step_larger_than_the_slots_comes_in_waves_and_says_so_once(n_slots: int) -> None:
    rig = Rig(n_slots)
    for experts in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [5, 9, 0]):
        waves = rig.step(0, experts)
        assert all(len(wave) <= n_slots for wave in waves)
    assert len(rig.notices) == 1
    assert f"6 experts of a layer and {n_slots} fit" in rig.notices[0]
    assert f"{6 - n_slots} slots more" in rig.notices[0]
    assert rig.cache.stats().total.n_split_steps >= 2


def test_a_wave_larger_than_the_layer_uses_lent_slots() -> None:
    rig = Rig(2, spare_slots=4)
    assert len(rig.step(0, [0, 1, 2, 3, 4, 5])) == 1
    assert rig.notices == []
    assert len(rig.step(1, [0, 1, 2, 3, 4, 5])) == 1


def test_a_decode_step_reads_what_is_missing_while_what_is_there_is_used() -> None:
    rig = Rig(4)
    rig.step(0, [0, 1])
    waves = rig.cache.waves(0, [2, 0, 3], phase="decode")
    assert rig.check(0, next(waves)) == [0]
    assert [ticket.done for ticket in rig.reader.tickets[2:]] == [False, False]
    assert rig.check(0, next(waves)) == [2, 3]


def test_prefill_hands_out_what_is_there_while_the_rest_is_read() -> None:
    rig = Rig(16, wave_experts=4)
    rig.step(0, [0, 1, 2])
    n_before = len(rig.reader.tickets)
    seen = []
    for wave in rig.cache.waves(0, range(12), phase="prefill"):
        seen.append((rig.check(0, wave), len(rig.reader.tickets) - n_before))
    # With a wave in use, the next one has been submitted.
    assert seen == [([0, 1, 2], 4), ([3, 4, 5, 6], 8), ([7, 8, 9, 10], 9), ([11], 9)]


@pytest.mark.parametrize("n_slots", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("spare_slots", [0, 1, 4])
def test_prefill_of_everything_works_in_any_number_of_slots(n_slots: int, spare_slots: int) -> None:
    rig = Rig(n_slots, spare_slots=spare_slots)
    for _ in range(2):
        rig.step(0, range(16), "prefill")
        rig.step(1, [3, 1], "decode")
        rig.step(1, range(15, -1, -1), "prefill")


def test_a_long_prefill_leaves_what_decoding_uses_when_slots_are_lent() -> None:
    rig = Rig(6, spare_slots=8, wave_experts=4)
    hot = [0, 1, 2, 3, 4, 5]
    rig.step(0, hot)
    rig.step(0, range(16), "prefill")
    assert rig.resident(0) == set(hot)


def test_a_long_prefill_takes_only_a_few_slots_when_none_are_lent() -> None:
    rig = Rig(8)  # waves of two, so four slots for the scan
    rig.step(0, range(8))
    rig.step(0, range(8))
    rig.step(0, range(16), "prefill")
    assert len(rig.resident(0) & set(range(8))) == 4


def test_the_next_chunk_of_a_long_prefill_finds_what_the_first_left() -> None:
    rig = Rig(8)
    rig.step(0, range(16), "prefill")
    before = rig.cache.stats().total.n_misses
    rig.step(0, range(16), "prefill")
    assert rig.cache.stats().total.n_misses - before <= 16 - 4


def test_a_failed_read_raises_frees_its_slot_and_is_read_again() -> None:
    rig = Rig(4)
    rig.step(0, [0, 1])
    rig.reader.fail_on = {3}  # 0 and 1 were the first two, 2 is the third
    with pytest.raises(DriveError):
        list(rig.cache.waves(0, [0, 2, 3], phase="decode"))
    rig.check_books()
    assert 3 not in rig.resident(0)
    rig.step(0, [0, 2, 3])


def test_a_read_nobody_takes_frees_the_slots_of_its_wave() -> None:
    rig = Rig(4)
    rig.reader.refuse_on = {1}
    with pytest.raises(DriveError):
        list(rig.cache.waves(0, [0, 1, 2], phase="decode"))
    rig.check_books()
    rig.step(0, [0, 1, 2, 3])


def test_a_failed_read_of_a_later_wave_spares_the_earlier_ones() -> None:
    rig = Rig(8, wave_experts=2)
    rig.reader.fail_on = {3}
    waves = rig.cache.waves(0, range(6), phase="prefill")
    assert rig.check(0, next(waves)) == [0, 1]
    with pytest.raises(DriveError):
        next(waves)
    rig.check_books()
    assert rig.resident(0) >= {0, 1}
    rig.step(0, range(6), "prefill")


def test_an_unfinished_step_gives_up_its_pins_and_takes_back_its_reads() -> None:
    rig = Rig(8, wave_experts=2)
    waves = rig.cache.waves(0, range(8), phase="prefill")
    next(waves)
    waves.close()
    assert [ticket.cancelled for ticket in rig.reader.tickets] == [False, False, True, True]
    rig.step(0, [2, 3, 0])


@pytest.mark.parametrize("waves_ahead", [0, 1, 2])
def test_so_many_waves_are_in_flight_while_one_is_used(waves_ahead: int) -> None:
    """Waves of two experts; a read of the memory reader ends when it is waited for, so what has not ended is ahead."""
    rig = Rig(8, wave_experts=2, spare_slots=8, waves_ahead=waves_ahead)
    waves = rig.cache.waves(0, range(8), phase="prefill")
    for wave_number in range(4):
        wave = next(waves)
        assert wave.read_bytes == sum(len(part) for r in wave.experts for part in rig.expected(0, r.expert))
        under_way = sum(not ticket.done for ticket in rig.reader.tickets)
        assert under_way == 2 * min(waves_ahead, 3 - wave_number)
    assert list(waves) == []


def test_a_wave_of_what_was_there_waits_for_nothing_and_reads_nothing() -> None:
    rig = Rig(4)
    rig.step(0, [0, 1])
    (wave,) = rig.cache.waves(0, [0, 1], phase="decode")
    assert wave.read_bytes == 0
    assert 0 <= wave.wait_s <= rig.cache.stats().total.wait_s


@pytest.mark.parametrize("spare_slots", [0, 4])
def test_a_cleared_cache_reads_everything_again(spare_slots: int) -> None:
    rig = Rig(4, spare_slots=spare_slots)
    rig.step(0, range(6), "prefill")
    rig.step(1, [1, 2])
    rig.cache.clear()
    rig.check_books()
    assert rig.resident(0) == rig.resident(1) == set()
    before = rig.cache.stats().total.n_misses
    rig.step(0, range(6), "prefill")
    rig.step(1, [1, 2])
    assert rig.cache.stats().total.n_misses - before == 8


def test_another_request_ends_an_unfinished_one() -> None:
    rig = Rig(1)
    waves = rig.cache.waves(0, [0], phase="decode")
    next(waves)  # never closed: an exception elsewhere may keep it alive
    rig.step(0, [1])
    assert list(waves) == []


def test_a_read_in_flight_keeps_its_slot_until_it_has_ended() -> None:
    rig = Rig(2)
    waves = rig.cache.waves(0, range(4), phase="prefill")
    next(waves)
    ahead = rig.reader.tickets[1]
    ahead.begun = True  # the drive is at it: it can no longer be taken back
    waves.close()
    rig.step(0, [2, 3])
    assert not ahead.done and rig.cache._slots.find(ExpertId(0, 1)) is not None
    ahead.finish()
    assert rig.step(0, [1]) == [[1]]
    assert len(rig.reader.tickets) == 4


def test_a_step_waits_for_reads_in_flight_that_hold_every_slot() -> None:
    rig = Rig(1)
    rig.reader.held = True
    rig.cache.warm({0: [4]}, begun_and_stopped(rig))
    rig.step(0, [5])
    assert rig.reader.tickets[0].done and rig.resident(0) == {5}


def test_warm_reads_the_hottest_of_every_layer_first_and_yields() -> None:
    rig = Rig(3)
    rig.step(0, [9])
    assert rig.cache.warm({0: [4, 9, 5, 6, 7], 1: [8, 2]}, lambda: False) == 4
    warmed = rig.reader.tickets[1:]
    assert [ticket.urgency for ticket in warmed] == ["warm"] * 4
    assert [request_of(ticket.requests, rig) for ticket in warmed] == [(0, 4), (1, 8), (1, 2), (0, 5)]
    assert rig.resident(0) == {9, 4, 5} and rig.resident(1) == {8, 2}
    stats = rig.cache.stats()
    assert (stats.total.n_warmed, stats.layers[0].n_warmed) == (4, 2)
    rig.step(0, [4, 9, 5])
    assert rig.cache.stats().layers[0].n_hits == 3


def request_of(requests: Sequence[ReadRequest], rig: Rig) -> tuple[int, int]:
    extent = requests[0].extent
    key = next(key for key, where in rig.layout.items() if extent in where.extents)
    assert requests[0].flat_index == list(rig.layout).index(key)
    return tuple(key)


def test_warm_displaces_nothing_that_was_used() -> None:
    rig = Rig(3)
    rig.step(0, [0, 1, 2])
    assert rig.cache.warm({0: [4, 5, 6]}, lambda: False) == 0
    assert rig.resident(0) == {0, 1, 2}


def test_warm_replaces_what_a_scan_left() -> None:
    rig = Rig(4)
    rig.step(0, range(16), "prefill")
    assert rig.resident(0) == {0, 1, 14, 15}
    assert rig.cache.warm({0: [12, 13, 14, 15]}, lambda: False) == 2
    assert rig.resident(0) == {12, 13, 14, 15}


def test_a_stopped_warm_up_takes_back_what_has_not_begun() -> None:
    rig = Rig(3)
    rig.reader.held = True
    assert rig.cache.warm({0: [4, 5, 6]}, lambda: len(rig.reader.tickets) == 2) == 0
    assert [ticket.cancelled for ticket in rig.reader.tickets] == [True, True]
    rig.step(0, [4, 7, 6])
    assert rig.resident(0) == {4, 7, 6}


def begun_and_stopped(rig: Rig) -> Callable[[], bool]:
    """Says stop as soon as a read was submitted, which the drive has then begun."""

    def should_stop() -> bool:
        for ticket in rig.reader.tickets:
            ticket.begun = True
        return bool(rig.reader.tickets)

    return should_stop


def test_a_step_joins_a_warm_up_read_that_has_begun() -> None:
    rig = Rig(3)
    rig.reader.held = True
    rig.cache.warm({0: [4, 5, 6]}, begun_and_stopped(rig))
    assert len(rig.reader.tickets) == 1
    assert rig.step(0, [4]) == [[4]]
    assert len(rig.reader.tickets) == 1 and rig.reader.tickets[0].promoted
    assert rig.cache.stats().total.n_hits == 1


def test_a_warm_up_read_that_fails_is_reported_and_read_again_on_demand() -> None:
    rig = Rig(3)
    rig.reader.fail_on = {0}
    with pytest.raises(DriveError):
        rig.cache.warm({0: [4, 5]}, lambda: False)
    rig.check_books()
    rig.step(0, [4, 5])


def test_observers_hear_of_every_request_once() -> None:
    heard: list[tuple[int, list[int], str]] = []
    rig = Rig(4, observers=[lambda layer, experts, phase: heard.append((layer, list(experts), phase))])
    rig.step(1, [5, 2, 5], "decode")
    rig.step(0, range(3), "prefill")
    assert heard == [(1, [5, 2], "decode"), (0, [0, 1, 2], "prefill")]


def test_observers_hear_of_all_that_was_asked_where_another_serves_a_part() -> None:
    heard: list[list[int]] = []
    rig = Rig(4, observers=[lambda layer, experts, phase: heard.append(list(experts))])
    for rest in ([5], []):
        waves = [rig.check(1, wave) for wave in rig.cache.waves(1, rest, phase="decode", asked=[5, 2, 5])]
        assert waves == ([rest] if rest else [])
    assert heard == [[5, 2], [5, 2]]


def test_what_is_lent_stays_until_it_is_given_back() -> None:
    rig = Rig(3)
    assert rig.cache.lend(ExpertId(0, 1)) is None  # it is not there
    rig.step(0, [1, 2, 3])
    lent = rig.cache.lend(ExpertId(0, 1))
    assert lent is not None and ExpertId(0, 1) not in rig.cache and rig.cache.lend(ExpertId(0, 1)) is None
    for expert in range(4, 16):
        list(rig.cache.waves(0, [expert], phase="decode"))
    assert [bytes(view) for view in lent] == rig.expected(0, 1)
    assert rig.resident(0) >= {1, 15} and rig.cache.resize({0: 1}) == 2 * rig.cache.ceiling_bytes // 6
    rig.cache.take_back(ExpertId(0, 1))
    rig.check_books()
    assert rig.step(0, [9]) == [[9]] and rig.resident(0) == {9}


def test_a_step_that_finds_every_slot_lent_has_them_given_back() -> None:
    rig = Rig(1)
    rig.step(0, [1])
    rig.cache.lend(ExpertId(0, 1))
    asked: list[str] = []

    def give_back() -> None:
        asked.append("now")
        rig.cache.take_back(ExpertId(0, 1))

    rig.cache.recall = give_back
    assert rig.step(0, [2]) == [[2]] and asked == ["now"]
    rig.cache.lend(ExpertId(0, 2))
    rig.cache.recall = lambda: rig.cache.take_back(ExpertId(0, 2))
    rig.cache.clear()
    assert rig.resident(0) == set()


def test_an_expert_is_attached_once_for_as_long_as_it_stays() -> None:
    layout, shard = layout_of(1, 4)
    attached: list[int] = []

    def attach(key: ExpertId, views: tuple[memoryview, ...]) -> bytes:
        attached.append(key.expert)
        if attached.count(2) == 1 and key.expert == 2:
            raise ValueError("not a number in expert 2")
        return bytes(views[0])

    cache = ExpertCache(layout, MemoryReader({"s": shard}), 2, attach=attach, policy="lru")

    def step(*experts: int) -> list[bytes]:
        return [resident.content for wave in cache.waves(0, experts, phase="decode") for resident in wave.experts]

    first = step(1)[0]
    part = layout[ExpertId(0, 1)].parts[0]
    assert first == shard[part.offset : part.end]
    assert step(1)[0] is first
    step(0)
    step(3)
    assert step(1)[0] == first
    assert attached == [1, 0, 3, 1]
    with pytest.raises(ValueError, match="expert 2"):
        step(2)
    step(2, 1)
    assert attached[4:] == [2, 2]


def test_close_waits_for_what_is_in_flight() -> None:
    rig = Rig(4)
    waves = rig.cache.waves(0, range(8), phase="prefill")
    next(waves)
    for ticket in rig.reader.tickets:
        ticket.begun = True
    rig.cache.close()
    assert all(ticket.done for ticket in rig.reader.tickets)
    rig.cache.close()
    assert list(waves) == []


def test_the_ceiling_is_the_slots_and_no_more_than_alignment_above() -> None:
    rig = Rig(3, n_layers=2, spare_slots=2)
    slot = 4096  # two runs of at most 44 bytes, in a page
    assert 8 * slot <= rig.cache.ceiling_bytes <= 8 * slot + 3 * 4096


def stopping_after(n_asked: int) -> Callable[[], bool]:
    left = iter(range(n_asked))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_random_steps_get_the_right_bytes_under_any_policy(policy: str) -> None:
    draw = random.Random(2)
    for n_slots, spare_slots in ((1, 0), (3, 0), (5, 2), (16, 4)):
        rig = Rig(n_slots, policy=policy, spare_slots=spare_slots, wave_experts=3)
        rig.reader.fail_on = set(draw.sample(range(400), 12))
        for _ in range(80):
            layer, phase = draw.randrange(2), draw.choice(("decode", "decode", "prefill"))
            experts = draw.sample(range(16), draw.randint(1, 16 if phase == "prefill" else 6))
            action = draw.random()
            try:
                if action < 0.1:
                    stops = draw.randint(0, 6)
                    rig.cache.warm({layer: experts}, stopping_after(stops))
                elif action < 0.2:
                    rig.check(layer, next(rig.cache.waves(layer, experts, phase=phase)))  # and no more
                else:
                    rig.step(layer, experts, phase)
            except DriveError:
                pass
        rig.cache._end_open()
        rig.cache._loader.drain()
        rig.check_books()


# On the fixture checkpoint


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    tensors: dict[str, TensorEntry] = {}
    for path in sorted(TINY.glob("*.safetensors")):
        tensors.update(read_header(path, path.name).tensors)
    layers = {layer: (f"layers.{layer}.ffn.experts.", N_EXPERTS) for layer in range(N_LAYERS)}
    layers |= {N_LAYERS + t: (f"mtp.{t}.ffn.experts.", N_DRAFT_EXPERTS) for t in range(N_STAGES)}
    return tensors, expert_layouts(tensors, layers)


def test_an_expert_of_the_released_layout_is_two_reads(tiny: Tiny) -> None:
    tensors, layout = tiny
    assert len(layout) == N_LAYERS * N_EXPERTS + N_STAGES * N_DRAFT_EXPERTS
    for (layer, expert), where in layout.items():
        block = f"layers.{layer}" if layer < N_LAYERS else f"mtp.{layer - N_LAYERS}"
        prefix = f"{block}.ffn.experts.{expert}."
        assert where.parts == tuple(tensors[prefix + part].extent for part in EXPERT_PARTS)
        assert len(where.extents) == 2
        assert where.payload_bytes == sum(part.length for part in where.parts)


def test_a_layout_does_not_assume_the_order_in_the_file() -> None:
    def entry(part: str, shard: str, offset: int) -> TensorEntry:
        extent = Extent(shard=shard, offset=offset, length=10)
        return TensorEntry(name="x." + part, dtype="I8", shape=(10,), extent=extent)

    places = [("w1.weight", "b", 50), ("w3.weight", "b", 60), ("w2.weight", "a", 0), ("w2.scale", "a", 99)]
    places += [("w1.scale", "b", 40), ("w3.scale", "b", 80)]
    where = expert_layout({"x." + part: entry(part, shard, offset) for part, shard, offset in places}, "x.")
    assert [(e.shard, e.offset, e.end) for e in where.extents] == [
        ("a", 0, 10),
        ("a", 99, 109),
        ("b", 40, 70),
        ("b", 80, 90),
    ]
    assert [part.offset for part in where.parts] == [50, 40, 0, 99, 60, 80]  # w1, its scale, w2, its scale, ...


def test_a_missing_part_is_named(tiny: Tiny) -> None:
    with pytest.raises(UnknownTensor, match=r"layers\.0\.ffn\.experts\.16\.w1\.weight"):
        expert_layout(tiny[0], "layers.0.ffn.experts.16.")


def requests_of_a_run() -> Iterator[tuple[int, list[int], Phase]]:
    """A long prompt, replies of several tokens with a draft round each, a short prompt; every expert at least once."""
    draw = random.Random(4)
    for layer in range(N_LAYERS):
        yield layer, list(range(N_EXPERTS)), "prefill"
    for _ in range(3):
        for layer in range(N_LAYERS):
            yield layer, draw.sample(range(N_EXPERTS), 3), "decode"
        for stage in range(N_STAGES):
            yield N_LAYERS + stage, draw.sample(range(N_DRAFT_EXPERTS), 6), "decode"
    for layer in range(N_LAYERS):
        yield layer, draw.sample(range(N_EXPERTS), 7), "prefill"
    for stage in range(N_STAGES):
        yield N_LAYERS + stage, list(range(N_DRAFT_EXPERTS)), "prefill"


@pytest.mark.parametrize("io", ["direct", "buffered"])
@pytest.mark.parametrize("depth", [1, 8])
def test_every_experts_bytes_equal_plain_reads(tiny: Tiny, io: IoMode, depth: int) -> None:
    layout = tiny[1]
    paths = {path.name: path for path in TINY.glob("*.safetensors")}
    if io == "direct":
        try:
            DirectFile.open(next(iter(paths.values())), "direct").close()
        except DirectReadsRefused as error:
            pytest.skip(f"no direct reads here: {error}")
    plain = {path.name: path.read_bytes() for path in paths.values()}
    with open_reader(paths, io=io, depth=depth) as reader:
        for (n_slots, spare_slots), policy in product(((1, 0), (3, 6), (8, 0), (N_EXPERTS, 0)), sorted(POLICIES)):
            seen = set()
            with ExpertCache(
                layout, reader, n_slots, attach=as_views, policy=policy, spare_slots=spare_slots, wave_experts=4
            ) as cache:
                for layer, experts, phase in requests_of_a_run():
                    got = []
                    for wave in cache.waves(layer, experts, phase=phase):
                        for expert, views in wave.experts:
                            got.append(expert)
                            key = ExpertId(layer, expert)
                            seen.add(key)
                            for part, view in zip(layout[key].parts, views, strict=True):
                                assert view == plain[part.shard][part.offset : part.end]
                    assert sorted(got) == sorted(experts)
            assert seen == set(layout)


class StoppedWaitingError(Exception):
    """What a check raises."""


def test_a_check_ends_the_wait_for_a_read_that_hangs_and_the_next_step_finds_its_bytes() -> None:
    rig = Rig(2)
    rig.reader.held = True

    def check() -> None:
        for ticket in rig.reader.tickets:
            ticket.begun = True  # a drive has them: they cannot be taken back
        raise StoppedWaitingError

    with pytest.raises(StoppedWaitingError):
        list(rig.cache.waves(0, [3, 4], phase="decode", check=check))
    rig.reader.held = False
    assert rig.step(0, [3, 4]) == [[3, 4]]
    assert len(rig.reader.tickets) == 2  # those that were under way


def test_a_check_ends_the_wait_for_slots_that_reads_nobody_wants_hold() -> None:
    rig = Rig(1)
    rig.reader.held = True

    def check() -> None:
        for ticket in rig.reader.tickets:
            ticket.begun = True
        raise StoppedWaitingError

    for expert in (3, 4):
        with pytest.raises(StoppedWaitingError):
            list(rig.cache.waves(0, [expert], phase="decode", check=check))
    assert len(rig.reader.tickets) == 1
    rig.reader.held = False
    assert rig.step(0, [4]) == [[4]]


def test_an_expert_that_was_half_read_when_a_step_was_stopped_is_there_for_the_next(tmp_path: Path) -> None:
    layout, shard = layout_of(1, 4)
    (tmp_path / "s").write_bytes(shard)
    gate = GatedDrive()
    file = DirectFile.open(tmp_path / "s", system=gate)

    class Stopped(Exception):  # noqa: N818 - a stand-in for what a check raises
        pass

    def stop_once_begun() -> None:
        if gate.begun:
            raise Stopped

    key = ExpertId(0, 3)
    with (
        BatchReader(OneFolder({"s": file}), block_bytes=file.block_bytes, depth=1) as reader,
        ExpertCache(layout, reader, 2, attach=as_views) as cache,
    ):
        gate.shut()
        with pytest.raises(Stopped):
            list(cache.waves(0, [3], phase="decode", check=stop_once_begun))
        assert len(gate.begun) == 1 < len(layout[key].extents)
        threading.Timer(0.1, gate.let, [len(layout[key].extents)]).start()
        ((resident,),) = [wave.experts for wave in cache.waves(0, [3], phase="decode")]
        content = [bytes(view) for view in resident.content]
    file.close()
    assert content == [shard[part.offset : part.end] for part in layout[key].parts]
