import json
import os
from pathlib import Path

import pytest

from app.cli import main
from tests.engine.audit_files import TINY, copy_of_tiny, edit_header, keep_beginnings, set_in_configs, shard

Output = pytest.CaptureFixture[str]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return copy_of_tiny(tmp_path)


def test_a_sound_checkpoint_exits_0_with_its_figures_and_one_line_a_check(capsys: Output) -> None:
    assert main(["audit", str(TINY), "--require-complete"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for figure in (
        "16 of 16 complete",
        "912  3,969,024",
        "1,299  9,545,512",
        "routed experts",
        "0 failed, 0 undecided",
    ):
        assert figure in out
    assert out.count("\npass  ") == len(json_of(capsys, TINY)["checks"]) >= 39


def json_of(capsys: Output, *arguments: object) -> dict[str, object]:
    main(["audit", *map(str, arguments), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "audit" and record["artesian"]
    data: dict[str, object] = record["data"]
    return data


def test_a_damaged_checkpoint_exits_4_and_says_by_how_much(tiny: Path, capsys: Output) -> None:
    (tiny / shard(5)).write_bytes((tiny / shard(5)).read_bytes()[:-1])
    assert main(["audit", str(tiny)]) == 4
    out = capsys.readouterr().out
    assert "FAIL  files.sizes" in out and "the file at 850,719 of 850,720" in out
    assert f"cut  {shard(5)}  850,719  of 850,720" in out
    assert "15 of 16 complete" in out and "1 failed" in out


def test_a_wrong_config_shows_declared_and_derived(tiny: Path, capsys: Output) -> None:
    set_in_configs(tiny, "engram_n_heads", "engram_n_heads", 3)
    assert main(["audit", str(tiny)]) == 4
    assert "declared [3688, 3904] rows, fewer than derived [5619, 6107]" in capsys.readouterr().out


def test_a_download_in_progress_exits_0_until_completeness_is_demanded(tiny: Path, capsys: Output) -> None:
    (tiny / shard(7)).unlink()
    assert main(["audit", str(tiny)]) == 0
    out = capsys.readouterr().out
    assert "open  files.sizes" in out and f"waits for {shard(7)}" in out
    assert "9,671,880" not in out  # what a missing shard's header takes is not known
    assert main(["audit", str(tiny), "--require-complete"]) == 4
    assert "undecided, and a complete checkpoint was demanded" in capsys.readouterr().out


def test_header_prefixes_are_said_to_be_prefixes(tiny: Path, capsys: Output) -> None:
    keep_beginnings(tiny, 20_000)
    assert main(["audit", str(tiny)]) == 0
    assert "0 of 16 complete, 16 header prefixes" in capsys.readouterr().out


def test_json_carries_tensor_shard_and_both_values_of_a_fault(tiny: Path, capsys: Output) -> None:
    edit_header(tiny / shard(5), lambda header: header["layers.2.attn_norm.weight"].update(dtype="F16"))
    data = json_of(capsys, tiny)
    checks = data["checks"]
    assert isinstance(checks, list)
    (failed,) = [check for check in checks if check["outcome"] == "fail"]
    assert failed["check"] == "inventory.plain"
    (fault,) = failed["faults"]
    assert {key: fault[key] for key in ("tensor", "shard", "found", "expected")} == {
        "tensor": "layers.2.attn_norm.weight",
        "shard": shard(5),
        "found": "F16",
        "expected": "BF16",
    }


def test_many_faults_are_counted_and_few_are_shown(tiny: Path, capsys: Output) -> None:
    set_in_configs(tiny, "moe_intermediate_size", "moe_inter_dim", 96)
    assert main(["audit", str(tiny)]) == 4
    assert "and 907 more" in capsys.readouterr().out  # 912 expert tensors, five of them shown


def test_a_config_of_either_layout_can_be_given(tiny: Path) -> None:
    for name in ("config.json", "inference/config.json"):
        (tiny / name).unlink()
    assert main(["audit", str(tiny)]) == 4
    for name in ("config.json", "inference/config.json"):
        assert main(["audit", str(tiny), "--config", str(TINY / name), "--require-complete"]) == 0


def test_another_block_can_be_expected(capsys: Output) -> None:
    assert main(["audit", str(TINY), "--expect-fp8-block", "128"]) == 4
    assert "one scale per 32x32 block, 128x128 is expected" in capsys.readouterr().out


# --list


def test_list_names_matching_tensors_with_place_and_size(capsys: Output) -> None:
    assert main(["audit", str(TINY), "--list", "layers.1.engram.*"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["tensor", "dtype", "shape", "shard", "offset", "bytes"]
    assert ["layers.1.engram.embed.weight", "F8_E4M3", "3688x32", shard(15), "8616", "118016"] in lines
    assert len(lines) == 7


def test_list_as_json_says_where_each_tensor_lies(capsys: Output) -> None:
    assert main(["audit", str(TINY), "--list", "head.*", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "tensors"
    assert record["data"]["tensors"] == [
        {
            "name": "head.weight",
            "dtype": "BF16",
            "shape": [512, 256],
            "shard": shard(11),
            "offset_bytes": 192,
            "size_bytes": 262_144,
        }
    ]
    raw = (TINY / shard(11)).read_bytes()
    assert 8 + int.from_bytes(raw[:8], "little") == 192


# Wrong use, and what cannot be looked at


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--expect-fp8-block", "0"], "must be at least 1, not 0"),
        (["--config", "nowhere.json"], "nowhere.json is not a file"),
        (["--lits", "x"], "--lits"),
    ],
)
def test_wrong_use_exits_2_and_leaves_stdout_empty(arguments: list[str], said: str, capsys: Output) -> None:
    assert main(["audit", str(TINY), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err


def test_no_folder_exits_4_with_a_hint(tmp_path: Path, capsys: Output) -> None:
    assert main(["audit", str(tmp_path / "gone")]) == 4
    out, err = capsys.readouterr()
    assert out == "" and "is not there" in err and "Give the folder" in err


@pytest.mark.parametrize("more", [[], ["--json"], ["--list", "*"]])
def test_a_folder_that_is_no_checkpoint_is_one_error_and_not_a_report(
    tmp_path: Path, capsys: Output, more: list[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing of a model")
    assert main(["audit", str(tmp_path), *more]) == 4
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2
    assert "holds no config.json, no index and no .safetensors file, so no checkpoint\n" in err
    assert "Name the folder that holds config.json" in err


def test_a_checkpoint_below_is_named_instead(tiny: Path, capsys: Output) -> None:
    assert main(["audit", str(tiny.parent)]) == 4
    assert f"There is a checkpoint in {tiny}: name that folder." in capsys.readouterr().err


@pytest.mark.parametrize("config", ["{}", '{"name": "a web page", "version": 2}', "not JSON"])
def test_what_waits_for_the_config_of_another_program_is_counted_and_not_listed(
    tmp_path: Path, capsys: Output, config: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    checks = json_of(capsys, tmp_path)["checks"]
    assert isinstance(checks, list)
    blind = [one for one in checks if one["outcome"] == "undecided" and "config" in one["waiting"][0]]
    assert main(["audit", str(tmp_path)]) == 4
    out = capsys.readouterr().out
    counted = [line.split() for line in out.splitlines() if "checks wait for" in line]
    listed = sum(f"  {one['check']} " in out for one in blind)
    assert sum(int(words[1]) for words in counted) + listed == len(blind) > 40 and listed < 4


def test_a_drive_that_does_not_answer_exits_5(tiny: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    real, bad = os.pread, (tiny / shard(5)).stat().st_ino

    def failing(fd: int, n_bytes: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == bad:
            raise OSError(5, "Input/output error")
        return real(fd, n_bytes, offset)

    monkeypatch.setattr(os, "pread", failing)
    assert main(["audit", str(tiny)]) == 5
    out = capsys.readouterr().out
    assert "FAIL  files.headers" in out and "EIO" in out


def test_names_from_files_cannot_steer_the_terminal(tiny: Path, capsys: Output) -> None:
    (tiny / shard(1)).rename(tiny / "\x1b]0;owned\x07.safetensors")
    main(["audit", str(tiny)])
    main(["audit", str(tiny), "--list", "vision.*"])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\x07" not in out + err


def test_shards_over_two_folders_are_whole_together_and_not_alone(tiny: Path, tmp_path: Path, capsys: Output) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number in (1, 12, 16):
        (tiny / shard(number)).rename(other / shard(number))
    assert main(["audit", str(tiny), "--require-complete"]) == 4
    assert main(["audit", str(tiny), "--require-complete", "--split", str(other)]) == 0
    capsys.readouterr()
    assert main(["audit", str(tiny), "--list", "vision.*", "--split", str(other)]) == 0
    assert shard(1) in capsys.readouterr().out
    assert main(["audit", str(tiny), "--split", str(tmp_path / "gone")]) == 4
    assert main(["audit", str(tiny), "--split", str(tiny)]) == 2
    assert "was named before" in capsys.readouterr().err
