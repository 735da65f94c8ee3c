"""`artesian mirror` from the first look to an answer from the copy, on folders with a made-up device table.

The tables stand in for loop devices, which most places where tests run do not permit: the model lies on disk a,
"second" on disk b, "bound" on a volume over disk a, and "small" on disk c.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.commands import mirror_do, mirror_look
from app.errors import UsageError
from app.mirroring import MirrorDesk, expert_uses
from app.model_choice import choose_model
from app.paths import rates_file, settings_file
from app.rates import RateBook
from app.reading import ReadingOptions, make_reading
from app.report import format_bytes
from app.settings import load_settings
from app.settings_edit import edit_settings
from storage.checkpoint import refusal
from storage.drives import DriveFacts
from storage.inspection import inspect
from storage.mirroring.files import WRITE, WriteCalls
from storage.mirroring.part import part_path
from storage.syscalls import Syscalls

Output = pytest.CaptureFixture[str]
Run = Callable[..., int]

_TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
_SHARD = "model-00004-of-00016.safetensors"
_DISKS = {"first": "a", "second": "b", "bound": "a", "small": "c"}


def make_root(tmp_path: Path) -> Path:
    """The file systems of `_DISKS` as folders, and the mount table that lists them."""
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "etc").mkdir()
    lines = []
    for number, name in enumerate(_DISKS):
        (tmp_path / name).mkdir()
        lines.append(f"2{number} 1 259:{number} / {tmp_path / name} rw - ext4 /dev/{name} rw")
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    (root / "etc/fstab").write_text(f"UUID=9 {tmp_path}/unplugged ext4 defaults 0 2\n")
    return root


def drive_finder(tmp_path: Path) -> Callable[[Path], DriveFacts]:
    """The drive of any path below `tmp_path`."""

    def find(path: Path) -> DriveFacts:
        name = next(name for name in _DISKS if (tmp_path / name) in (path.resolve(), *path.resolve().parents))
        return DriveFacts(
            disks=frozenset(_DISKS[name]), kind="nvme", fs_type="ext4", mount_point=str(tmp_path / name), source="",
            model="", logical_block_bytes=512, physical_block_bytes=4096,
        )  # fmt: skip

    return find


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiny-a on disk a, named in the settings, with the device table in force for every command."""
    root = make_root(tmp_path)
    folder = tmp_path / "first" / "tiny"
    shutil.copytree(_TINY, folder)
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text(f'# mine\nmodel = "{folder}"\n')

    def desk(model: str | None, split: Any) -> MirrorDesk:
        settings = load_settings(settings_file())
        return MirrorDesk(
            choose_model(model, settings), settings, RateBook(rates_file()), settings_path=settings_file(),
            splits=split, find_drive=drive_finder(tmp_path), root=root, least_bytes=0, block_bytes=100_000,
        )  # fmt: skip

    for module in (mirror_do, mirror_look):
        monkeypatch.setattr(module, "make_desk", desk)
    return folder


