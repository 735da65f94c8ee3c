from pathlib import Path

import pytest

from app.machine import cgroup_quota_cores, cgroup_room_bytes, cpu_features, cpu_name

_X86 = (
    "processor\t: 0\nmodel name\t: AMD EPYC 9575F\nflags\t\t: fpu sse2 avx2 fma f16c avx512f avx512_vnni bogus\n\n"
    "processor\t: 1\n"
)
_ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n"


def test_features_are_those_of_cpuinfo_in_one_order() -> None:
    assert cpu_features(_X86) == ("AVX2", "FMA", "F16C", "AVX-512F", "AVX-512-VNNI")
    assert cpu_features(_ARM) == ("NEON", "NEON-DOTPROD", "I8MM", "BF16", "SVE")
    assert cpu_name(_X86) == "AMD EPYC 9575F"


def _tree(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A made-up /sys/fs/cgroup and /proc/self/cgroup."""
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(membership)
    return root / "cgroup", root / "self"


def test_the_tightest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n", "a/b/c/cpu.max": "400000 100000\n"}
    assert cgroup_quota_cores(*_tree(tmp_path, "0::/a/b/c\n", files)) == 1.5


def test_a_quota_of_the_first_cgroup_version_counts(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert cgroup_quota_cores(*_tree(tmp_path, "7:memory:/y\n4:cpu,cpuacct:/x\n0::/\n", files)) == 0.5


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
    assert cgroup_room_bytes(*_tree(tmp_path, "0::/a/b\n", files)) == 3_000_000_000


def test_memory_of_the_first_cgroup_version_and_its_sign_for_no_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/x/memory.limit_in_bytes": "1000",
        "memory/x/memory.usage_in_bytes": "900",
        "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
    }
    assert cgroup_room_bytes(*_tree(tmp_path, "5:memory:/x\n", files)) == 150
    assert cgroup_room_bytes(*_tree(tmp_path, "5:memory:/\n", {})) is None


def test_a_group_over_its_limit_has_no_room(tmp_path: Path) -> None:
    files = {"memory.max": "100", "memory.current": "150"}
    assert cgroup_room_bytes(*_tree(tmp_path, "0::/\n", files)) == 0


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/a\n", {}),
        ("0::/a\n", {"a/cpu.max": "max 100000"}),
        ("0::/a\n", {"a/cpu.max": "lots"}),
        ("0::/a\n", {"a/cpu.max": "100000 0"}),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "5"}),
        ("0::/a\n", {"a/memory.max": "lots", "a/memory.current": "5"}),
        ("0::/a\n", {"a/memory.max": "5"}),
        ("nonsense\n", {}),
        ("", {}),
    ],
)
def test_no_quota_and_nonsense_are_both_no_limit(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    tree = _tree(tmp_path, membership, files)
    assert cgroup_quota_cores(*tree) is None
    assert cgroup_room_bytes(*tree) is None


def test_no_cgroups_at_all_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_quota_cores(tmp_path / "nothing", tmp_path / "nothing") is None
