"""The two layouts, in one schema and back, and everything a file may do wrong."""

import json
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import SILENT, ModelConfig, flat, load_config, read_config, verify
from engine.config_layouts import FIELDS, MAX_FILE_BYTES
from engine.errors import ConfigError
from tests.engine.released import RELEASED

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "tiny-a" / "checkpoint"
DEMO = Path(__file__).parents[2] / "assets" / "demo"

NESTED_ONLY = {spec.name for spec in FIELDS if spec.flat is None}


def parsed(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return made


def nested_of(folder: Path = TINY) -> dict[str, Any]:
    return parsed(folder / "config.json")


def flat_of(folder: Path = TINY) -> dict[str, Any]:
    return parsed(folder / "inference" / "config.json")


def write(folder: Path, nested: dict[str, Any] | None = None, inference: dict[str, Any] | None = None) -> Path:
    """A folder with the given config files and nothing else."""
    if nested is not None:
        (folder / "config.json").write_text(json.dumps(nested), encoding="utf-8")
    if inference is not None:
        (folder / "inference").mkdir()
        (folder / "inference" / "config.json").write_text(json.dumps(inference), encoding="utf-8")
    return folder


# Both layouts


@pytest.mark.parametrize("folder", [TINY, DEMO])
def test_the_nested_file_alone_gives_the_flat_file_exactly(folder: Path) -> None:
    made = flat(load_config(folder, config=folder / "config.json").config)
    # Compared as text, so that 10000 and 10000.0 are told apart.
    assert json.dumps(made, sort_keys=True) == json.dumps(flat_of(folder), sort_keys=True)


@pytest.mark.parametrize("folder", [TINY, DEMO])
def test_the_flat_file_alone_comes_back_as_it_was(folder: Path) -> None:
    made = flat(load_config(folder, config=folder / "inference" / "config.json").config)
    assert json.dumps(made, sort_keys=True) == json.dumps(flat_of(folder), sort_keys=True)


def test_either_file_gives_the_same_settings_where_both_have_a_word() -> None:
    from_nested = load_config(TINY, config=TINY / "config.json").config
    from_flat = load_config(TINY, config=TINY / "inference" / "config.json").config
    # The flat layout has no word for the longest context; every other field it lacks is the released default.
    assert replace(from_nested, max_position_embeddings=None) == from_flat


def test_the_schema_and_the_record_have_the_same_fields() -> None:
    assert {spec.name for spec in FIELDS} == {field.name for field in fields(ModelConfig)}


def test_the_files_that_were_read_are_named() -> None:
    assert load_config(TINY).sources == (TINY / "config.json", TINY / "inference" / "config.json")


def test_the_flat_layout_may_stand_beside_the_shards(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, nested=flat_of()))
    assert loaded.config == load_config(TINY, config=TINY / "inference" / "config.json").config


def test_a_text_only_export_has_the_language_model_at_the_top(tmp_path: Path) -> None:
    nested = nested_of()
    whole = load_config(TINY).config
    text = load_config(write(tmp_path, nested={**nested["text_config"], "image_token_id": 511})).config
    assert (text.dim, text.rope_factor, text.vision_n_layers) == (whole.dim, whole.rope_factor, 0)


def test_dtype_means_the_plain_tensors_in_one_file_and_the_quantised_in_the_other() -> None:
    config = load_config(TINY).config
    assert (config.plain_dtype, config.dtype, config.expert_dtype) == ("bfloat16", "fp8", "fp4")


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_the_rope_type_has_two_spellings(tmp_path: Path, spelling: str) -> None:
    nested = nested_of()
    scaling = nested["text_config"]["rope_scaling"]
    scaling[spelling] = scaling.pop("rope_type")
    assert load_config(write(tmp_path, nested=nested)).config.rope_type == "yarn"


def test_two_spellings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    nested = nested_of()
    nested["text_config"]["rope_scaling"]["type"] = "linear"
    with pytest.raises(ConfigError, match=r"rope_scaling\.type.*linear.*yarn"):
        load_config(write(tmp_path, nested=nested))


