from pathlib import Path

import pytest

from planner.cgroups import memory_room, quota_cores


def _tree(root: Path, membership: str, files: dict[str, str]) -> Path:
    """A made-up /sys/fs/cgroup and /proc/self/cgroup."""
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(membership)
    return root


def _room(root: Path) -> int | None:
    room = memory_room(root)
    return None if room is None else room.room_bytes


def test_the_tightest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n", "a/b/c/cpu.max": "400000 100000\n"}
    assert quota_cores(_tree(tmp_path, "0::/a/b/c\n", files)) == 1.5


def test_a_quota_of_the_first_cgroup_version_counts(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert quota_cores(_tree(tmp_path, "7:memory:/y\n4:cpu,cpuacct:/x\n0::/\n", files)) == 0.5


def test_memory_is_what_the_tightest_group_above_leaves_with_its_file_cache_free(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "8000000000",
        "a/memory.current": "7000000000",
        "a/memory.stat": "anon 1\nactive_file 5\ninactive_file 2000000000\n",
        "a/b/memory.max": "max",
        "a/b/memory.current": "10",
        "memory.max": "90000000000",
        "memory.current": "1",
    }
    room = memory_room(_tree(tmp_path, "0::/a/b\n", files))
    assert room is not None and (room.room_bytes, room.limit_bytes) == (3_000_000_000, 8_000_000_000)
    assert room.group == str(tmp_path / "sys/fs/cgroup/a")


def test_memory_of_the_first_cgroup_version_and_its_sign_for_no_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/x/memory.limit_in_bytes": "1000",
        "memory/x/memory.usage_in_bytes": "900",
        "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
    }
    assert _room(_tree(tmp_path, "5:memory:/x\n", files)) == 150
    assert _room(_tree(tmp_path, "5:memory:/\n", {})) is None


def test_a_group_over_its_limit_has_no_room(tmp_path: Path) -> None:
    files = {"memory.max": "100", "memory.current": "150"}
    assert _room(_tree(tmp_path, "0::/\n", files)) == 0


def test_a_limit_of_zero_is_a_limit(tmp_path: Path) -> None:
    assert _room(_tree(tmp_path, "0::/\n", {"memory.max": "0", "memory.current": "0"})) == 0


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/a\n", {}),
        ("0::/a\n", {"a/cpu.max": "max 100000"}),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "5"}),
        ("0::/a\n", {"a/memory.max": "5"}),
        ("nonsense\n", {}),
        ("", {}),
    ],
)
def test_no_limit_is_no_limit(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    tree = _tree(tmp_path, membership, files)
    assert quota_cores(tree) is None
    assert memory_room(tree) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("cpu.max", "lots"), ("cpu.max", "100000 0"), ("memory.max", "lots"), ("memory.current", "-")],
)
def test_a_file_that_makes_no_sense_is_named_and_no_limit(tmp_path: Path, name: str, text: str) -> None:
    files = {"a/memory.max": "500", "a/memory.current": "5", f"a/{name}": text}
    if name == "cpu.max":
        files = {f"a/{name}": text}
    tree = _tree(tmp_path, "0::/a\n", files)
    notes: list[str] = []
    assert quota_cores(tree, notes.append) is None
    assert memory_room(tree, notes.append) is None
    assert len(notes) == 1 and str(tmp_path / "sys/fs/cgroup/a" / name) in notes[0] and repr(text) in notes[0]


def test_no_cgroups_at_all_is_no_limit(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None
    assert memory_room(tmp_path) is None
