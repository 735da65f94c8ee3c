"""Folders that are not a plain complete checkpoint: still downloading, header prefixes, copies, links, or empty."""

import json
import os
import shutil
from pathlib import Path

import pytest

from engine.audit import Outcome, Report, audit
from storage.checkpoint import inspect, refusal
from tests.engine.audit_files import INDEX, TINY, copy_of_tiny, edit_header, edit_json, keep_beginnings, shard
from tests.engine.test_audit_faults import failing, faults, undecided

HEADER_BYTES = 20_000
"""Beyond the largest header of the fixture (13,160 bytes), before the end of its smallest shard (166,008)."""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return copy_of_tiny(tmp_path)


def waiting(report: Report, name: str) -> tuple[str, ...]:
    return next(check.waiting for check in report.checks if check.check == name)


def notes(report: Report, name: str) -> str:
    return "\n".join(next(check.notes for check in report.checks if check.check == name))


# Still downloading


def test_what_lies_in_a_missing_shard_is_undecided_and_the_shard_is_named(tiny: Path) -> None:
    (tiny / shard(7)).unlink()
    report = audit(tiny)
    assert report.sound and report.inventory.complete is False
    assert {waiting(report, name) for name in undecided(report)} == {(shard(7),)}
    # Presence is the index's to say; shapes, types and packing are not.
    assert undecided(report) == {
        "inventory.shapes",
        "inventory.plain",
        "inventory.totals",
        "packing.extents",
        "packing.scales",
        "packing.fp8-blocks",
        "experts.packed",
        "experts.routers",
        "files.sizes",
        "files.headers",
    }


def test_a_fault_is_not_deferred_by_a_missing_shard(tiny: Path) -> None:
    (tiny / shard(7)).unlink()
    edit_header(tiny / shard(5), lambda header: header["layers.2.attn_norm.weight"].update(dtype="F16"))
    assert failing(audit(tiny)) == {"inventory.plain"}


def test_missing_tables_leave_the_stored_rows_open_and_the_declared_decided(tiny: Path) -> None:
    for number in (15, 16):
        (tiny / shard(number)).unlink()
    report = audit(tiny)
    assert failing(report) == set()
    assert waiting(report, "engram.rows-exact") == (shard(15), shard(16))
    edit_json(tiny / "config.json", lambda data: data["text_config"].update(engram_num_embeddings=[3688, 3905]))
    shutil.rmtree(tiny / "inference")
    (fault,) = faults(audit(tiny), "engram.rows-exact")
    assert (fault.found, fault.expected) == ((3688, 3905), (3688, 3904))


def test_require_complete_turns_undecided_into_failure(tiny: Path) -> None:
    (tiny / shard(7)).unlink()
    lenient, strict = audit(tiny), audit(tiny, require_complete=True)
    assert failing(strict) == undecided(lenient)
    assert undecided(strict) == set() and not strict.sound
    assert waiting(strict, "files.sizes") == (shard(7),)


def test_unfinished_downloads_are_mentioned(tiny: Path) -> None:
    (tiny / shard(7)).rename(tiny / f"{shard(7)}.incomplete")
    report = audit(tiny)
    assert report.sound
    assert notes(report, "files.sizes") == f"unfinished download: {shard(7)}.incomplete"


def test_a_download_that_brought_nothing_fails(tiny: Path) -> None:
    for path in tiny.glob("*.safetensors"):
        path.unlink()
    assert {"files.sizes", "inventory.totals"} == failing(audit(tiny))


def test_zero_byte_shards_fail(tiny: Path) -> None:
    for path in tiny.glob("*.safetensors"):
        path.write_bytes(b"")
    report = audit(tiny)
    assert {"files.sizes", "inventory.totals"} == failing(report)
    assert len(faults(report, "files.sizes")) == 16


def test_an_empty_folder_is_judged_without_a_traceback(tmp_path: Path) -> None:
    assert {"config.keys", "files.sizes", "inventory.totals"} == failing(audit(tmp_path))


# Header prefixes


def test_beginnings_of_equal_length_are_prefixes_and_only_their_sizes_stay_open(tiny: Path) -> None:
    keep_beginnings(tiny, HEADER_BYTES)
    report = audit(tiny)
    assert len(report.prefixes) == 16
    assert failing(report) == set() and undecided(report) == {"files.sizes"}
    assert report.n_bytes == 9_545_512


def test_beginnings_under_any_name_are_found_by_their_first_bytes(tiny: Path) -> None:
    keep_beginnings(tiny, HEADER_BYTES)
    for number, path in enumerate(sorted(tiny.glob("*.safetensors"))):
        path.rename(tiny / f"h{number:03d}.bin")
    report = audit(tiny)
    assert report.n_tensors == 1299
    assert failing(report) == set() and undecided(report) == {"files.sizes"}
    (tiny / INDEX).unlink()
    report = audit(tiny)
    assert failing(report) == set() and undecided(report) == {"files.sizes", "index.agrees"}


