"""What the machine says of itself, from made-up trees: unknown, zero and broken are three different answers."""

from pathlib import Path

import pytest

from planner.facts import (
    UNKNOWN_AVAILABLE_BYTES,
    Drive,
    MachineFacts,
    assumed_rates,
    available_bytes,
    own_bytes,
    read_facts,
    usable_cores,
    with_drives,
)

KB = 1024


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   24000000 kB\nCached: 20000000 kB\n"
STATUS = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  800 kB\nRssAnon:\t  300 kB\nRssFile:\t  500 kB\n"


def test_available_counts_cache_that_can_go_and_what_the_process_holds_already(tmp_path: Path) -> None:
    facts = read_facts(root=tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/status": STATUS}))
    assert facts.total_bytes == 32_000_000 * KB
    assert facts.available_bytes == (24_000_000 + 300) * KB  # mapped files are not held: they can be dropped
    assert facts.ruled_by == "system" and facts.notes == ()
    assert own_bytes(tmp_path) == 300 * KB


@pytest.mark.parametrize(
    ("files", "group"),
    [
        ({"a/b/memory.max": "max", "a/memory.max": "2000000000", "a/memory.current": "500000000"}, "a"),
        ({"memory/a/b/memory.limit_in_bytes": "1500000000", "memory/a/b/memory.usage_in_bytes": "0"}, "memory/a/b"),
    ],
)
def test_a_container_of_two_gigabytes_on_a_large_machine_rules(
    tmp_path: Path, files: dict[str, str], group: str
) -> None:
    cgroups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    membership = {"proc/self/cgroup": "4:memory:/a/b\n0::/a/b\n", "proc/meminfo": MEMINFO}
    facts = read_facts(root=tree(tmp_path, cgroups | membership))
    assert facts.available_bytes == 1_500_000_000
    assert facts.total_bytes <= 2_000_000_000
    assert facts.ruled_by == str(tmp_path / "sys/fs/cgroup" / group)
    assert available_bytes(tmp_path) == 1_500_000_000


def test_a_limit_above_what_the_system_has_does_not_rule(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "90000000000", "sys/fs/cgroup/memory.current": "0"}
    facts = read_facts(root=tree(tmp_path, files | {"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO}))
    assert facts.ruled_by == "system" and facts.available_bytes == 24_000_000 * KB


def test_unknown_is_a_stated_cautious_figure(tmp_path: Path) -> None:
    facts = read_facts(root=tmp_path)
    assert facts.available_bytes == UNKNOWN_AVAILABLE_BYTES and facts.ruled_by == "assumed"
    assert "4 GB are assumed" in facts.notes[0]


def test_zero_is_zero(tmp_path: Path) -> None:
    facts = read_facts(root=tree(tmp_path, {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 0 kB\n"}))
    assert facts.available_bytes == 0 and facts.ruled_by == "system"


def test_nonsense_is_named_with_its_file(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: lots\n", "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "lots"}
    facts = read_facts(root=tree(tmp_path, files))
    assert facts.ruled_by == "assumed"
    assert any(str(tmp_path / "proc/meminfo") in note for note in facts.notes)
    assert any(str(tmp_path / "sys/fs/cgroup/memory.max") in note for note in facts.notes)


def test_an_old_kernel_without_the_figure_gets_half_of_its_cache(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 500 kB\n"}
    facts = read_facts(root=tree(tmp_path, files))
    assert facts.available_bytes == 350 * KB and "no MemAvailable" in facts.notes[0]


def test_cores_are_whole_ones_within_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores(tmp_path) == 8
    for quota, cores in (("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("900000 100000", 8)):
        tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
        assert usable_cores(tmp_path) == cores


def test_further_drives_are_as_fast_as_the_first() -> None:
    drive = Drive(name="a", kind="nvme", rate_bytes_s=5e9, source="measured")
    facts = MachineFacts(
        total_bytes=1, available_bytes=1, ruled_by="system", n_cores=1, drives=(drive,), rates=assumed_rates(1)
    )
    more = with_drives(facts, 3)
    assert [d.rate_bytes_s for d in more.drives] == [5e9] * 3 and len({d.name for d in more.drives}) == 3
    assert with_drives(more, 1) == facts