def test_sequences_are_tuples_and_measures_are_floats() -> None:
    config = load_config(TINY).config
    assert config.compress_ratios == (0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0)
    assert [type(value) for value in (config.rope_theta, config.beta_fast, config.swiglu_limit)] == [float] * 3


# What the files leave open


def test_the_released_pair_differs_only_in_what_one_layout_has_no_word_for() -> None:
    differences = load_config(TINY).differences
    assert {difference.field for difference in differences} == NESTED_ONLY
    assert all(difference.flat is SILENT and not difference.conflict for difference in differences)


def test_one_file_is_no_pair_to_differ() -> None:
    assert load_config(TINY, config=TINY / "config.json").differences == ()


def test_a_field_one_file_is_silent_on_is_listed_and_taken_from_the_other(tmp_path: Path) -> None:
    inference = flat_of()
    del inference["window_size"]
    loaded = load_config(write(tmp_path, nested_of(), inference))
    (difference,) = [d for d in loaded.differences if d.field not in NESTED_ONLY]
    assert (difference.field, difference.nested, difference.flat) == ("window_size", 8, SILENT)
    assert loaded.config.window_size == 8


def test_a_value_said_as_null_is_not_silence(tmp_path: Path) -> None:
    inference = flat_of()
    inference["vision_max_wh_ratio"] = 2.5
    (difference,) = [d for d in read_config(write(tmp_path, nested_of(), inference)).differences if d.conflict]
    assert (difference.nested, difference.flat) == (None, 2.5)


def test_files_that_contradict_each_other_are_refused_with_field_and_both_values(tmp_path: Path) -> None:
    inference = flat_of()
    inference["n_activated_experts"] = 4
    folder = write(tmp_path, nested_of(), inference)
    with pytest.raises(ConfigError) as caught:
        load_config(folder)
    message = str(caught.value)
    for part in ("text_config.num_experts_per_tok", "n_activated_experts", "is 3", "and 4"):
        assert part in message


def test_the_audit_reads_files_that_contradict_each_other(tmp_path: Path) -> None:
    inference = flat_of()
    inference["n_activated_experts"] = 4
    reading = read_config(write(tmp_path, nested_of(), inference))
    assert reading.build().n_activated_experts == 3  # the nested file's, which is the fuller one


def test_a_contradiction_nobody_reads_is_reported_and_run(tmp_path: Path) -> None:
    inference = flat_of()
    inference["dtype"] = "bf16"
    loaded = load_config(write(tmp_path, nested_of(), inference))
    assert [d.field for d in loaded.differences if d.conflict] == ["dtype"]


def test_unknown_keys_are_kept_with_their_values(tmp_path: Path) -> None:
    nested = nested_of()
    nested["text_config"]["novelty"] = {"deep": [1, 2]}
    loaded = load_config(write(tmp_path, nested=nested))
    assert loaded.unknown["config.json:text_config.novelty"] == {"deep": [1, 2]}
    assert loaded.unknown["config.json:model_type"] == "deepseek_v41"


def test_missing_keys_are_named_in_one_error(tmp_path: Path) -> None:
    nested = nested_of()
    del nested["text_config"]["hidden_size"], nested["text_config"]["rope_scaling"]["factor"]
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, nested=nested))
    assert "2 needed keys missing: text_config.hidden_size, text_config.rope_scaling.factor" in str(caught.value)


def test_of_many_missing_keys_the_first_five_are_named(tmp_path: Path) -> None:
    nested = nested_of()
    gone = ["hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank"]
    for key in gone:
        del nested["text_config"][key]
    with pytest.raises(ConfigError, match=r"7 needed keys missing: .* and 2 more$") as caught:
        load_config(write(tmp_path, nested=nested))
    assert sum(f"text_config.{key}" in str(caught.value) for key in gone) == 5


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "LlamaForCausalLM"),
        ({"architectures": None}, "llama"),
        ({"architectures": []}, None),
        ({"architectures": [7]}, None),
        ({"architectures": ["x" * 61]}, None),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, None),
        ({"architectures": None, "model_type": {"a": 1}}, None),
    ],
)
def test_the_config_of_another_model_is_called_that(
    tmp_path: Path, changes: dict[str, object], name: str | None
) -> None:
    folder = write(tmp_path, nested=LLAMA | changes)
    assert read_config(folder).other_model == name
    said = "needed keys missing" if name is None else f"this is the config of '{name}'"
    with pytest.raises(ConfigError, match=said):
        load_config(folder)


