"""Every single fault is reported by the checks it concerns and by no other, with tensor, shard and both values."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.audit import CHECKS, Fault, Outcome, Report, audit, view
from engine.audit.records import MAX_FAULTS
from engine.config import ModelConfig
from engine.inventory import Tensors
from tests.engine.audit_files import (
    INDEX,
    TINY,
    Json,
    copy_of_tiny,
    edit_header,
    edit_json,
    edit_tensor,
    rename_tensor,
    set_in_configs,
    shard,
)

DEMO = Path(__file__).parents[2] / "assets" / "demo"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return copy_of_tiny(tmp_path)


def failing(report: Report) -> set[str]:
    return {check.check for check in report.checks if check.outcome is Outcome.FAIL}


def undecided(report: Report) -> set[str]:
    return {check.check for check in report.checks if check.outcome is Outcome.UNDECIDED}


def faults(report: Report, name: str) -> tuple[Fault, ...]:
    return next(check.faults for check in report.checks if check.check == name)


@pytest.mark.parametrize("folder", [TINY, DEMO])
def test_the_shipped_checkpoints_pass_every_check(folder: Path) -> None:
    report = audit(folder, require_complete=True)
    assert failing(report) == undecided(report) == set()
    assert report.sound and report.count(Outcome.PASS) == len(CHECKS) >= 39


def test_check_names_are_distinct() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


# Tensors


@pytest.mark.parametrize(
    ("tensor", "checks"),
    [
        ("layers.4.attn_norm.weight", {"inventory.layers"}),
        ("layers.4.attn.compressor.norm.weight", {"inventory.layers", "attention.latents"}),
        ("layers.4.attn.compressor.wgate.weight", {"inventory.layers", "attention.gates"}),
        ("layers.4.attn.indexer.k_norm.weight", {"inventory.layers", "attention.index-keys"}),
        ("layers.4.attn.indexer.wk.weight", {"inventory.layers", "attention.index-keys", "attention.kinds"}),
        ("layers.7.attn.indexer.weights_proj.weight", {"inventory.layers", "attention.index-queries"}),
        ("layers.4.attn.wq_a.scale", {"inventory.layers", "packing.scales"}),
        ("layers.4.ffn.experts.3.w2.weight", {"inventory.layers", "experts.backbone", "packing.scales"}),
        ("layers.3.ffn.gate.bias_vl", {"inventory.layers", "experts.routers"}),
        ("layers.1.engram.embed.weight", {"inventory.layers", "engram.tables", "packing.scales"}),
        ("layers.1.engram.q_weight", {"inventory.layers", "engram.projections"}),
        ("mtp.1.attn_norm.weight", {"draft.stages"}),
        ("mtp.1.ffn.experts.3.w2.scale", {"experts.draft", "packing.scales"}),
        ("mtp.0.main_norm.weight", {"draft.projection"}),
        ("mtp.2.markov_head.embed.weight", {"draft.heads"}),
        ("embed.weight", {"inventory.ends", "inventory.known"}),
        ("vision.norm.weight", {"vision.blocks"}),
        ("image_end", {"vision.blocks"}),
    ],
)
def test_a_renamed_tensor_is_missing_under_one_name_and_extra_under_the_other(
    tiny: Path, tensor: str, checks: set[str]
) -> None:
    rename_tensor(tiny, tensor, f"{tensor}_")
    report = audit(tiny)
    assert failing(report) == checks | {"index.agrees"}
    assert undecided(report) == set()
    by_index = {(fault.tensor, fault.found) for fault in faults(report, "index.agrees")}
    assert by_index == {(tensor, "not held"), (f"{tensor}_", "held")}


def test_a_renamed_tensor_is_reported_without_an_index_too(tiny: Path) -> None:
    rename_tensor(tiny, "layers.4.attn_norm.weight", "layers.4.norm_attn.weight")
    (tiny / INDEX).unlink()
    report = audit(tiny)
    assert failing(report) == {"inventory.layers"}
    assert [(fault.tensor, fault.found, fault.expected) for fault in faults(report, "inventory.layers")] == [
        ("layers.4.attn_norm.weight", "absent", "present"),
        ("layers.4.norm_attn.weight", "present", "absent"),
    ]


def test_a_tensor_of_a_layer_that_is_not_is_of_no_kind(tiny: Path) -> None:
    rename_tensor(tiny, "layers.4.attn_norm.weight", "layers.44.attn_norm.weight")
    report = audit(tiny)
    assert failing(report) == {"inventory.layers", "inventory.known", "attention.counts", "index.agrees"}
    (count,) = faults(report, "attention.counts")
    assert (count.values["layer"], count.found, count.expected) == (4, 139, 140)


@pytest.mark.parametrize(
    ("tensor", "dtype", "right", "checks"),
    [
        ("layers.4.attn_norm.weight", "F16", "BF16", {"inventory.plain"}),
        ("layers.4.attn.attn_sink", "I32", "F32", {"inventory.plain"}),
        ("embed.weight", "F16", "BF16", {"inventory.plain"}),
        ("layers.4.attn_norm.weight", "F32", "BF16", {"inventory.plain", "packing.extents"}),
        ("layers.4.attn.wq_a.weight", "I8", "F8_E4M3", {"packing.fp8-blocks"}),
        ("layers.4.attn.wq_a.scale", "U8", "F8_E8M0", {"packing.scales"}),
        ("layers.4.ffn.experts.3.w1.weight", "U8", "I8", {"experts.packed"}),
        ("mtp.1.ffn.experts.3.w1.scale", "U8", "F8_E8M0", {"experts.packed", "packing.scales"}),
        ("layers.1.engram.embed.weight", "F8_E5M2", "F8_E4M3", {"engram.storage"}),
    ],
)
def test_a_wrong_dtype_is_reported_with_both(tiny: Path, tensor: str, dtype: str, right: str, checks: set[str]) -> None:
    edit_tensor(tiny, tensor, dtype=dtype)
    report = audit(tiny)
    assert failing(report) == checks
    for check in checks - {"packing.extents"}:
        assert (tensor, dtype, right) in {(f.tensor, f.found, f.expected) for f in faults(report, check)}


@pytest.mark.parametrize(
    ("tensor", "shape", "right", "checks"),
    [
        ("layers.4.attn.wq_a.weight", (256, 64), (64, 256), {"inventory.shapes"}),
        ("layers.4.attn_norm.weight", (1, 256), (256,), {"inventory.shapes"}),
        ("mtp.1.hc_ffn_scale", (1, 3), (3,), {"inventory.shapes"}),
        ("layers.4.attn_norm.weight", (257,), (256,), {"inventory.shapes", "packing.extents"}),
        ("layers.4.ffn.gate.weight", (256, 16), (16, 256), {"experts.routers"}),
        ("layers.4.ffn.experts.3.w1.weight", (128, 64), (64, 128), {"experts.packed"}),
        ("embed.weight", (256, 512), (512, 256), {"inventory.ends"}),
        ("mtp.0.main_proj.weight", (768, 256), (256, 768), {"draft.projection"}),
        ("mtp.2.confidence_head.proj.weight", (288,), (1, 288), {"draft.heads"}),
        ("vision.norm.weight", (2, 16), (32,), {"vision.shapes"}),
        ("image_end", (2, 128), (256,), {"vision.shapes"}),
        ("layers.1.engram.k_weight", (2, 512), (4, 256), {"engram.projections"}),
        # A wrong scale: of no block at all, of another format's block, of an expert, of a table.
        ("layers.4.attn.wq_a.scale", (8, 2), (2, 8), {"packing.scales"}),
        ("layers.4.ffn.experts.3.w1.scale", (8, 64), (64, 8), {"packing.scales", "experts.packed"}),
        ("layers.1.engram.embed.scale", (1, 3688), (3688, 1), {"packing.scales", "engram.storage"}),
    ],
)
def test_a_wrong_shape_is_reported_with_both(
    tiny: Path, tensor: str, shape: tuple[int, ...], right: tuple[int, ...], checks: set[str]
) -> None:
    edit_tensor(tiny, tensor, shape=shape)
    report = audit(tiny)
    assert failing(report) == checks
    for check in checks - {"packing.extents"}:
        (fault,) = faults(report, check)
        assert (fault.tensor, fault.found, fault.expected) == (tensor, shape, right)
        assert fault.shard in {record.shard for record in report.inventory.shards.values()}


def test_a_table_with_a_row_too_few_fails_the_row_count(tiny: Path) -> None:
    for part, row_bytes in (("weight", 32), ("scale", 1)):
        name = f"layers.1.engram.embed.{part}"

        def shrink(header: Json, name: str = name, row_bytes: int = row_bytes) -> None:
            header[name]["shape"][0] -= 1
            header[name]["data_offsets"][1] -= row_bytes

        edit_header(tiny / shard(15), shrink)
    report = audit(tiny)
    assert failing(report) == {"engram.rows-enough", "packing.extents", "inventory.totals"}
    (fault,) = faults(report, "engram.rows-enough")
    assert (fault.tensor, fault.found, fault.expected) == ("layers.1.engram.embed.weight", 3687, 3688)


def test_scales_of_wider_blocks_are_another_format(tiny: Path) -> None:
    report = audit(tiny, fp8_block=128)
    assert failing(report) == {"packing.fp8-blocks"}
    assert {fault.expected for fault in faults(report, "packing.fp8-blocks")} == {(128, 128)}
    assert {fault.found for fault in faults(report, "packing.fp8-blocks")} == {(32, 32)}


def test_a_quantised_stranger_without_a_scale_is_named(tiny: Path) -> None:
    rename_tensor(tiny, "layers.4.attn.wq_a.weight", "layers.4.attn.wq_c.weight")
    report = audit(tiny)
    assert {fault.tensor for fault in faults(report, "packing.scales")} == {
        "layers.4.attn.wq_a.weight",
        "layers.4.attn.wq_c.weight",
    }


# Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is done to shard 5, which holds layer 2, and what must come of it."""

    name: str
    cut: Callable[[bytes], bytes]
    check: str
    found: Any
    expected: Any
    hides: bool
    """Whether the header is lost, so that what it would show is undecided."""