def test_a_renamed_prefix_of_a_cut_size_is_still_held_against_the_index(tiny: Path) -> None:
    keep_beginnings(tiny, HEADER_BYTES)
    edit_header(tiny / shard(5), lambda header: header.update(stranger=header.pop("layers.2.attn.attn_sink")))
    (tiny / shard(5)).rename(tiny / "some.bin")
    assert failing(audit(tiny)) == {"inventory.layers", "inventory.known", "attention.counts", "index.agrees"}


def test_bare_headers_of_every_length_are_prefixes(tiny: Path) -> None:
    for path in tiny.glob("*.safetensors"):
        raw = path.read_bytes()
        path.write_bytes(raw[: 8 + int.from_bytes(raw[:8], "little")])
    report = audit(tiny)
    assert len(report.prefixes) == 16 and failing(report) == set()


def test_a_prefix_that_ends_in_its_header_is_a_cut_file(tiny: Path) -> None:
    keep_beginnings(tiny, 10_000)  # the layers' headers have 12,344 bytes and more
    assert failing(audit(tiny)) == {"files.sizes"}
    assert {fault.expected for fault in faults(audit(tiny), "files.sizes")} >= {8 + 12_344, 8 + 13_160}


def test_one_cut_shard_among_complete_ones_is_no_prefix(tiny: Path) -> None:
    raw = (tiny / shard(5)).read_bytes()
    (tiny / shard(5)).write_bytes(raw[:HEADER_BYTES])
    assert failing(audit(tiny)) == {"files.sizes"}


def test_two_shards_cut_at_one_size_among_larger_ones_are_no_prefixes(tiny: Path) -> None:
    for number in (5, 6):
        (tiny / shard(number)).write_bytes((tiny / shard(number)).read_bytes()[:HEADER_BYTES])
    report = audit(tiny)
    assert {fault.shard for fault in faults(report, "files.sizes")} == {shard(5), shard(6)}


# Copies, links, strangers


def refused_by_a_run(folder: Path) -> str:
    error = refusal(inspect(folder))
    return str(error) if error is not None else ""


def test_a_copy_of_a_shard_is_counted_once_and_fails_as_a_run_refuses_it(tiny: Path) -> None:
    shutil.copyfile(tiny / shard(7), tiny / "zz.safetensors")
    report = audit(tiny)
    assert failing(report) == {"files.once"} and report.n_tensors == 1299
    (fault,) = faults(report, "files.once")
    assert fault.message == refused_by_a_run(tiny)
    assert fault.message.startswith("zz.safetensors is a duplicate of model-00007-of-00016.safetensors")
    assert fault.hint.startswith("Move one of the two")


def test_a_copy_of_a_header_prefix_is_only_noted(tiny: Path) -> None:
    keep_beginnings(tiny, HEADER_BYTES)
    shutil.copyfile(tiny / shard(7), tiny / "zz.safetensors")
    report = audit(tiny)
    assert failing(report) == set() and "zz.safetensors is a duplicate" in notes(report, "files.once")


def test_a_shard_under_another_name_fails_as_a_run_refuses_it(tiny: Path) -> None:
    (tiny / shard(7)).rename(tiny / "seven.safetensors")
    report = audit(tiny)
    assert failing(report) == {"index.agrees"}
    (fault,) = faults(report, "index.agrees")
    assert fault.message == refused_by_a_run(tiny)
    assert fault.hint == f"Rename the file to {shard(7)}."


def test_the_same_tensors_under_another_header_are_refused_with_both_files(tiny: Path) -> None:
    shutil.copyfile(tiny / shard(7), tiny / "zz.safetensors")
    edit_header(tiny / "zz.safetensors", lambda header: header.update(__metadata__={"made": "elsewhere"}))
    report = audit(tiny)
    assert {"files.once"} <= failing(report) <= {"files.once", "inventory.totals", "index.agrees"}
    (fault,) = faults(report, "files.once")
    assert {fault.found, fault.expected} == {shard(7), "zz.safetensors"}


def test_a_shard_the_index_does_not_name_disagrees_with_it(tiny: Path) -> None:
    edit_json(tiny / INDEX, lambda data: data.update(weight_map=without(data["weight_map"], shard(1))))
    report = audit(tiny)
    assert "index.agrees" in failing(report)
    assert faults(report, "index.agrees")[0].shard == shard(1)


def without(weight_map: dict[str, str], name: str) -> dict[str, str]:
    return {tensor: held_by for tensor, held_by in weight_map.items() if held_by != name}