def test_a_config_without_a_gap_is_ours_whatever_it_calls_itself(tmp_path: Path) -> None:
    nested = nested_of()
    nested["architectures"] = ["Other"]
    assert read_config(write(tmp_path, nested=nested)).other_model is None
    assert load_config(tmp_path).config.dim > 0


def test_a_missing_key_of_the_flat_file_has_its_flat_name(tmp_path: Path) -> None:
    inference = flat_of()
    del inference["dim"]
    with pytest.raises(ConfigError, match="1 needed key missing: dim"):
        load_config(write(tmp_path, inference=inference))


def test_a_folder_without_a_config_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json and no inference/config\.json") as caught:
        load_config(tmp_path)
    assert "config.json" in caught.value.hint


def test_two_files_of_one_layout_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both in the flat layout"):
        load_config(write(tmp_path, flat_of(), flat_of()))


# Hostile files

TEXT = json.dumps(nested_of())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        (b"[1, 2]", "holds a list"),
        (b"{}", "neither layout"),
        (TEXT.encode()[:-5], "not valid JSON"),
        (TEXT.replace("1e-20", "NaN").encode(), "NaN is not a JSON number"),
        (TEXT.replace("1e-20", "Infinity").encode(), "Infinity is not a JSON number"),
        (TEXT.replace("1e-20", "1e999").encode(), "rms_norm_eps is inf"),
        (TEXT.replace('"hidden_size": 256', '"hidden_size": ' + "9" * 5000).encode(), "not valid JSON"),
        (TEXT.replace('"hidden_size": 256', '"hidden_size": 1' + "0" * 60).encode(), "hidden_size is 1000"),
        (TEXT.replace('"hidden_size": 256', '"hidden_size": 1, "hidden_size": 256').encode(), "given twice"),
        (b'{"text_config": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"text_config": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"text_config": 7}', "text_config is 7, expected an object"),
        (b" " * (MAX_FILE_BYTES + 1), "at most 4,194,304"),
    ],
)
def test_a_hostile_file_is_refused_by_name_and_quickly(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert time.perf_counter() - start < 1
    assert said in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", True),
        ("num_hidden_layers", 8.0),
        ("num_hidden_layers", "8"),
        ("num_hidden_layers", None),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -3),
        ("num_hidden_layers", 10**9),
        ("n_routed_experts", 10**12),
        ("routed_scaling_factor", True),
        ("routed_scaling_factor", "1.5"),
        ("scoring_func", 3),
        ("norm_topk_prob", 1),
        ("compress_ratios", 2),
        ("compress_ratios", [0, 0, True]),
        ("compress_ratios", [0, 0, -1]),
        ("compress_ratios", [0] * 100_000),
        ("kv_source_layer_ids", [[2]]),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_with_key_and_value(tmp_path: Path, key: str, value: Any) -> None:
    nested = nested_of()
    nested["text_config"][key] = value
    with pytest.raises(ConfigError, match=rf"text_config\.{key} (is|has)"):
        load_config(write(tmp_path, nested=nested))


def test_absurd_totals_of_plausible_numbers_are_refused(tmp_path: Path) -> None:
    nested = nested_of()
    text = nested["text_config"]
    text |= {"num_hidden_layers": 4000, "n_routed_experts": 65000}
    text["compress_ratios"] = [0] * 4003
    text["kv_source_layer_ids"] = text["index_source_layer_ids"] = []
    text["candidate_source_layer_id"] = -1
    with pytest.raises(ConfigError, match="260,000,024 routed experts in all"):
        load_config(write(tmp_path, nested=nested))