DAMAGES = [
    Damage(
        name="one byte short", cut=lambda b: b[:-1], check="files.sizes", found=850_719, expected=850_720, hides=False
    ),
    Damage(name="half", cut=lambda b: b[:400_000], check="files.sizes", found=400_000, expected=850_720, hides=False),
    Damage(
        name="bare header", cut=lambda b: b[:13_168], check="files.sizes", found=13_168, expected=850_720, hides=False
    ),
    Damage(name="a tail", cut=lambda b: b + b"\0", check="files.sizes", found=850_721, expected=850_720, hides=False),
    Damage(name="in the header", cut=lambda b: b[:4000], check="files.sizes", found=4000, expected=13_168, hides=True),
    Damage(name="empty", cut=lambda b: b"", check="files.sizes", found=0, expected=None, hides=True),
    Damage(
        name="header length 2^63",
        cut=lambda b: (1 << 63).to_bytes(8, "little") + b[8:],
        check="files.headers",
        found=1 << 63,
        expected=100_000_000,
        hides=True,
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damaged_file_fails_alone_with_both_sizes(tiny: Path, damage: Damage) -> None:
    path = tiny / shard(5)
    path.write_bytes(damage.cut(path.read_bytes()))
    report = audit(tiny)
    assert failing(report) == {damage.check}
    (fault,) = faults(report, damage.check)
    assert (fault.shard, fault.found, fault.expected) == (shard(5), damage.found, damage.expected)
    assert bool(undecided(report)) == damage.hides
    assert all(check.waiting == (shard(5),) for check in report.checks if check.outcome is Outcome.UNDECIDED)


def test_overlapping_offsets_are_reported_with_tensor_and_place(tiny: Path) -> None:
    def overlap(header: Json) -> None:
        header["layers.2.ffn.gate.bias"]["data_offsets"] = [8, 72]  # it ends where it began to, 8 bytes early

    edit_header(tiny / shard(5), overlap)
    report = audit(tiny)
    assert failing(report) == {"packing.extents"}
    start = 8 + int.from_bytes((tiny / shard(5)).read_bytes()[:8], "little")
    first = faults(report, "packing.extents")[0]
    assert (first.tensor, first.shard, first.found, first.expected) == (
        "layers.2.ffn.gate.bias",
        shard(5),
        start + 8,
        start + 16,
    )


def test_an_index_that_leaves_the_folder_is_reported_and_not_followed(tiny: Path) -> None:
    (tiny.parent / "x").write_bytes((tiny / shard(2)).read_bytes())
    edit_json(tiny / INDEX, lambda data: data["weight_map"].update({"embed.weight": "../x"}))
    report = audit(tiny)
    assert failing(report) == {"files.names"}
    (fault,) = faults(report, "files.names")
    assert (fault.tensor, fault.found) == ("embed.weight", "../x")
    assert undecided(report) == {"index.agrees"}
    assert report.inventory.index is None


def test_an_index_that_assigns_a_tensor_elsewhere_disagrees_with_both_shards(tiny: Path) -> None:
    edit_json(tiny / INDEX, lambda data: data["weight_map"].update({"embed.weight": shard(3)}))
    report = audit(tiny)
    assert failing(report) == {"index.agrees"}
    assert {(f.tensor, f.shard, f.found, f.expected) for f in faults(report, "index.agrees")} == {
        ("embed.weight", shard(2), "held", shard(3)),
        ("embed.weight", shard(3), "not held", shard(3)),
    }


def test_an_index_total_that_is_not_the_headers_is_reported(tiny: Path) -> None:
    edit_json(tiny / INDEX, lambda data: data["metadata"].update({"total_size": 9_545_513}))
    report = audit(tiny)
    assert failing(report) == {"inventory.totals"}
    (fault,) = faults(report, "inventory.totals")
    assert (fault.found, fault.expected) == (9_545_512, 9_545_513)


# Config


@pytest.mark.parametrize(
    ("heads", "check", "derived"),
    [(1, "engram.rows-exact", (1821, 1867)), (3, "engram.rows-enough", (5619, 6107))],
)
def test_a_wrong_number_of_hash_heads_fails_the_row_count_alone(
    tiny: Path, heads: int, check: str, derived: tuple[int, int]
) -> None:
    # Derived: sums of 3 * heads primes a layer, drawn upward from 600 over both layers; 2 heads give 3688 and 3904.
    set_in_configs(tiny, "engram_n_heads", "engram_n_heads", heads)
    report = audit(tiny)
    assert failing(report) == {check}
    assert undecided(report) == set()
    declared, first, second = faults(report, check)
    assert (declared.found, declared.expected) == ((3688, 3904), derived)
    assert [(fault.found, fault.expected) for fault in (first, second)] == list(zip((3688, 3904), derived, strict=True))
    assert declared.values["engram_n_heads"] == heads


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("config.json", lambda data: data.update(architectures=["Another"])),
        ("config.json", lambda data: data["quantization_config"].update(activation_scheme="static")),
        ("config.json", lambda data: data["text_config"].update(max_position_embeddings=77)),
        ("config.json", lambda data: data["text_config"].update(initializer_range=0.5)),
        ("inference/config.json", lambda data: data.update(max_batch_size=4)),
        ("inference/config.json", lambda data: data.update(expert_dtype="other")),
    ],
)
def test_a_key_that_nothing_reads_fails_nothing(tiny: Path, file: str, edit: Callable[[Json], object]) -> None:
    edit_json(tiny / file, edit)
    report = audit(tiny)
    assert failing(report) == undecided(report) == set()