def answer_json(capsys: Output, *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def tokens(capsys: Output, model: Path, *arguments: str) -> list[int]:
    """What the model draws, greedily, read as the settings and the arguments say."""
    capsys.readouterr()
    assert (
        main(["ask", "hi", "--raw", "--ids", "--temperature", "0", "--max-tokens", "6", "--slots", "4", *arguments])
        == 0
    )
    return [int(word) for word in capsys.readouterr().out.split()]


def test_a_scan_tells_other_disks_from_the_models_own(model: Path, tmp_path: Path, capsys: Output) -> None:
    found = answer_json(capsys, "mirror", "scan")
    assert {Path(one["folder"]).name: one["shares_disks_with_model"] for one in found} == {
        "second": [], "small": [], "first": ["a"], "bound": ["a"],
    }  # fmt: skip
    assert all(one["rate_bytes_s"] is None for one in found)
    assert main(["mirror", "scan"]) == 0
    assert "the model's own disk: no more speed" in capsys.readouterr().out


def test_a_proposal_copies_the_expert_shards_and_no_table(model: Path, capsys: Output) -> None:
    RateBook(rates_file())  # nothing was measured: the gain is not known
    (second,) = [
        one for one in answer_json(capsys, "mirror", "propose") if one["target"].endswith("second/artesian-mirror-tiny")
    ]
    # tiny-a keeps the experts of its eight layers in shards 3 to 10, those of its three draft stages in 12 to 14; the
    # embedding, the head and the tables are not read.
    experts = [*range(3, 11), *range(12, 15)]
    assert sorted(second["shards"]) == [f"model-{n:05d}-of-00016.safetensors" for n in experts]
    assert (second["gain"], second["read_share"], second["whole"]) == (None, pytest.approx(1.0), True)
    book = RateBook(rates_file())
    book.note_drive("a", 2e9)
    book.note_drive("b", 1e9)
    book.save()
    (second,) = [
        one for one in answer_json(capsys, "mirror", "propose") if one["target"].endswith("second/artesian-mirror-tiny")
    ]
    assert second["gain"] == pytest.approx(1.5)  # 2 and 1 GB/s side by side
    (bound,) = [one for one in answer_json(capsys, "mirror", "propose") if "/bound/" in one["target"]]
    assert bound["gain"] == 1.0 and "same disk" in bound["why_not"]


def test_the_profile_decides_what_a_small_budget_buys(model: Path) -> None:
    headers = {s: r.header for s, r in inspect(model).shards.items() if r.header is not None}
    even = {use.shard: use.read_share for use in expert_uses(headers, {})}
    assert sum(even.values()) == pytest.approx(1.0)
    n_experts = 32
    hot = {use.shard: use.read_share for use in expert_uses(headers, {0: [1.0] + [0.0] * (n_experts - 1)})}
    # Each layer has the same traffic, whatever its experts: a profile of one layer moves nothing between their shards.
    # But one that knows no draft stage, which come behind the last of eight layers, is of answers without drafts.
    stages = [f"model-{n:05d}-of-00016.safetensors" for n in (12, 13, 14)]
    assert all(even[name] == pytest.approx(1 / 11) and hot[name] == 0 for name in stages)
    assert all(hot[name] == pytest.approx(share * 11 / 8) for name, share in even.items() if name not in stages)
    drafted = {use.shard: use.read_share for use in expert_uses(headers, {8: [1.0] + [0.0] * 15})}
    assert drafted[stages[0]] == pytest.approx(1 / 9) and drafted[stages[1]] == 0


def test_from_copy_to_answer_to_damage_to_repair_to_removal(model: Path, tmp_path: Path, capsys: Output) -> None:
    plain = tokens(capsys, model)
    target = tmp_path / "second" / "mirror"
    made = answer_json(capsys, "mirror", "copy", "--to", str(target))
    assert len(made["shards"]) == 11 and made["in_settings"]
    assert settings_file().read_text() == f'# mine\nmodel = "{model}"\nmirror = ["{target}"]\n'
    weights = ["--drive-weight", f"{model}=1", "--drive-weight", f"{target}=1"]
    assert tokens(capsys, model, *weights) == plain

    assert main(["mirror", "check", str(target), "--all"]) == 0
    assert main(["mirror", "status"]) == 0
    damage(target / _SHARD, 150_000)
    assert main(["mirror", "check", str(target), "--all"]) == 4
    assert "byte 150,000 is" in capsys.readouterr().out
    assert main(["mirror", "repair", str(target)]) == 0
    assert (target / _SHARD).read_bytes() == (model / _SHARD).read_bytes()

    damage(target / _SHARD, 20)  # in the header: refused at start, by name, and the answer stays
    capsys.readouterr()
    assert tokens(capsys, model, *weights) == plain
    (target / _SHARD).unlink()  # and gone: the others still serve
    assert main(["mirror", "status"]) == 1
    assert "missing or cut" in capsys.readouterr().out
    assert tokens(capsys, model, *weights) == plain
    assert main(["mirror", "copy", "--to", str(target)]) == 0
    assert (target / _SHARD).read_bytes() == (model / _SHARD).read_bytes()

    assert main(["mirror", "remove", str(target)]) == 0
    assert not target.exists() and settings_file().read_text() == f'# mine\nmodel = "{model}"\n'
    assert tokens(capsys, model) == plain


def damage(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 1]))


def test_a_repair_says_what_it_copied(model: Path, tmp_path: Path, capsys: Output) -> None:
    target, lost = tmp_path / "second" / "mirror", "model-00005-of-00016.safetensors"
    assert main(["mirror", "copy", "--to", str(target), "--shard", _SHARD, "--shard", lost]) == 0
    damage(target / _SHARD, 150_000)
    (target / lost).unlink()
    capsys.readouterr()
    assert main(["mirror", "repair", str(target)]) == 0
    assert capsys.readouterr().out == f"Copied {format_bytes(100_000 + (model / lost).stat().st_size)} again.\n"
    for shard in (_SHARD, lost):
        assert (target / shard).read_bytes() == (model / shard).read_bytes()
    assert main(["mirror", "repair", str(target)]) == 0
    assert capsys.readouterr().out == "Every copy is as it was copied.\n"