def test_a_hub_cache_of_links_is_a_checkpoint(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    (snapshot / "inference").mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in TINY.rglob("*") if path.is_file())):
        shutil.copyfile(path, blobs / f"{number:064x}")
        (snapshot / path.relative_to(TINY)).symlink_to(blobs / f"{number:064x}")
    assert audit(snapshot, require_complete=True).sound
    (snapshot / shard(3)).resolve().unlink()
    report = audit(snapshot)
    assert report.sound and waiting(report, "files.sizes") == (shard(3),)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_shard_is_reported_without_waiting(tiny: Path) -> None:
    (tiny / shard(3)).unlink()
    os.mkfifo(tiny / shard(3))
    assert failing(audit(tiny)) == {"files.headers"}


# Index


def test_without_an_index_completeness_is_not_decidable_but_the_rest_is(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    report = audit(tiny)
    assert failing(report) == set() and undecided(report) == {"index.agrees"}
    assert report.inventory.complete is None


def test_without_an_index_a_missing_number_in_the_series_is_waited_for(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    (tiny / shard(7)).unlink()
    report = audit(tiny)
    assert failing(report) == set()
    assert waiting(report, "inventory.layers") == (shard(7),)
    assert waiting(report, "experts.backbone") == (shard(7),)


def test_without_an_index_a_tensor_missing_from_a_full_series_is_missing(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    edit_header(tiny / shard(11), lambda header: header.pop("norm.weight"))
    report = audit(tiny)
    assert failing(report) == {"inventory.ends", "files.sizes"}  # the file now goes on after its data


@pytest.mark.parametrize("content", ["", "{", '{"weight_map": {}}', "[]"])
def test_a_broken_index_is_told_apart_from_a_missing_one(tiny: Path, content: str) -> None:
    (tiny / INDEX).write_text(content)
    report = audit(tiny)
    assert failing(report) == {"index.agrees"}
    assert INDEX in faults(report, "index.agrees")[0].message


# Config


def test_either_config_layout_beside_the_shards_is_enough(tiny: Path) -> None:
    (tiny / "config.json").unlink()
    assert audit(tiny, require_complete=True).sound
    (tiny / "inference" / "config.json").rename(tiny / "config.json")
    assert audit(tiny, require_complete=True).sound


def test_a_config_given_by_hand_is_used_instead_of_the_folder_s(tiny: Path, tmp_path: Path) -> None:
    edit_json(tiny / "config.json", lambda data: data["text_config"].update(hc_mult=3))
    assert not audit(tiny).sound
    for layout in ("config.json", "inference/config.json"):
        assert audit(tiny, config=TINY / layout, require_complete=True).sound


def test_a_config_that_cannot_be_read_fails_and_the_files_are_judged(tiny: Path) -> None:
    (tiny / "config.json").write_bytes(b"\xff")
    (tiny / shard(5)).write_bytes((tiny / shard(5)).read_bytes()[:-1])
    report = audit(tiny)
    assert failing(report) == {"config.keys", "files.sizes"}
    assert {waiting(report, name) for name in undecided(report)} >= {("a readable config",)}
    assert report.n_tensors == 1299


def test_the_config_of_another_model_is_one_line(tiny: Path) -> None:
    shutil.rmtree(tiny / "inference", ignore_errors=True)
    (tiny / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', "utf-8")
    (fault,) = next(check.faults for check in audit(tiny).checks if check.check == "config.keys")
    assert fault.message.startswith("this is the config of 'LlamaForCausalLM', without ")


def test_the_report_is_plain_json(tiny: Path) -> None:
    edit_header(tiny / shard(5), lambda header: header["layers.2.attn_norm.weight"].update(shape=[1, 256]))
    made = json.loads(json.dumps(audit(tiny).as_json(), allow_nan=False))
    (failed,) = [check for check in made["checks"] if check["outcome"] == "fail"]
    assert failed["check"] == "inventory.shapes"
    (fault,) = failed["faults"]
    assert (fault["tensor"], fault["shard"], fault["found"], fault["expected"]) == (
        "layers.2.attn_norm.weight",
        shard(5),
        [1, 256],
        [256],
    )
    assert made["groups"][0] == {"group": "routed experts", "tensors": 912, "tensor_bytes": 3_969_024}
    assert (made["passed"] + made["failed"] + made["undecided"]) == len(made["checks"])
    assert [d["field"] for d in made["config"]["differences"] if d["conflict"]] == []


def test_undecided_outcomes_say_what_they_wait_for(tiny: Path) -> None:
    (tiny / shard(7)).unlink()
    for check in audit(tiny).checks:
        assert bool(check.waiting) == (check.outcome is Outcome.UNDECIDED)
