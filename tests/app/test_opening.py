"""Checkpoints over several drives, each folder a drive of its own: what is said of them and what is read from them.

The model itself is the tiny one and answers for real; every answer must be the one that a single drive gives.
"""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.backends.local import LocalBackend
from app.backends.opening import Demotions
from app.cli import main
from app.paths import cache_dir, settings_file
from app.reading import Reading
from engine.errors import Stopped
from storage.drives import DriveFacts, drive_of
from storage.errors import DriveError, ShortRead
from storage.profile import UsageProfile
from storage.replicas import Demotion
from storage.syscalls import Syscalls
from storage.trace import TraceReader

Output = pytest.CaptureFixture[str]
Ask = Callable[..., tuple[list[dict[str, Any]], str]]

_TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
_SHARD = "model-00004-of-00016.safetensors"


@pytest.fixture(autouse=True)
def _each_folder_a_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(path: Path) -> DriveFacts:
        name = "model" if path == _TINY else "model" if path.name == "same" else path.name
        return replace(drive_of(path), disks=frozenset({name}))

    monkeypatch.setattr("app.backends.opening.drive_of", find)


@pytest.fixture
def ask(capsys: Output) -> Ask:
    """Asks the tiny model something and gives the events and stderr."""

    def run(*options: str, model: Path = _TINY, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        fixed = ["--think", "off", "--temperature", "0", "--max-tokens", "3", "--json"]
        fixed += [] if "--slots" in options else ["--slots", "2"]
        assert main(["ask", "hello", "--model", str(model), *fixed, *options]) == code
        out, err = capsys.readouterr()
        return [json.loads(line)["data"] for line in out.splitlines()], err

    return run


def _mirror(folder: Path, shards: Sequence[str] | None = None) -> Path:
    folder.mkdir()
    for name in shards if shards is not None else [path.name for path in _TINY.glob("*.safetensors")]:
        shutil.copyfile(_TINY / name, folder / name)
    return folder


def _tokens(events: list[dict[str, Any]]) -> list[int]:
    return [event["token"] for event in events if event.get("event") == "token_drawn"]


def _drives(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {drive["drive"]: drive for drive in events[-1]["stats"]["drives"]}


def _notices(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events if event.get("event") == "notice"]


_plain: list[int] = []


@pytest.fixture
def plain(ask: Ask) -> list[int]:
    """The answer from one drive, made once for all tests."""
    if not _plain:
        events, _ = ask()
        assert list(_drives(events)) == ["model"] and _notices(events) == []
        _plain.extend(_tokens(events))
    return _plain


def _weights(**weights: float) -> list[str]:
    return [word for folder, weight in weights.items() for word in ("--drive-weight", f"{folder}={weight}")]


def test_a_mirror_is_used_and_the_bytes_of_each_drive_are_counted(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    mirror = _mirror(tmp_path / "mirror")
    events, err = ask("--mirror", str(mirror), *_weights(**{str(mirror): 1, str(_TINY): 1}))
    assert _tokens(events) == plain and _notices(events) == []
    drives = _drives(events)
    total = events[-1]["stats"]["read_bytes"]
    assert set(drives) == {"model", "mirror"} and sum(drive["payload_bytes"] for drive in drives.values()) == total
    # Of equal weight, so about half each: an answer this short is within a fifth of it.
    assert 0.3 * total < drives["mirror"]["payload_bytes"] < 0.7 * total
    assert drives["mirror"]["rate_bytes_s"] > 0 and drives["mirror"]["queue_s"] >= 0
    assert "(mirror " in err and ", model " in err


def test_a_drive_of_weight_0_serves_only_what_nobody_else_has(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    mirror = _mirror(tmp_path / "mirror")
    events, _ = ask("--mirror", str(mirror), *_weights(**{str(mirror): 1, str(_TINY): 0}))
    assert _tokens(events) == plain and list(_drives(events)) == ["mirror"]


def test_without_weights_the_rates_are_measured_and_said(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    events, err = ask("--mirror", str(_mirror(tmp_path / "mirror")))
    assert _tokens(events) == plain
    (notice,) = _notices(events)
    assert notice.startswith("2 drives share the reads, most where they end soonest. Measured now: mirror ")
    assert notice.count("/s") == 2 and f"artesian: {notice}\n" in err


def test_rates_measured_once_are_used_by_the_next_run(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    mirror = str(_mirror(tmp_path / "mirror"))
    (first,) = _notices(ask("--mirror", mirror)[0])
    events, _ = ask("--mirror", mirror)
    (second,) = _notices(events)
    # The same figures, to the digit: rates measured twice would differ.
    assert _tokens(events) == plain and second == first.replace("Measured now", "Measured before")
    assert "Measured now" in _notices(ask("--mirror", mirror, "--depth", "2")[0])[0]  # at another depth, anew


def test_a_split_checkpoint_is_read_from_both_folders(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    model = tmp_path / "first"
    shutil.copytree(_TINY, model)
    (tmp_path / "second").mkdir()
    for path in sorted(model.glob("*.safetensors"))[::2]:
        path.rename(tmp_path / "second" / path.name)
    events, _ = ask("--split", str(tmp_path / "second"), model=model)
    assert _tokens(events) == plain and set(_drives(events)) == {"first", "second"}
    assert _notices(events) == []  # no shard is in two places, so there is nothing to weigh


def test_a_mirror_stands_in_for_a_shard_that_is_cut(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    mirror = _mirror(tmp_path / "mirror")
    model = tmp_path / "first"
    shutil.copytree(_TINY, model)
    os.truncate(model / _SHARD, 5000)
    weights = _weights(**{str(model): 1, str(mirror): 1})
    events, _ = ask("--mirror", str(mirror), *weights, model=model)
    assert _tokens(events) == plain
    assert [n for n in _notices(events) if n.startswith(f"Shard {_SHARD} cannot be used") and str(mirror) in n]


def test_a_split_of_the_settings_with_nothing_new_in_it_is_said(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    (tmp_path / "second").mkdir()
    settings_file().parent.mkdir(parents=True, exist_ok=True)
    settings_file().write_text(f'model = "{_TINY}"\nsplit = ["{tmp_path / "second"}"]\n')
    events, _ = ask()
    assert _tokens(events) == plain
    (notice,) = _notices(events)
    assert str(tmp_path / "second") in notice and "holds no shard" in notice


def test_what_is_no_copy_is_refused_with_the_reason_and_the_answer_stays(
    tmp_path: Path, ask: Ask, plain: list[int]
) -> None:
    mirror = _mirror(tmp_path / "mirror", [_SHARD, "model-00005-of-00016.safetensors"])
    with (mirror / _SHARD).open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    os.truncate(mirror / "model-00005-of-00016.safetensors", 1000)
    events, err = ask("--mirror", str(mirror), "--mirror", str(tmp_path / "gone"))
    assert _tokens(events) == plain and list(_drives(events)) == ["model"]
    header, size, gone = _notices(events)
    assert _SHARD in header and "another header" in header and "byte 20" in header
    assert "1,000 bytes" in size and "is not used" in size
    assert str(tmp_path / "gone") in gone and "not there" in gone
    assert all(f"artesian: {notice}\n" in err for notice in (header, size, gone))


def test_a_mirror_of_something_else_and_one_of_another_revision_are_said_in_few_words(
    tmp_path: Path, ask: Ask, plain: list[int]
) -> None:
    (tmp_path / "empty").mkdir()
    other = _mirror(tmp_path / "other")
    for path in other.iterdir():
        os.truncate(path, 100)
    events, _ = ask("--mirror", str(tmp_path / "empty"), "--mirror", str(other))
    assert _tokens(events) == plain
    notices = _notices(events)
    assert "holds no shard of this checkpoint" in notices[0]
    assert len(notices) == 5 and "13 more files are not used" in notices[-1]  # of 16


def test_a_mirror_on_the_same_disk_is_said_to_give_no_more_speed(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    events, err = ask("--mirror", str(_mirror(tmp_path / "same")))
    assert _tokens(events) == plain and list(_drives(events)) == ["model"]
    (notice,) = _notices(events)
    assert "same disk" in notice and "no more speed" in notice and notice in err


def test_verifying_finds_one_flipped_byte_names_it_and_does_not_read_the_copy(
    tmp_path: Path, ask: Ask, plain: list[int]
) -> None:
    mirror = _mirror(tmp_path / "mirror", [_SHARD])
    place = (mirror / _SHARD).stat().st_size - 1
    with (mirror / _SHARD).open("r+b") as file:
        file.seek(place)
        last = file.read(1)[0]
        file.seek(place)
        file.write(bytes([last ^ 1]))
    events, err = ask("--mirror", str(mirror), "--verify-mirror")
    assert _tokens(events) == plain and list(_drives(events)) == ["model"]
    (notice,) = _notices(events)
    assert f"byte {place:,}" in notice and f"{last ^ 1:#04x} instead of {last:#04x}" in notice and notice in err


def test_verifying_an_equal_mirror_says_how_much_was_compared(tmp_path: Path, ask: Ask, plain: list[int]) -> None:
    mirror = _mirror(tmp_path / "mirror", [_SHARD])
    events, _ = ask("--mirror", str(mirror), "--verify-mirror", *_weights(**{str(mirror): 1, str(_TINY): 0}))
    assert _tokens(events) == plain and "mirror" in _drives(events)
    assert "1 copy is as the shards are, in " in _notices(events)[0]


def test_verifying_stops_when_asked(tmp_path: Path) -> None:
    backend = LocalBackend(
        _TINY,
        numerics="exact",
        index_owner="published",
        reading=Reading(mirrors=(_mirror(tmp_path / "mirror"),), verify_mirrors=True),
        token_map_cache=None,
        profiles=None,
    )
    events: list[object] = []
    with pytest.raises(Stopped, match="comparing"):
        backend.open(events.append, lambda: True)
    backend.close()
    assert events == []


def test_a_trace_is_recorded_step_by_step_and_can_be_replayed(tmp_path: Path, ask: Ask, capsys: Output) -> None:
    trace = tmp_path / "t.trace"
    events, _ = ask("--record-trace", str(trace), "--chunk-tokens", "4", "--draft", "off")
    n_layers = 8  # of the tiny model
    requests = list(TraceReader(trace))
    # The prompt in chunks of 4, then a forward for every token but the last drawn.
    n_chunks = -(-events[0]["prompt_tokens"] // 4)
    n_steps = n_chunks + len(_tokens(events)) - 1
    assert [(r.step, r.layer) for r in requests] == [(s, layer) for s in range(n_steps) for layer in range(n_layers)]
    assert [r.phase for r in requests[::n_layers]] == ["prefill"] * n_chunks + ["decode"] * (n_steps - n_chunks)
    stats = events[-1]["stats"]
    assert sum(len(r.experts) for r in requests) == stats["expert_hits"] + stats["expert_misses"]
    assert main(["bench", "cache", "--trace", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "bench_cache"


def test_a_trace_has_the_requests_of_the_draft_stages_too(tmp_path: Path, ask: Ask, capsys: Output) -> None:
    trace = tmp_path / "t.trace"
    events, _ = ask("--record-trace", str(trace), "--draft", "on")
    stats = events[-1]["stats"]
    requests = list(TraceReader(trace))
    assert sum(len(r.experts) for r in requests) == stats["expert_hits"] + stats["expert_misses"]
    assert sum(r.layer == 8 for r in requests) == stats["draft"]["rounds"] > 0  # the first stage, behind eight layers
    assert main(["bench", "cache", "--trace", str(trace), "--json"]) == 0
    capsys.readouterr()


def _profiles() -> list[Path]:
    return sorted((cache_dir() / "usage").glob("*"))


def test_the_usage_profile_is_written_outside_the_model_and_read_again(ask: Ask, tmp_path: Path) -> None:
    before = sorted(_TINY.rglob("*"))
    ask("--record-trace", str(tmp_path / "t"))
    (path,) = _profiles()
    assert sorted(_TINY.rglob("*")) == before
    first = path.read_bytes()
    ask()
    assert _profiles() == [path] and path.read_bytes() != first  # a second turn moved what the first had left
    # What is hottest in a layer is what the turn asked for most.
    asked = [r.experts for r in TraceReader(tmp_path / "t") if r.layer == 3]
    counts = {expert: sum(expert in experts for experts in asked) for expert in range(16)}
    fingerprint = first[12 : 12 + 64].decode()
    n_experts = dict.fromkeys(range(8), 16) | dict.fromkeys(range(8, 11), 8)  # eight layers, three draft stages
    hottest = UsageProfile.load(path, fingerprint, n_experts).hottest(3, 1)
    assert counts[hottest[0]] == max(counts.values())


def test_a_damaged_profile_is_set_aside_with_a_word_and_the_answer_stays(ask: Ask, plain: list[int]) -> None:
    ask()
    (path,) = _profiles()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    events, err = ask()
    assert _tokens(events) == plain
    (notice,) = _notices(events)
    assert "is not used" in notice and ".set-aside" in notice and notice in err
    assert [p.suffix for p in _profiles()] == [".usage", ".set-aside"]


def test_a_profile_that_cannot_be_saved_is_a_notice(
    ask: Ask, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("storage.profile._replace", full)
    events, _ = ask()
    assert _tokens(events) == plain
    (notice,) = _notices(events)
    assert "cannot be saved: No space left on device" in notice
    assert events[-1]["event"] == "turn_done"  # what the user should know comes before


def test_the_demo_leaves_no_profile_behind(capsys: Output) -> None:
    assert main(["ask", "hi", "--max-tokens", "1"]) == 0
    assert _profiles() == []


def test_warming_reads_what_the_profile_says_and_yields(ask: Ask) -> None:
    backend = LocalBackend(
        _TINY,
        numerics="exact",
        index_owner="published",
        reading=Reading(slots=2),
        token_map_cache=None,
        profiles=cache_dir() / "usage",
    )
    assert backend.warm(lambda: False) == 0  # not open yet
    backend.open(lambda event: None, lambda: False)
    assert backend.warm(lambda: False) == 0  # nothing is known of this user
    backend.close()
    ask()
    backend.open(lambda event: None, lambda: False)
    assert backend.warm(lambda: True) == 0
    assert backend.warm(lambda: False) == 2 * 11  # two slots of every layer and draft stage
    assert backend.warm(lambda: False) == 0
    backend.close()


def test_what_does_not_fit_is_refused_with_the_smallest_change_that_would(ask: Ask) -> None:
    _, err = ask("--slots", "16", "--ram", "300MB", code=3)
    assert "may take 300 MB" in err and "It fits with --ram " in err
    least = int(err.partition("It fits with --ram ")[2].partition("MB")[0])
    ask("--slots", "16", "--ram", f"{least}MB")
    # Two million bytes less: a slot of all eight layers is half a million.
    _, err = ask("--slots", "16", "--ram", f"{least - 2}MB", code=3)
    most = int(err.partition("It fits with --slots ")[2].split(".")[0])
    assert 1 <= most < 16
    ask("--slots", str(most), "--ram", f"{least - 2}MB")
    ask("--slots", str(most + 1), "--ram", f"{least - 2}MB", code=3)


def test_more_memory_than_is_available_is_refused(ask: Ask) -> None:
    _, err = ask("--ram", "900TB", code=3)
    assert "At most --ram " in err


@pytest.mark.parametrize(("n_left", "goes_on"), [(1, "another drive"), (2, "2 other drives")])
def test_a_demotion_names_drive_file_error_and_what_goes_on(n_left: int, goes_on: str) -> None:
    said: list[str] = []
    path = Path("/disk/model-1.safetensors")
    error = DriveError.of(OSError(errno.EIO, "x"), path, 4096)
    demotion = Demotion(drive="nvme1n1", path=path, whole_drive=True, error=error, n_left=n_left)
    Demotions(said.append).tell(demotion)
    (text,) = said
    assert str(path) in text and "EIO" in text and "byte 4,096" in text and "drive nvme1n1" in text and goes_on in text
    Demotions(said.append).tell(replace(demotion, n_left=0))
    assert said[1].endswith("No other drive holds model-1.safetensors.")


def test_of_many_files_the_first_three_are_named() -> None:
    said: list[str] = []
    demotions = Demotions(said.append)
    for i in range(10):
        path = Path(f"/disk/{i}.safetensors")
        error = ShortRead("short", file=path, offset=0, errno=0)
        demotions.tell(Demotion(drive="a", path=path, whole_drive=False, error=error, n_left=1))
    assert len(said) == 4 and said[-1].startswith("More files of drive a fail")


def test_a_mirror_that_fails_in_mid_answer_is_a_notice_and_the_answer_stays(
    tmp_path: Path, ask: Ask, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = _mirror(tmp_path / "mirror")
    fds: set[int] = set()
    real_open, real_pread, n_reads = Syscalls.open, Syscalls.pread, 0

    def remembered(self: Syscalls, path: Path, *, direct: bool) -> int:
        fd = real_open(self, path, direct=direct)
        fds.discard(fd)
        if mirror in path.parents:
            fds.add(fd)
        return fd

    def failing(self: Syscalls, fd: int, target: memoryview, offset: int) -> int:
        nonlocal n_reads
        # the streams', and the look at whether it answers again; not the loading's
        if fd in fds and threading.current_thread().name.startswith(("read ", "returning ")):
            n_reads += 1
            if n_reads > 3:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_pread(self, fd, target, offset)

    monkeypatch.setattr(Syscalls, "open", remembered)
    monkeypatch.setattr(Syscalls, "pread", failing)
    weights = _weights(**{str(mirror): 1, str(_TINY): 1})
    events, err = ask("--mirror", str(mirror), *weights, "--io", "buffered")
    assert _tokens(events) == plain
    (notice,) = _notices(events)
    assert "EIO" in notice and "another drive" in notice and "drive mirror" in notice and notice in err
    assert _drives(events)["mirror"]["n_errors"] > 0