def test_a_repair_writes_what_cannot_be_read_again(
    model: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "second" / "mirror"
    assert main(["mirror", "copy", "--to", str(target), "--shard", _SHARD]) == 0
    damage(target / _SHARD, 150_000)
    inode, failing = (target / _SHARD).stat().st_ino, [True]

    def pread(self: Syscalls, fd: int, block: memoryview, offset: int) -> int:
        if failing and os.fstat(fd).st_ino == inode and offset == 100_000:  # until the drive is told to write it
            failing.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(fd, [block], offset)

    monkeypatch.setattr(Syscalls, "pread", pread)
    capsys.readouterr()
    assert main(["mirror", "repair", str(target)]) == 0
    assert capsys.readouterr().out == "Copied 100 kB again.\n" and not failing
    assert (target / _SHARD).read_bytes() == (model / _SHARD).read_bytes()


def test_a_full_disk_in_mid_copy_stops_cleanly_and_goes_on_later(
    model: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "second" / "mirror"
    written = 0

    def pwrite(self: WriteCalls, fd: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > 1_200_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    with monkeypatch.context() as full:
        full.setattr(type(WRITE), "pwrite", pwrite)
        assert main(["mirror", "copy", "--to", str(target)]) == 3
    err = capsys.readouterr().err
    assert "No space left on device" in err and "can be resumed" in err
    whole = sorted(path.name for path in target.glob("*.safetensors"))
    assert len(whole) == 2 and all((target / name).read_bytes() == (model / name).read_bytes() for name in whole)
    assert len(answer_json(capsys, "mirror", "copy", "--to", str(target))["shards"]) == 9
    assert len(list(target.glob("*.safetensors"))) == 11


_KILLED = """
import os, signal, sys
from pathlib import Path
from app.cli import main
from storage.mirroring.files import WriteCalls
from tests.app import test_mirror as t
n = 0
def sync_data(self, fd):
    global n
    n += 1
    if n == 6:
        os.kill(os.getpid(), signal.SIGKILL)
WriteCalls.sync_data = sync_data
tmp_path, model, target = map(Path, sys.argv[1:])
from app.commands import mirror_do
from app.mirroring import MirrorDesk
from app.model_choice import choose_model
from app.rates import RateBook
from app.settings import Settings
mirror_do.make_desk = lambda m, s: MirrorDesk(
    choose_model(str(model), Settings()), Settings(), RateBook(None), find_drive=t.drive_finder(tmp_path),
    root=tmp_path / "root", least_bytes=0, block_bytes=100_000)
main(["mirror", "copy", "--to", str(target)])
"""


def test_killed_in_mid_copy_the_same_command_goes_on(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "second" / "mirror"
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(model), str(target)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list(target.glob("*.safetensors")) == []
    (part,) = target.glob(".*.artesian-part")
    shard = part.name[1 : -len(".artesian-part")]
    assert part == part_path(target, shard) and part.stat().st_size >= 500_000
    assert len(answer_json(capsys, "mirror", "copy", "--to", str(target))["shards"]) == 11
    assert list(target.glob(".*.artesian-part")) == []
    assert main(["mirror", "check", str(target), "--all"]) == 0


@pytest.mark.parametrize(
    ("to", "code", "said"),
    [
        ("bound/mirror", 2, "is on the model's own disk (a)"),
        ("first/tiny", 2, "is the model's own folder"),
        ("unplugged/mirror", 2, "whose drive is not mounted"),
    ],
)
def test_where_no_copy_should_go_is_refused_with_the_reason(
    model: Path, tmp_path: Path, capsys: Output, to: str, code: int, said: str
) -> None:
    assert main(["mirror", "copy", "--to", str(tmp_path / to)]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "unplugged").exists() and not (tmp_path / "bound/mirror").exists()


def test_the_same_disk_is_copied_to_on_request(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "bound" / "mirror"
    assert main(["mirror", "copy", "--to", str(target), "--same-disk", "--shard", _SHARD]) == 0
    assert [path.name for path in target.glob("*.safetensors")] == [_SHARD]
    assert main(["mirror", "copy", "--to", str(target), "--same-disk", "--shard", "nothing"]) == 2
    assert "the model has no shard nothing" in capsys.readouterr().err


def test_a_budget_of_two_shards_copies_two(model: Path, tmp_path: Path, capsys: Output) -> None:
    size = max((model / f"model-{n:05d}-of-00016.safetensors").stat().st_size for n in range(3, 11))
    made = answer_json(capsys, "mirror", "copy", "--to", str(tmp_path / "small/m"), "--budget", f"{2 * size}B")
    assert len(made["shards"]) == 2


def test_what_an_earlier_copy_left_counts_in_any_folder(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "second" / "another-name"
    desk = mirror_look.make_desk(None, None)
    place = replace(desk.place_of(target), total_bytes=0)  # of which a part would stay free
    desk.copier(target, place).run(desk.jobs([_SHARD]))
    assert _SHARD in desk.propose(place).shards and _SHARD not in desk.propose(place, target=target).shards
    smallest = "model-00013-of-00016.safetensors"
    half = desk.copier(target, place, on_progress=lambda progress: half.stop())
    assert half.run(desk.jobs([smallest])) == ()  # after a block
    full = replace(place, free_bytes=desk.headers[smallest].file_bytes - 100_000)
    assert desk.propose(full, target=target).shards == (smallest,) and desk.propose(full).shards == ()


def test_the_same_budget_again_buys_nothing_more(model: Path, tmp_path: Path, capsys: Output) -> None:
    size = max((model / f"model-{n:05d}-of-00016.safetensors").stat().st_size for n in range(3, 11))
    copy = ["mirror", "copy", "--to", str(tmp_path / "second/artesian-mirror-tiny"), "--budget", f"{2 * size}B"]
    assert [len(answer_json(capsys, *copy)["shards"]) for _ in range(2)] == [2, 0]


def test_where_no_shard_fits_nothing_is_made_and_it_is_said(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["mirror", "copy", "--to", str(tmp_path / "small/m"), "--budget", "1kB"]) == 3
    assert "no shard fits into" in (told := capsys.readouterr().err) and "1.00 kB may be copied" in told
    assert not (tmp_path / "small/m").exists()


def test_a_split_moves_half_of_the_reads_and_a_join_brings_them_back(
    model: Path, tmp_path: Path, capsys: Output
) -> None:
    plain = tokens(capsys, model)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    target = tmp_path / "second" / "more"
    made = answer_json(capsys, "mirror", "split", "--to", str(target))
    # Rates are not known, so both drives count alike: five of the shards of eight layers and three draft stages.
    assert len(made["shards"]) == 5
    for name in made["shards"]:
        assert not (model / name).exists() and (target / name).read_bytes() == before[name]
    assert settings_file().read_text() == f'# mine\nmodel = "{model}"\nsplit = ["{target}"]\n'
    assert tokens(capsys, model) == plain
    assert main(["mirror", "remove", str(target)]) == 2
    assert "is the only one there is" in capsys.readouterr().err
    answer_json(capsys, "mirror", "join", str(target))
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before
    assert not target.exists() and settings_file().read_text() == f'# mine\nmodel = "{model}"\n'
    assert tokens(capsys, model) == plain


def test_a_split_with_nothing_worth_moving_is_refused(model: Path, tmp_path: Path, capsys: Output) -> None:
    book = RateBook(rates_file())
    book.note_drive("a", 2e9)
    book.note_drive("b", 1e6)
    book.save()
    before = settings_file().read_text()
    assert main(["mirror", "split", "--to", str(tmp_path / "second/more")]) == 3
    assert "no shard is worth moving to" in capsys.readouterr().err
    assert settings_file().read_text() == before and not (tmp_path / "second/more").exists()


@pytest.mark.parametrize("verb", ["copy", "split"])
def test_weights_that_say_nothing_of_a_new_folder_leave_the_settings(
    model: Path, tmp_path: Path, capsys: Output, verb: str
) -> None:
    edit_settings(settings_file(), {"drive_weight": [f"{model}=1"]})
    target = tmp_path / "second" / "more"
    assert main(["mirror", verb, "--to", str(target), "--shard", _SHARD]) == 0
    assert "drive_weight said nothing of the new folder and was taken out of the settings" in capsys.readouterr().err
    settings = load_settings(settings_file())
    reading = make_reading(ReadingOptions(), settings, choose_model(None, settings))
    assert settings.drive_weight is None and reading.weights is None
    assert (*reading.mirrors, *reading.splits) == (target,)


def test_weights_that_say_something_of_the_folder_stay(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "second" / "mirror"
    copy = ["mirror", "copy", "--to", str(target), "--shard"]
    assert main([*copy, _SHARD]) == 0
    weights = (f"{model}=1", f"{target}=2")
    edit_settings(settings_file(), {"drive_weight": weights})
    capsys.readouterr()
    assert main([*copy, "model-00005-of-00016.safetensors"]) == 0
    assert load_settings(settings_file()).drive_weight == weights and "drive_weight" not in capsys.readouterr().err


def test_a_join_takes_the_weight_of_its_folder_and_the_last_one_all(model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "second" / "more", tmp_path / "small" / "more"
    for folder, shard in ((first, _SHARD), (second, "model-00005-of-00016.safetensors")):
        assert main(["mirror", "split", "--to", str(folder), "--shard", shard]) == 0
    edit_settings(settings_file(), {"drive_weight": [f"{folder}=1" for folder in (model, first, second)]})
    assert main(["mirror", "join", str(first)]) == 0
    settings = load_settings(settings_file())
    reading = make_reading(ReadingOptions(), settings, choose_model(None, settings))
    assert reading.weights == {model: 1.0, second: 1.0}
    assert main(["mirror", "join", str(second)]) == 0
    assert settings_file().read_text() == f'# mine\nmodel = "{model}"\n'


def test_a_join_goes_onto_a_drive_that_no_copies_are_offered_on(model: Path, tmp_path: Path) -> None:
    before = (model / _SHARD).read_bytes()
    target = tmp_path / "second" / "more"
    assert main(["mirror", "split", "--to", str(target), "--shard", _SHARD]) == 0
    (tmp_path / "root/proc/self/mountinfo").write_text("")
    assert main(["mirror", "join", str(target)]) == 0
    assert (model / _SHARD).read_bytes() == before and not target.exists()


def test_a_mirror_is_not_made_a_split_nor_a_split_a_mirror(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "second" / "mirror"
    for first, second in (("copy", "split"), ("split", "copy")):
        answer_json(capsys, "mirror", first, "--to", str(target / first), "--shard", _SHARD)
        settings_file().write_text(
            settings_file().read_text().replace("split =", "# split =")
        )  # place_of knows it else
        if first == "split":
            (model / _SHARD).write_bytes((target / first / _SHARD).read_bytes())
        assert main(["mirror", second, "--to", str(target / first), "--shard", _SHARD]) == 2
        assert "already and cannot be a" in capsys.readouterr().err
        assert (model / _SHARD).exists()


def test_what_another_model_has_in_the_folder_is_not_overwritten(model: Path, tmp_path: Path, capsys: Output) -> None:
    other = tmp_path / "second" / "other-model"
    shutil.copytree(_TINY, other)
    (other / _SHARD).write_bytes(before := (other / _SHARD).read_bytes()[:-1] + b"?")
    for verb in ("copy", "split"):
        assert main(["mirror", verb, "--to", str(other), "--shard", _SHARD]) == 2
        assert "is there already and was not copied by Artesian" in capsys.readouterr().err
    assert main(["mirror", "remove", str(other)]) == 2
    assert (other / _SHARD).read_bytes() == before and (model / _SHARD).exists()


def test_a_copy_that_was_damaged_since_is_not_moved_to(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "second" / "more"
    desk = mirror_look.make_desk(None, None)
    desk.copier(target, desk.place_of(target), kind="split", reserve=0).run(desk.jobs([_SHARD]))
    copy = target / _SHARD
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    assert main(["mirror", "split", "--to", str(target), "--shard", _SHARD]) == 4
    assert "differs from what was copied" in capsys.readouterr().err
    assert (model / _SHARD).exists() and "split" not in settings_file().read_text()


def test_settings_that_changed_while_it_was_copied_count(model: Path, tmp_path: Path, capsys: Output) -> None:
    first, second, third = (mirror_look.make_desk(None, None) for _ in range(3))
    for desk, name, shard in ((first, "one", _SHARD), (second, "two", "model-00005-of-00016.safetensors")):
        target = tmp_path / "second" / name
        desk.copier(target, desk.place_of(target), kind="split", reserve=0).run(desk.jobs([shard]))
        desk.finish_split(target, [shard])
    saved = load_settings(settings_file()).split
    assert saved == (str(tmp_path / "second/one"), str(tmp_path / "second/two"))
    settings_file().write_text('model = "/elsewhere"\n')
    with pytest.raises(UsageError, match="settings name"):
        third.finish_split(tmp_path / "second/one", ["model-00006-of-00016.safetensors"])
    assert settings_file().read_text() == 'model = "/elsewhere"\n'


_DIES = """
import os, signal, sys
from pathlib import Path
from app.cli import main
from app.commands import mirror_do
from app.mirroring import MirrorDesk
from app.model_choice import choose_model
from app.rates import RateBook
from app.settings import load_settings
from storage.mirroring.files import WriteCalls
from tests.app import test_mirror as t
at, tmp_path, settings, *command = sys.argv[1:]
left = int(at)
def dying(call):
    def run(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return run
for name in ("rename", "unlink", "sync_folder", "sync"):
    setattr(WriteCalls, name, dying(getattr(WriteCalls, name)))
def desk(model, split):
    saved = load_settings(Path(settings))
    return MirrorDesk(
        choose_model(None, saved), saved, RateBook(None), settings_path=Path(settings), splits=split,
        find_drive=t.drive_finder(Path(tmp_path)), root=Path(tmp_path) / "root", least_bytes=0, block_bytes=100_000)
mirror_do.make_desk = desk
sys.exit(main(command))
"""


@pytest.mark.parametrize("at", [1, 6, 8, 10])
def test_a_join_that_is_killed_anywhere_leaves_every_shard_and_is_finished_by_the_same_command(
    model: Path, tmp_path: Path, at: int
) -> None:
    before = {path.name: path.read_bytes() for path in model.glob("*.safetensors")}
    target = tmp_path / "second" / "more"
    assert main(["mirror", "split", "--to", str(target), "--shard", _SHARD]) == 0
    join = ["mirror", "join", str(target)]
    dies = [sys.executable, "-c", _DIES, str(at), str(tmp_path), str(settings_file()), *join]
    assert subprocess.run(dies, check=False).returncode == -signal.SIGKILL
    main(["mirror", "join", str(model)])  # a slip of the hand, which takes nothing away
    saved = load_settings(settings_file()).split or ()
    assert refusal(inspect(model, splits=[Path(folder) for folder in saved])) is None  # it can be opened meanwhile
    if (target / "artesian-mirror.json").exists():
        assert main(join) == 0
    assert {path.name: path.read_bytes() for path in model.glob("*.safetensors")} == before
    assert "split" not in settings_file().read_text()


def test_a_copy_that_the_model_links_to_is_the_only_one_there_is(model: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "second" / "mirror"
    answer_json(capsys, "mirror", "copy", "--to", str(target))
    (model / _SHARD).unlink()
    (model / _SHARD).symlink_to(target / _SHARD)
    assert main(["mirror", "remove", str(target)]) == 2
    assert "is the only one there is" in capsys.readouterr().err and (target / _SHARD).exists()


def test_links_are_not_split(model: Path, tmp_path: Path, capsys: Output) -> None:
    real = tmp_path / "first" / "blob"
    (model / _SHARD).rename(real)
    (model / _SHARD).symlink_to(real)
    assert main(["mirror", "split", "--to", str(tmp_path / "second/more"), "--shard", _SHARD]) == 2
    assert "is a link" in capsys.readouterr().err
    assert real.exists() and not (tmp_path / "second/more").exists()


def test_a_model_that_no_settings_name_is_not_split(model: Path, tmp_path: Path, capsys: Output) -> None:
    settings_file().unlink()
    assert main(["mirror", "split", "--to", str(tmp_path / "second/more"), "--model", str(model)]) == 2
    assert "the settings name" in capsys.readouterr().err
    assert len(list(model.glob("*.safetensors"))) == 16


def test_a_mirror_made_by_hand_is_known_and_not_removed(model: Path, tmp_path: Path, capsys: Output) -> None:
    mirror = tmp_path / "second" / "by-hand"
    mirror.mkdir()
    shutil.copy(model / _SHARD, mirror / _SHARD)
    (state,) = answer_json(capsys, "mirror", "status", str(mirror))
    assert state["shards"] == [_SHARD] and not state["in_settings"]
    assert main(["mirror", "remove", str(mirror)]) == 2
    assert (mirror / _SHARD).exists()
