"""The usage profile: follows habits, survives crashes, and believes no file."""

import errno
import os
import random
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.profile import ASIDE_SUFFIX, HALF_LIFE_TURNS, SAVE_INTERVAL_S, UsageProfile
from tests.fakes import Clock

SHAPE = {0: 16, 1: 16, 40: 8}


def load(path: Path, notices: list[str], shape: Mapping[int, int] = SHAPE, fingerprint: str = "f") -> UsageProfile:
    return UsageProfile.load(path, fingerprint, shape, on_notice=notices.append)


def turn(profile: UsageProfile, layer: int, experts: list[int], n_steps: int = 40) -> None:
    for _ in range(n_steps):
        profile.record(layer, experts)
    profile.end_turn()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A profile file in which experts 3, 5, 1 of layer 0 are hot, in that order."""
    path = tmp_path / "profiles" / "p"
    profile = UsageProfile(path, "f", SHAPE)
    turn(profile, 0, [3, 5, 1], 10)
    turn(profile, 0, [3, 5], 10)
    turn(profile, 0, [3], 10)
    assert profile.save()
    return path


def test_the_hottest_come_first_and_ties_go_to_the_lowest_id() -> None:
    profile = UsageProfile(Path("unused"), "f", SHAPE)
    for experts in ([7, 2], [7, 9], [4, 7]):
        profile.record(0, experts)
    assert profile.hottest(0, 3) == []  # a turn counts when it has ended
    profile.end_turn()
    assert profile.hottest(0, 3) == [7, 2, 4]
    assert profile.hottest(0, 99) == [7, 2, 4, 9]  # never asked for is not hot
    assert profile.hottest(1, 3) == []


def test_a_profile_comes_back_as_it_was_saved(saved: Path) -> None:
    notices: list[str] = []
    assert load(saved, notices).hottest(0, 5) == [3, 5, 1]
    assert notices == []
    assert saved.stat().st_mode & 0o077 == 0  # habits are private


def test_no_file_is_a_cold_start_without_a_word(tmp_path: Path) -> None:
    notices: list[str] = []
    assert load(tmp_path / "none", notices).hottest(0, 3) == []
    assert notices == []


@pytest.mark.parametrize("old_counts", [10_000_000, 1_000])
def test_a_new_habit_takes_over_within_tens_of_turns_however_old_the_old_one(old_counts: int, tmp_path: Path) -> None:
    profile = UsageProfile(tmp_path / "p", "f", {0: 384})
    old, new = list(range(50)), list(range(200, 250))
    profile._turn[0][old] = old_counts  # what a program that counts would have gathered
    profile.end_turn()
    assert profile.hottest(0, 50) == old
    draw = random.Random(1)
    turns = 0
    while set(profile.hottest(0, 50)) != set(new):
        for _ in range(60):
            profile.record(0, draw.sample(new, 6))
        profile.end_turn()
        turns += 1
        assert turns <= 50
    assert turns <= 2 * HALF_LIFE_TURNS


def test_old_counts_in_a_file_weigh_no_more_than_a_new_profile(tmp_path: Path) -> None:
    path = tmp_path / "p"
    write(path, "f", {0: 4}, [1e7, 5e6, 0, 0])
    profile = UsageProfile.load(path, "f", {0: 4})
    assert profile.hottest(0, 4) == [0, 1]
    for _ in range(HALF_LIFE_TURNS + 2):
        turn(profile, 0, [2], 400)
    assert profile.hottest(0, 1) == [2]


def test_a_few_tokens_move_less_than_a_whole_turn() -> None:
    profile = UsageProfile(Path("unused"), "f", {0: 4})
    turn(profile, 0, [0], 400)
    for _ in range(HALF_LIFE_TURNS + 2):
        turn(profile, 0, [2], 3)
    assert profile.hottest(0, 2) == [0, 2]


def write(path: Path, fingerprint: str, shape: Mapping[int, int], shares: list[float], *, version: int = 1) -> None:
    """A file in the documented format, with a right checksum."""
    body = b"ARTUSAGE" + struct.pack("<HH", version, len(fingerprint)) + fingerprint.encode()
    body += struct.pack("<H", len(shape)) + b"".join(struct.pack("<HH", layer, n) for layer, n in shape.items())
    body += struct.pack(f"<{len(shares)}f", *shares)
    path.write_bytes(body + struct.pack("<I", zlib.crc32(body)))


def cold(path: Path, why: str) -> None:
    """Loading gives an empty profile, one notice with the reason, and a file that is set aside whole."""
    before = path.read_bytes()
    notices: list[str] = []
    profile = load(path, notices)
    assert all(profile.hottest(layer, 16) == [] for layer in SHAPE)
    assert len(notices) == 1 and why in notices[0] and ASIDE_SUFFIX in notices[0]
    assert not path.exists()
    assert path.with_name(path.name + ASIDE_SUFFIX).read_bytes() == before
    turn(profile, 1, [2])
    assert profile.save(force=True)
    assert load(path, notices).hottest(1, 1) == [2]
    assert len(notices) == 1


N_SHARES = sum(SHAPE.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, -float("inf")])
def test_shares_no_run_writes_are_not_believed(tmp_path: Path, bad: float) -> None:
    write(tmp_path / "p", "f", SHAPE, [0.5] * (N_SHARES - 1) + [bad])
    cold(tmp_path / "p", "negative or infinite")


def test_huge_shares_are_only_shares(tmp_path: Path) -> None:
    write(tmp_path / "p", "f", SHAPE, [3e38] * N_SHARES)
    assert load(tmp_path / "p", []).hottest(0, 2) == [0, 1]


@pytest.mark.parametrize(
    "shape", [{0: 17, 1: 16, 40: 8}, {0: 16, 1: 16}, {0: 16, 1: 16, 41: 8}, {0: 65535, 1: 65535, 40: 65535}]
)
def test_a_profile_of_another_shape_is_not_used(tmp_path: Path, shape: Mapping[int, int]) -> None:
    write(tmp_path / "p", "f", shape, [0.5] * min(sum(shape.values()), 500))
    cold(tmp_path / "p", "another checkpoint")


def test_a_profile_of_another_checkpoint_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "p", "g", SHAPE, [0.5] * N_SHARES)
    cold(tmp_path / "p", "another checkpoint")


def test_a_profile_of_another_version_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "p", "f", SHAPE, [0.5] * N_SHARES, version=2)
    cold(tmp_path / "p", "another version")


@pytest.mark.parametrize("keep", [0, 1, 7, 9, 30, -200, -5, -1])
def test_a_truncated_profile_is_not_used(saved: Path, keep: int) -> None:
    saved.write_bytes(saved.read_bytes()[:keep])
    cold(saved, "")


def test_bytes_after_the_end_are_not_ignored(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"x" * 1000)
    cold(saved, "too long")


@given(data=st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_a_cold_start(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("random") / "p"
    path.write_bytes(data)
    cold(path, "")


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = tmp_path_factory.mktemp("flip") / "p"
    write(path, "f", SHAPE, [0.25] * N_SHARES)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    cold(path, "")


def test_what_is_no_file_is_set_aside_without_waiting(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        notices: list[str] = []
        assert load(path, notices).hottest(0, 1) == []
        assert len(notices) == 1 and "not a file" in notices[0]


def test_a_second_damaged_file_replaces_the_first_one_set_aside(saved: Path) -> None:
    for content in (b"first", b"second"):
        saved.write_bytes(content)
        load(saved, [])
    assert [path.name for path in saved.parent.iterdir()] == ["p" + ASIDE_SUFFIX]
    assert saved.with_name("p" + ASIDE_SUFFIX).read_bytes() == b"second"


def test_writes_are_bounded_and_only_when_something_changed(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "p"
    profile = UsageProfile(path, "f", SHAPE, clock=clock)
    assert profile.save(force=True) and not path.exists()  # nothing to say
    turn(profile, 0, [1])
    assert profile.save() and path.exists()
    first = path.stat().st_ino
    turn(profile, 0, [2])
    clock.now_s = SAVE_INTERVAL_S - 1
    assert not profile.save() and path.stat().st_ino == first
    clock.now_s = SAVE_INTERVAL_S
    assert profile.save() and path.stat().st_ino != first
    turn(profile, 0, [3])
    assert profile.save(force=True)
    assert load(path, []).hottest(0, 3) == profile.hottest(0, 3)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_failing_save_is_told_once_keeps_the_old_file_and_is_tried_again(
    saved: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = saved.read_bytes()
    notices: list[str] = []
    profile = load(saved, notices)

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for _ in range(3):
            turn(profile, 1, [4])
            assert not profile.save(force=True)
    assert len(notices) == 1 and os.strerror(number) in notices[0]
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["p"]  # no litter
    assert profile.save(force=True)
    assert load(saved, notices).hottest(1, 1) == [4]
    assert len(notices) == 1


def test_a_folder_that_cannot_be_made_does_not_stop_the_chat(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    notices: list[str] = []
    profile = load(tmp_path / "file" / "p", notices)
    turn(profile, 0, [1])
    assert not profile.save()
    assert sum("cannot be saved" in notice for notice in notices) == 1