@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"config\.json: (not a regular file|cannot be read)"):
        load_config(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_under_any_key_is_loaded_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    nested = nested_of()
    section = data.draw(st.sampled_from([nested, nested["text_config"], nested["text_config"]["rope_scaling"]]))
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    folder = write(tmp_path_factory.mktemp("config"), nested=nested)
    try:
        config = load_config(folder).config
    except ConfigError:
        return
    assert not [violation for violation in verify(config) if violation.needed]


# Relations


def test_the_shipped_configs_break_no_relation() -> None:
    for folder in (TINY, DEMO):
        assert verify(load_config(folder).config) == ()
    assert verify(RELEASED) == ()


def broken(config: ModelConfig) -> set[tuple[str, bool]]:
    return {(violation.relation, violation.needed) for violation in verify(config)}


@pytest.mark.parametrize(
    ("change", "relation", "needed"),
    [
        ({"compress_ratios": RELEASED.compress_ratios[:-1]}, "config.ratios-length", True),
        ({"compress_ratios": (*RELEASED.compress_ratios[:-1], 2)}, "config.draft-ratios", True),
        ({"index_source_layers": (2, 14, 8, 20, 24, 28, 32, 36)}, "config.source-order", True),
        ({"index_source_layers": (2, 8, 14, 20, 24, 28, 32, 40)}, "config.source-order", True),
        ({"kv_source_layers": (2, 8, 14, 20, 22)}, "config.kv-subset", True),
        ({"engram_num_embeddings": (384006168,)}, "config.engram-sizes", True),
        ({"engram_layer_ids": (14, 1)}, "config.engram-layers", True),
        ({"engram_layer_ids": (1, 40)}, "config.engram-layers", True),
        ({"engram_compressed_vocab_size": 0}, "config.compressed-vocabulary", True),
        ({"engram_compressed_vocab_size": 129281}, "config.compressed-vocabulary", True),
        ({"eos_token_id": 129280}, "config.token-ids", True),
        ({"image_token_id": -1}, "config.token-ids", True),
        ({"candidate_source_layer": 21}, "config.candidate-source", True),
        ({"candidate_source_layer": 24}, "config.candidate-source", False),
        ({"candidate_source_layer": 2}, "config.candidate-source", True),  # later sources have ratio 1, it has 2
        ({"candidate_topk_blocks": 60}, "config.candidate-reach", True),
        ({"dspark_target_layer_ids": (37, 38, 40)}, "config.draft-targets", True),
        ({"dspark_target_layer_ids": (36, 37, 38)}, "config.draft-targets", False),
        ({"vision_n_heads": 24}, "config.vision", False),
        ({"vision_patch_size": 15}, "config.vision", False),
        ({"o_groups": 7}, "config.sizes", True),
        ({"rope_head_dim": 130}, "config.sizes", True),
        ({"n_activated_experts": 385}, "config.sizes", True),
        ({"moe_inter_dim": 2300}, "config.sizes", True),
        ({"score_func": "sigmoid"}, "config.arithmetic", True),
        ({"norm_topk_prob": False}, "config.arithmetic", True),
        ({"rope_type": "linear"}, "config.arithmetic", True),
    ],
)
def test_a_broken_relation_is_named_with_its_values(change: dict[str, Any], relation: str, needed: bool) -> None:
    config = replace(RELEASED, **change)
    assert (relation, needed) in broken(config)
    violation = next(v for v in verify(config) if v.relation == relation)
    assert violation.values.items() >= change.items()


def ratios_with(**changes: int) -> tuple[int, ...]:
    ratios = list(RELEASED.compress_ratios)
    for layer, ratio in changes.items():
        ratios[int(layer[1:])] = ratio
    return tuple(ratios)


def test_a_source_that_compresses_nothing_is_named() -> None:
    relations = broken(replace(RELEASED, compress_ratios=ratios_with(L2=0)))
    assert relations == {("config.source-ratios", True), ("config.readers", True)}


def test_a_layer_whose_source_has_another_ratio_is_named() -> None:
    violations = verify(replace(RELEASED, compress_ratios=ratios_with(L25=2)))
    assert {violation.relation for violation in violations} == {"config.readers"}
    assert violations[0].values == {
        "kv_source_layers": (2, 8, 14, 20),
        "layer": 25,
        "ratio": 2,
        "source_ratio": 1,
    }


def test_layers_below_the_first_source_are_named() -> None:
    config = replace(RELEASED, kv_source_layers=(8, 14, 20))
    assert broken(config) == {("config.index-over-kv", True), ("config.readers", True)}


def test_the_loader_refuses_what_cannot_be_run_and_runs_what_only_differs(tmp_path: Path) -> None:
    nested = nested_of()
    nested["text_config"]["dspark_target_layer_ids"] = [4, 5, 6]
    assert load_config(write(tmp_path, nested=nested)).config.dspark_target_layer_ids == (4, 5, 6)
    nested["text_config"]["scoring_func"] = "sigmoid"
    with pytest.raises(ConfigError, match="score_func is 'sigmoid', only 'sqrtsoftplus' can be computed"):
        load_config(write(tmp_path, nested=nested))


def test_of_many_broken_relations_the_first_five_are_told(tmp_path: Path) -> None:
    nested = nested_of()
    text = nested["text_config"]
    text |= {"scoring_func": "sigmoid", "norm_topk_prob": False, "o_groups": 7}
    text["compress_ratios"] = 40 * [2] + text["compress_ratios"][40:]  # the first layers have nothing to read
    with pytest.raises(ConfigError, match=r"; and [\d,]+ more$") as caught:
        load_config(write(tmp_path, nested=nested))
    assert len(str(caught.value)) < 2_000


@given(
    ratios=st.lists(st.integers(0, 3), max_size=6),
    sources=st.lists(st.integers(0, 9), max_size=4),
    engrams=st.lists(st.integers(0, 9), max_size=3),
    candidate=st.integers(-1, 9),
)
def test_relations_judge_any_lists_without_failing(
    ratios: list[int], sources: list[int], engrams: list[int], candidate: int
) -> None:
    config = replace(
        RELEASED,
        n_layers=4,
        compress_ratios=tuple(ratios),
        kv_source_layers=tuple(sources),
        index_source_layers=tuple(sources[::-1]),
        engram_layer_ids=tuple(engrams),
        candidate_source_layer=candidate,
        dspark_target_layer_ids=(),
    )
    relations = {violation.relation for violation in verify(config)}
    assert "config.draft-targets" in relations  # stages without a target
    assert ("config.ratios-length" in relations) == (len(ratios) != 4 + config.n_mtp_layers)
    assert ("config.engram-sizes" in relations) == (len(engrams) != 2)


# Roles


def test_the_released_roles_are_derived_from_the_lists() -> None:
    kinds = [RELEASED.kind(layer) for layer in range(RELEASED.n_layers)]
    assert [layer for layer, kind in enumerate(kinds) if kind == "window"] == [0, 1]
    assert [layer for layer, kind in enumerate(kinds) if kind == "full"] == [2, 8, 14, 20]
    assert [layer for layer, kind in enumerate(kinds) if kind == "reindex"] == [24, 28, 32, 36]
    assert kinds.count("reuse") == 30


def test_selection_and_latents_may_come_from_different_layers() -> None:
    # Trap 19 of the specification: layer 26 selects by 24 and reads 20.
    assert 24 in RELEASED.index_source_layers and not {25, 26} & {*RELEASED.index_source_layers}
    assert [RELEASED.kv_source_of(layer) for layer in (26, 20, 1)] == [20, 20, None]
    assert (RELEASED.ratio(19), RELEASED.ratio(20)) == (2, 1)


@pytest.mark.parametrize(("key", "value"), [("beta_fast", 0), ("beta_slow", 0)])
def test_a_correction_of_rotations_that_divides_by_nothing_is_refused(tmp_path: Path, key: str, value: float) -> None:
    nested = nested_of()
    nested["text_config"]["rope_scaling"][key] = value
    with pytest.raises(ConfigError, match=rf"rope_scaling\.{key} is"):
        load_config(write(tmp_path, nested=nested))
    nested = nested_of()
    nested["text_config"]["compress_rope_theta"] = 1
    with pytest.raises(ConfigError, match="compress_rope_theta is"):
        load_config(write(tmp_path, nested=nested))
