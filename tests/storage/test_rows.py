"""Rows by id: the bytes of plain reads, in any order, with any cache, wherever in the file they lie."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage.errors import BadShape, DriveError, RowOutOfRange
from storage.extents import Extent
from storage.headers import TensorEntry, read_header
from storage.policy import POLICIES
from storage.rows import ROW_POLICY, RowTable
from tests.storage.readers import MemoryReader, open_reader

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
ENGRAM = ("layers.1.engram.embed.weight", "layers.1.engram.embed.scale")


def tensor(name: str, offset: int, n_rows: int, row_bytes: int, shard: str = "s") -> TensorEntry:
    extent = Extent(shard=shard, offset=offset, length=n_rows * row_bytes)
    return TensorEntry(name=name, dtype="F8_E4M3", shape=(n_rows, row_bytes), extent=extent)


def memory_table(n_rows: int = 500, *, cache_rows: int = 0, policy: str = ROW_POLICY) -> tuple[RowTable, MemoryReader]:
    """Rows of 24 bytes and of 3, that begin at odd places of one shard and end with it."""
    shard = random.Random(0).randbytes(11 + n_rows * 27)
    tensors = [tensor("w", 11, n_rows, 24), tensor("s", 11 + n_rows * 24, n_rows, 3)]
    reader = MemoryReader({"s": shard})
    return RowTable(tensors, reader, cache_rows=cache_rows, policy=policy), reader


def check(table: RowTable, reader: MemoryReader, ids: list[int], got: tuple[NDArray[np.uint8], ...]) -> None:
    shard = reader.shards["s"]
    second = 11 + table.n_rows * 24
    assert [rows.shape for rows in got] == [(len(ids), 24), (len(ids), 3)]
    for i, row in enumerate(ids):
        assert got[0][i].tobytes() == shard[11 + row * 24 : 11 + (row + 1) * 24]
        assert got[1][i].tobytes() == shard[second + row * 3 : second + (row + 1) * 3]


@pytest.mark.parametrize("cache_rows", [0, 1, 40, 10_000])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_come_back_in_the_order_asked_whatever_the_cache(cache_rows: int, data: st.DataObject) -> None:
    table, reader = memory_table(cache_rows=cache_rows)
    for _ in range(data.draw(st.integers(1, 5))):
        ids = data.draw(st.lists(st.integers(0, 499), max_size=80))
        check(table, reader, ids, table.issue(ids).collect())


def test_a_row_is_read_once_for_a_request_and_not_again_while_kept() -> None:
    table, reader = memory_table(cache_rows=100)
    table.issue([[7, 400], [7, 7]]).collect()
    assert sum(len(ticket.requests) for ticket in reader.tickets) == 3  # two weight rows, and their scales in one go
    assert (table.stats().n_misses, table.stats().n_hits, table.stats().n_reads) == (2, 0, 3)
    table.issue([400, 8]).collect()
    assert (table.stats().n_misses, table.stats().n_hits) == (3, 1)


def test_no_rows_are_no_reads() -> None:
    table, reader = memory_table()
    weights, scales = table.issue([]).collect()
    assert weights.shape == (0, 24) and scales.shape == (0, 3)
    assert reader.tickets == []


def test_weight_and_scale_are_sent_off_together_and_sorted_before_anybody_waits() -> None:
    table, reader = memory_table(20_000)
    table.issue([15_000, 3, 9_000])
    (ticket,) = reader.tickets
    offsets = [request.extent.offset for request in ticket.requests]
    second = 11 + 20_000 * 24
    assert offsets == [11 + row * 24 for row in (3, 9_000, 15_000)] + [second + row * 3 for row in (3, 9_000, 15_000)]
    assert not ticket.done


def test_neighbouring_rows_are_one_read() -> None:
    table, reader = memory_table()
    check(table, reader, [12, 10, 11], table.issue([12, 10, 11]).collect())
    assert [request.extent.length for request in reader.tickets[0].requests] == [3 * 24, 3 * 3]


def test_a_prompts_rows_are_fetched_in_bounded_parts() -> None:
    table, reader = memory_table(50_000, cache_rows=100)
    ids = random.Random(1).choices(range(50_000), k=9_000)
    ticket = table.issue(np.array(ids).reshape(-1, 6))
    assert len(reader.tickets) == 2  # under way before anybody waits, and no more than that
    check(table, reader, ids, ticket.collect())
    assert len(reader.tickets) == -(-len(set(ids)) // 1024)
    assert table.stats().n_misses == len(set(ids))


def test_rows_of_two_requests_may_be_collected_in_any_order() -> None:
    table, reader = memory_table(cache_rows=3)
    first = table.issue([1, 2, 3, 4])
    second = table.issue([3, 4, 5, 6])
    check(table, reader, [3, 4, 5, 6], second.collect())
    check(table, reader, [1, 2, 3, 4], first.collect())
    check(table, reader, [6, 3, 1], table.issue([6, 3, 1]).collect())


def test_a_row_pushed_out_between_issue_and_collect_is_still_right() -> None:
    table, reader = memory_table(cache_rows=2)
    table.issue([1, 2]).collect()
    waiting = table.issue([1, 2])
    table.issue([3, 4, 5, 6, 7]).collect()
    check(table, reader, [1, 2], waiting.collect())


@pytest.mark.parametrize("ids", [[-1], [0, 500], [1 << 40], [3, -(1 << 40)]])
def test_a_row_the_table_does_not_have_is_refused_by_number(ids: list[int]) -> None:
    table, reader = memory_table()
    with pytest.raises(RowOutOfRange, match="500 rows"):
        table.issue(ids)
    assert reader.tickets == []


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(BadShape, match="s has shape"):
        RowTable([tensor("w", 0, 10, 4), tensor("s", 40, 9, 4)], MemoryReader({}))


def test_a_failed_read_raises_and_the_rows_are_read_again() -> None:
    table, reader = memory_table(cache_rows=100)
    reader.fail_on = {0}
    with pytest.raises(DriveError):
        table.issue([1, 2]).collect()
    check(table, reader, [1, 2], table.issue([1, 2]).collect())
    assert table.stats().n_hits == 0


def test_a_cancelled_ticket_takes_its_reads_back() -> None:
    table, reader = memory_table(50_000)
    table.issue(range(0, 50_000, 10)).cancel()
    assert [ticket.cancelled for ticket in reader.tickets] == [True, True]


def zipf_misses(policy: str, exponent: float, seed: int) -> int:
    """Rows read for 40 requests of 400 ids each, ids Zipf-distributed over 100,000 rows, cache of 2,000."""
    draw = np.random.default_rng(seed)
    weights = np.arange(1, 100_001) ** -exponent
    ids = draw.permutation(100_000)[draw.choice(100_000, size=(40, 400), p=weights / weights.sum())]
    table, _ = memory_table(100_000, cache_rows=2_000, policy=policy)
    for some in ids:
        table.issue(some).collect()
    return table.stats().n_misses


@pytest.mark.parametrize(("exponent", "share"), [(0.8, 0.97), (1.0, 0.97), (1.2, 1.0)])
def test_the_default_policy_suits_zipf_traffic(exponent: float, share: float) -> None:
    """Fewer misses than LRU, and within 1% of the best of all. (At 1.2 nearly every miss is a row's first.)"""
    misses = {policy: zipf_misses(policy, exponent, seed=3) for policy in POLICIES}
    assert misses[ROW_POLICY] <= share * misses["lru"]
    assert misses[ROW_POLICY] <= 1.01 * min(misses.values())


def test_a_long_prompt_does_not_push_out_the_rows_of_every_day() -> None:
    table, _ = memory_table(50_000, cache_rows=1_000)
    everyday = list(range(300))
    for _ in range(3):
        table.issue(everyday).collect()
    table.issue(range(1_000, 6_000)).collect()
    before = table.stats().n_hits
    table.issue(everyday).collect()
    assert table.stats().n_hits - before >= 290


# On files


def test_engram_and_embedding_rows_of_the_fixture_equal_plain_reads() -> None:
    paths = {path.name: path for path in TINY.glob("*.safetensors")}
    tensors: dict[str, TensorEntry] = {}
    for path in paths.values():
        tensors.update(read_header(path, path.name).tensors)
    with open_reader(paths, depth=8) as reader:
        for names in (ENGRAM, ("embed.weight",)):
            entries = [tensors[name] for name in names]
            table = RowTable(entries, reader, cache_rows=64)
            n_rows = entries[0].shape[0]
            for ids in ([n_rows - 1, 0, n_rows - 1], random.Random(2).choices(range(n_rows), k=300), range(n_rows)):
                got = table.issue(list(ids)).collect()
                for entry, rows in zip(entries, got, strict=True):
                    plain = paths[entry.extent.shard].read_bytes()[entry.extent.offset : entry.extent.end]
                    n_bytes = len(plain) // n_rows
                    assert rows.tobytes() == b"".join(plain[row * n_bytes : (row + 1) * n_bytes] for row in ids)


@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_rows_above_two_to_the_31_and_the_last_bytes_of_a_sparse_file(tmp_path: Path, io: str) -> None:
    """384 million rows and more need 64-bit arithmetic: a file of 1 TB that takes a few pages of disk."""
    n_rows, offset = (1 << 32) + 7, 1_000_003
    path = tmp_path / "sparse"
    marks = {0, 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) + 1, n_rows - 2, n_rows - 1}
    with path.open("wb") as file:
        for row in marks:
            os.pwrite(file.fileno(), row_of(row), offset + row * 256)
    assert path.stat().st_size == offset + n_rows * 256
    with open_reader({"s": path}, io=io, depth=8) as reader:  # type: ignore[arg-type]
        table = RowTable([tensor("w", offset, n_rows, 256)], reader, cache_rows=4)
        ids = [*sorted(marks), 1 << 30, n_rows - 3]
        (rows,) = table.issue(ids).collect()
    for row, got in zip(ids, rows, strict=True):
        assert got.tobytes() == (row_of(row) if row in marks else bytes(256))


def row_of(row: int) -> bytes:
    return (row.to_bytes(8, "little") + b"row") * 23 + b"end"


def test_reads_of_a_tokens_rows_ask_for_little_more_than_the_rows() -> None:
    table, reader = memory_table(400_000)
    table.issue(random.Random(5).sample(range(400_000), 48))
    assert table.stats().n_reads <= 96
    blocks = sum(len(request.target) for request in reader.tickets[0].requests)
    assert blocks <= table.stats().read_bytes + 96 * 2 * reader.block_bytes


def test_a_check_ends_the_wait_for_rows_that_hang_and_they_are_read_again() -> None:
    class StoppedWaitingError(Exception):
        pass

    def stop() -> None:
        raise StoppedWaitingError

    table, reader = memory_table(cache_rows=50)
    reader.held = True
    with pytest.raises(StoppedWaitingError):
        table.issue([3, 400]).collect(stop)
    reader.held = False
    check(table, reader, [3, 400], table.issue([3, 400]).collect())