def test_config_files_that_contradict_each_other_are_reported_with_both_values(tiny: Path) -> None:
    edit_json(tiny / "inference" / "config.json", lambda data: data.update(window_size=16))
    report = audit(tiny)
    assert failing(report) == {"config.files-agree"}
    (fault,) = faults(report, "config.files-agree")
    assert (fault.values, fault.found, fault.expected) == ({"window_size": 8}, 16, 8)


def test_a_missing_key_fails_and_leaves_what_depends_on_it_open(tiny: Path) -> None:
    edit_json(tiny / "config.json", lambda data: data["text_config"].pop("hc_mult"))
    edit_json(tiny / "inference" / "config.json", lambda data: data.pop("hc_mult"))
    report = audit(tiny)
    assert failing(report) == {"config.keys"}
    assert faults(report, "config.keys")[0].values == {"hc_mult": "absent"}
    assert {"inventory.shapes", "config.readers"} <= undecided(report)


@pytest.mark.parametrize(
    ("nested", "flat", "value", "checks"),
    [
        # Layer 4 is no KV source any more, so what it has of one is extra.
        (
            "kv_source_layer_ids",
            "kv_source_layers",
            [2, 5],
            {"attention.latents", "attention.gates", "attention.index-keys", "attention.kinds", "attention.counts"}
            | {"inventory.layers"},
        ),
        ("candidate_source_layer_id", "candidate_source_layer", 6, {"config.candidate-source"}),
        ("candidate_source_layer_id", "candidate_source_layer", 7, {"config.candidate-source"}),
        ("engram_compressed_vocab_size", "engram_compressed_vocab_size", 513, {"config.compressed-vocabulary"}),
        ("dspark_target_layer_ids", "dspark_target_layer_ids", [4, 5, 6], {"config.draft-targets"}),
        ("engram_pad_token_id", "engram_pad_id", 512, {"config.token-ids"}),
        ("scoring_func", "score_func", "sigmoid", {"config.arithmetic"}),
        ("dspark_markov_rank", "dspark_markov_rank", 16, {"draft.heads"}),
        ("n_routed_experts", "n_routed_experts", 15, {"experts.backbone", "experts.routers", "inventory.layers"}
            | {"attention.counts"}),
        ("engram_head_dim", "engram_head_dim", 64, {"engram.storage", "engram.projections"}),
    ],
)  # fmt: skip
def test_a_wrong_number_in_both_configs_is_reported_where_it_shows(
    tiny: Path, nested: str, flat: str, value: object, checks: set[str]
) -> None:
    set_in_configs(tiny, nested, flat, value)
    assert failing(audit(tiny)) == checks


