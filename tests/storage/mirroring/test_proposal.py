"""What copies would buy, against hand calculations."""

from pathlib import Path

import pytest

from storage.drives import DriveFacts, DriveKind
from storage.mirroring.places import Place
from storage.mirroring.proposal import ShardUse, gain_of, propose, reserve_bytes

GB = 10**9
USES = [
    ShardUse(shard="experts-1", file_bytes=7 * GB, read_share=0.5),
    ShardUse(shard="experts-2", file_bytes=7 * GB, read_share=0.3),
    ShardUse(shard="experts-3", file_bytes=7 * GB, read_share=0.2),
    ShardUse(shard="embedding", file_bytes=1 * GB, read_share=0.0),
]


def place(*, free: float, total: float = 1000, shares: tuple[str, ...] = (), kind: DriveKind = "nvme") -> Place:
    drive = DriveFacts(
        disks=frozenset({"b"}), kind=kind, fs_type="ext4", mount_point="/b", source="/dev/b", model="",
        logical_block_bytes=512, physical_block_bytes=4096,
    )  # fmt: skip
    return Place(
        folder=Path("/b"), drive=drive, free_bytes=int(free * GB), total_bytes=int(total * GB), shares_with=shares,
        obstacle="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "second", "share", "gain"),
    [
        # Everything on both: the rates add up. 2 and 1 GB/s give 3.
        (2, 1, 1.0, 1.5),
        (1, 1, 1.0, 2.0),
        # A faster second drive serves everything it can; the first reads its part beside it.
        (1, 3, 1.0, 4.0),
        # Half on a drive as fast: the second reads its half while the first reads the other.
        (1, 1, 0.5, 2.0),
        # A fifth: the first still reads 0.8 alone.
        (1, 1, 0.2, 1 / 0.8),
        # A fast second drive with 60 %: the first reads 0.4 at rate 1, the second 0.6 at rate 10 meanwhile.
        (1, 10, 0.6, 1 / 0.4),
        # A slow one is never a loss: it is given what it can do in the time.
        (1, 0.1, 1.0, 1.1),
        (1, 0, 1.0, 1.0),
        (1, 1, 0.0, 1.0),
    ],
)
def test_the_gain_of_a_second_drive(rate: float, second: float, share: float, gain: float) -> None:
    assert gain_of(rate, second, share) == pytest.approx(gain)


def test_what_is_read_most_for_its_size_is_copied_first_and_what_is_not_read_never() -> None:
    made = propose(USES, place(free=100), rates_bytes_s={"a": 2 * GB}, place_rate_bytes_s=1 * GB)
    assert made.shards == ("experts-1", "experts-2", "experts-3")
    assert (made.copy_bytes, made.read_share, made.whole, made.why_not) == (21 * GB, 1.0, True, "")
    assert made.gain == pytest.approx(1.5)
    # 21 GB, read at the slower rate and written beside it at half of that, then read back.
    assert made.copy_s == pytest.approx(21 * (2 + 1))


def test_a_small_drive_gets_the_hottest_that_fit_and_leaves_a_twentieth_free() -> None:
    small = place(free=20, total=100)
    assert reserve_bytes(small) == 5 * GB
    made = propose(USES, small, rates_bytes_s={"a": 1 * GB}, place_rate_bytes_s=1 * GB)
    assert made.shards == ("experts-1", "experts-2") and not made.whole  # 14 GB of the 15 that may be used
    assert made.gain == pytest.approx(2.0)  # 80 % is more than the half that the second drive can serve


def test_a_budget_limits_it_and_what_is_there_counts() -> None:
    made = propose(
        USES, place(free=900), rates_bytes_s={"a": 1 * GB}, place_rate_bytes_s=None, there=frozenset({"experts-1"}),
        budget_bytes=8 * GB,
    )  # fmt: skip
    assert made.shards == ("experts-2",) and made.read_share == pytest.approx(0.8)
    assert made.gain is None and made.copy_s is None


def test_the_same_disk_is_said_and_gains_nothing() -> None:
    made = propose(USES, place(free=900, shares=("a",)), rates_bytes_s={"a": 1 * GB}, place_rate_bytes_s=1 * GB)
    assert made.gain == 1.0 and "same disk as the model's (a)" in made.why_not


def test_no_room_and_no_speed_are_said() -> None:
    nothing = propose(USES, place(free=30, total=1000), rates_bytes_s={"a": GB}, place_rate_bytes_s=GB)
    assert nothing.shards == ("experts-1",)  # 20 GB stay free, 10 may be used
    full = propose(USES, place(free=20, total=1000), rates_bytes_s={"a": GB}, place_rate_bytes_s=GB)
    assert full.why_not == "no shard fits"
    slow = propose(USES, place(free=900), rates_bytes_s={"a": 10 * GB}, place_rate_bytes_s=0.1 * GB)
    assert slow.why_not == "the drive is too slow to help"


def test_memory_is_told_from_a_drive() -> None:
    assert propose(USES, place(free=900, kind="memory"), rates_bytes_s={}, place_rate_bytes_s=GB).costs_ram