def test_many_faults_are_counted_in_full_and_kept_in_part(tiny: Path) -> None:
    set_in_configs(tiny, "moe_intermediate_size", "moe_inter_dim", 96)
    packed = next(check for check in audit(tiny).checks if check.check == "experts.packed")
    # Every tensor of the 8 * 16 + 3 * 8 experts but none else: six each.
    assert (packed.n_faults, len(packed.faults)) == (912, MAX_FAULTS)


# Anything

JUNK = st.sampled_from(
    [None, True, -1, 0, 1 << 31, 1 << 63, 1 << 70, 1.5, "", "\ud800", "../a", "U8", [], [[1]], {}, [2, 3]]
)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_header_index_and_config_is_judged(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = copy_of_tiny(tmp_path_factory.mktemp("any"))
    number = data.draw(st.integers(1, 16))

    def spoil(node: Json, depth: int) -> None:
        key = data.draw(st.sampled_from(sorted(node)))
        if depth and isinstance(node[key], dict):
            spoil(node[key], depth - 1)
        elif data.draw(st.booleans()):
            node[str(data.draw(JUNK))] = node.pop(key)
        else:
            node[key] = data.draw(JUNK)

    edit_header(folder / shard(number), lambda header: spoil(header, data.draw(st.integers(0, 1))))
    edit_json(folder / INDEX, lambda index: spoil(index, data.draw(st.integers(0, 1))))
    edit_json(folder / "config.json", lambda config: spoil(config, data.draw(st.integers(0, 2))))
    report = audit(folder)
    assert sum(report.count(outcome) for outcome in Outcome) == len(CHECKS)
    json.dumps(report.as_json(), allow_nan=False)
    shutil.rmtree(folder)


def test_a_place_holder_of_a_tower_that_the_config_has_not_is_named(tiny: Path) -> None:
    edit_json(tiny / "config.json", lambda config: config["vision_config"].update(num_hidden_layers=0))
    report = audit(tiny)
    assert "vision.blocks" in failing(report)
    assert any("vision." in fault.message for fault in faults(report, "vision.blocks"))


# Small files


@pytest.mark.parametrize(
    ("file", "content", "check", "said"),
    [
        ("tokenizer.json", "{", "text.tokenizer", "not JSON"),
        ("tokenizer.json", '{"model": {"type": "Unigram"}}', "text.tokenizer", "'BPE' is needed"),
        ("generation_config.json", "[]", "text.sampling", "not a JSON object"),
        ("generation_config.json", '{"temperature": 9}', "text.sampling", "it must be 0 to 2"),
        ("generation_config.json", f'{{"top_p": 1{"0" * 400}}}', "text.sampling", "it must be above 0, up to 1"),
    ],
)
def test_a_small_file_a_chat_would_refuse_fails_its_check(
    file: str, content: str, check: str, said: str, tiny: Path
) -> None:
    (tiny / file).write_text(content)
    report = audit(tiny)
    assert failing(report) == {check}
    assert said in faults(report, check)[0].message


def test_a_tokenizer_of_a_larger_model_fails(tiny: Path) -> None:
    vocab_size = json.loads((tiny / "config.json").read_text())["text_config"]["vocab_size"]
    edit_json(tiny / "tokenizer.json", lambda file: file["added_tokens"][-1].update(id=vocab_size))
    (fault,) = faults(audit(tiny), "text.tokenizer")
    assert (fault.found, fault.expected) == (vocab_size, vocab_size - 1)


def test_a_tokenizer_without_the_models_image_token_fails_as_a_run_does(tiny: Path) -> None:
    image = json.loads((tiny / "config.json").read_text("utf-8"))["image_token_id"]

    def rename(file: dict[str, Any]) -> None:
        file["added_tokens"] = [token for token in file["added_tokens"] if token["id"] != image]

    edit_json(tiny / "tokenizer.json", rename)
    (fault,) = faults(audit(tiny), "text.tokenizer")
    assert f"no added token has id {image}" in fault.message


def test_a_tokenizer_that_the_library_refuses_fails(tiny: Path) -> None:
    """A merge into a token that the vocabulary has not: well-formed JSON, and no chat can open it."""
    edit_json(tiny / "tokenizer.json", lambda file: file["model"]["merges"].append(["Z", "Zq"]))
    report = audit(tiny)
    assert failing(report) == {"text.tokenizer"}
    assert "tokenizer.json: not a usable tokenizer: " in faults(report, "text.tokenizer")[0].message


def test_a_tokenizer_that_is_not_there_yet_is_waited_for(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    report = audit(tiny)
    assert failing(report) == set() and undecided(report) == {"text.tokenizer"}


def test_a_config_of_half_a_million_experts_is_refused_before_their_tensors_are_listed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    original = view.expected_tensors

    def noted(config: ModelConfig, *, fp8_block: int) -> Tensors:
        listed.append(config)
        return original(config, fp8_block=fp8_block)

    monkeypatch.setattr(view, "expected_tensors", noted)
    set_in_configs(tiny, "n_routed_experts", "n_routed_experts", 65_536)
    assert "config.sizes" in failing(audit(tiny)) and not listed
    set_in_configs(tiny, "n_routed_experts", "n_routed_experts", 16)
    audit(tiny)
    assert listed
