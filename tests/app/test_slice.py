"""Slices: the config, the files, and the command that makes them."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.cli import main
from app.commands import bench_slice
from app.errors import UsageError
from app.paths import demo_folder
from app.slices import write
from app.slices.geometry import RELEASED, slice_config
from app.slices.tokenizer import filled_tokenizer
from app.slices.write import RESERVE_BYTES, SpaceError, SparseFileError, slice_shards, write_slice
from engine.audit import audit
from engine.config import load_config, verify
from engine.errors import TokenizerError
from engine.hashing import compressed_map
from engine.inventory import Group, expected_tensors
from engine.tokens import ChatTokenizer
from storage.checkpoint import Checkpoint
from storage.expert_layout import expert_layouts
from tests.app.small_slices import SMALL, small_config, small_slice

Output = pytest.CaptureFixture[str]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices") / "small"
    small_slice(folder, n_layers=4, n_stages=2)
    return folder


# The config


def test_forty_layers_have_the_released_roles() -> None:
    config = slice_config(40, n_classes=99_092, n_stages=3)
    # spec/architecture.md sections 2 and 6.2
    assert config.compress_ratios == (0, 0, *(2,) * 18, *(1,) * 20, 0, 0, 0)
    assert config.kv_source_layers == (2, 8, 14, 20)
    assert config.index_source_layers == (2, 8, 14, 20, 24, 28, 32, 36)
    assert config.candidate_source_layer == 20
    assert config.engram_layer_ids == (1, 14)
    assert config.engram_num_embeddings == (384_006_168, 384_016_682)
    assert config.dspark_target_layer_ids == (37, 38, 39)


def test_forty_layers_have_the_released_tensors_and_bytes_vision_apart() -> None:
    config = slice_config(40, n_classes=99_092, n_stages=3)
    # spec/audit.md, released figures: 96,085 tensors in all, 266 of them vision and aligner.
    tensors = expected_tensors(config)
    assert len(tensors) == 96_085 - 266
    assert sum(tensor.group is Group.EXPERTS for tensor in tensors.values()) == 94_464
    shards = slice_shards(config)
    assert len(shards) == 48 - 1
    experts = 15_744 * 18_800_640
    assert sum(shard.data_bytes for shard in shards) > experts + sum(config.engram_num_embeddings) * 264


@pytest.mark.parametrize("n_layers", range(1, 13))
@pytest.mark.parametrize("n_stages", [0, 1])
def test_a_config_of_any_number_of_layers_is_sound(n_layers: int, n_stages: int) -> None:
    config = slice_config(n_layers, n_classes=99_092, n_stages=n_stages)
    assert verify(config) == ()
    assert config.dim == 5120 and config.n_routed_experts == 384


def test_four_layers_have_a_layer_of_every_kind_but_one_and_both_tables() -> None:
    config = slice_config(4, n_classes=99_092)
    assert [config.kind(layer) for layer in range(4)] == ["window", "window", "full", "full"]
    assert [config.ratio(layer) for layer in range(4)] == [0, 0, 2, 1]
    assert config.engram_layer_ids == (1, 2)


# The tokenizer


def test_a_filled_tokenizer_has_an_id_a_text_and_a_class_for_every_token(tmp_path: Path) -> None:
    content, n_classes = filled_tokenizer(demo_folder(), 129_280)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), "utf-8")
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size(with_added_tokens=True) == 129_280
    assert tokenizer.decode([129_279]) == " token129279"
    classes = compressed_map(path, n_classes=n_classes)
    assert len(classes) == 129_280 and len(set(classes[2048:])) == 129_280 - 2048


def test_a_filled_tokenizer_cuts_text_as_the_demos_does_and_knows_the_same_special_tokens(made: Path) -> None:
    demo, filled = ChatTokenizer.load(demo_folder()), ChatTokenizer.load(made)
    for text in ("What is an expert slot?", " token002050", "token002050", "\u00e9\U0001f600", ""):
        assert filled.encode_plain(text) == demo.encode_plain(text)
    for spelling in ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"):
        assert filled.id_of(spelling) == demo.id_of(spelling)


def test_a_vocabulary_smaller_than_the_demos_is_refused() -> None:
    with pytest.raises(TokenizerError):
        filled_tokenizer(demo_folder(), 2047)


# The files


def test_a_slice_opens_passes_every_check_of_the_audit_and_has_the_config_it_was_made_from(made: Path) -> None:
    report = audit(made, require_complete=True)
    assert report.sound, [check for check in report.checks if check.outcome.name != "PASS"]
    loaded = load_config(made)
    assert loaded.config == small_config(4, 2)
    assert not any(difference.conflict for difference in loaded.differences)
    with Checkpoint.open(made) as checkpoint:
        assert set(checkpoint.tensors) == set(expected_tensors(loaded.config))
        assert checkpoint.notes == ()


def test_an_expert_of_a_slice_is_two_runs(made: Path) -> None:
    with Checkpoint.open(made) as checkpoint:
        layouts = expert_layouts(checkpoint.tensors, {layer: (f"layers.{layer}.ffn.experts.", 8) for layer in range(4)})
        assert {len(layout.extents) for layout in layouts.values()} == {2}
        n_values = 3 * 64 * 32
        assert {layout.payload_bytes for layout in layouts.values()} == {n_values // 2 + n_values // 32}


def test_released_widths_have_two_runs_of_the_released_bytes_an_expert() -> None:
    for shard in slice_shards(slice_config(2, n_classes=99_092, n_experts=12))[1:3]:
        entries = json.loads(shard.header[8:])
        for expert in (0, 1, 10, 11):
            for part, n_bytes in (("weight", 3 * 5_898_240), ("scale", 3 * 368_640)):
                names = [name for name in entries if f".experts.{expert}.w" in name and name.endswith(part)]
                spans = sorted(tuple(entries[name]["data_offsets"]) for name in names)
                assert len(spans) == 3 and spans[-1][1] - spans[0][0] == n_bytes


def test_every_number_of_a_slice_is_finite_and_of_an_ordinary_size(made: Path) -> None:
    config = load_config(made).config
    with Checkpoint.open(made) as checkpoint:
        for name, tensor in expected_tensors(config).items():
            if tensor.role.startswith("engram.embed."):
                continue
            raw = np.frombuffer(checkpoint.read(name), dtype=np.uint8)
            match tensor.dtype:
                case "F8_E4M3":
                    assert not np.isin(raw, (0x7F, 0xFF)).any(), name  # the NaN codes
                    assert len(set(raw.tolist())) > 32, name
                case "F8_E8M0":
                    assert np.abs(raw.astype(int) - 127).max() < 16, name
                case "BF16" | "F32":
                    values = _floats(raw, tensor.dtype)
                    assert np.isfinite(values).all() and np.abs(values).max() < 16, name
                    assert values.size < 8 or values.std() > 0, name


def _floats(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    if dtype == "F32":
        return raw.view("<f4")
    return (raw.view("<u2").astype("<u4") << 16).view("<f4")


def test_no_two_experts_are_equal(made: Path) -> None:
    with Checkpoint.open(made) as checkpoint:
        seen = {
            bytes(checkpoint.read(f"layers.{layer}.ffn.experts.{expert}.w1.weight"))
            for layer in range(4)
            for expert in range(8)
        }
    assert len(seen) == 32


def test_engram_tables_are_holes_with_every_row(made: Path) -> None:
    config = load_config(made).config
    with Checkpoint.open(made) as checkpoint:
        for layer, rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
            name = f"layers.{layer}.engram.embed.weight"
            assert checkpoint.tensors[name].shape == (rows, 32)
            for row in (0, rows - 1):
                ends = bytearray(32)
                checkpoint.read_into(checkpoint.tensors[name].extent.part(row * 32, 32), memoryview(ends))
                assert ends == bytes(32)
            path = made / checkpoint.tensors[name].extent.shard
            assert path.stat().st_size > rows * 33
            assert path.stat().st_blocks * 512 < rows * 33 // 4


def test_the_same_seed_makes_the_same_bytes_and_another_one_others(made: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        small_slice(tmp_path / str(seed), n_layers=4, n_stages=2, seed=seed)
    name = "model-00002-of-00010.safetensors"
    assert (tmp_path / "0" / name).read_bytes() == (made / name).read_bytes()
    assert (tmp_path / "1" / name).read_bytes() != (made / name).read_bytes()


def test_nothing_is_overwritten(made: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in made.iterdir())
    with pytest.raises(UsageError, match="not empty"):
        small_slice(made)
    assert sorted(path.name for path in made.iterdir()) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        small_slice(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_is_used_and_stays_when_the_making_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, _ = filled_tokenizer(demo_folder(), SMALL["vocab_size"])
    (tmp_path / "empty").mkdir()

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    for name in ("empty", "new"):
        with pytest.raises(KeyboardInterrupt):
            write_slice(tmp_path / name, small_config(), tokenizer, on_progress=stop)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "new").exists()
    write_slice(tmp_path / "empty", small_config(), tokenizer)
    assert audit(tmp_path / "empty", require_complete=True).sound


def test_progress_ends_at_the_bytes_that_are_on_disk(tmp_path: Path) -> None:
    tokenizer, _ = filled_tokenizer(demo_folder(), SMALL["vocab_size"])
    steps: list[tuple[int, int]] = []
    shards = write_slice(tmp_path / "s", small_config(), tokenizer, on_progress=lambda *step: steps.append(step))
    total = sum(shard.disk_bytes for shard in shards)
    assert steps[-1] == (total, total) and steps == sorted(steps)
    assert sum((tmp_path / "s" / shard.name).stat().st_size for shard in shards) == sum(s.file_bytes for s in shards)


@pytest.mark.parametrize("short_bytes", [0, 1])
def test_a_drive_without_room_is_refused_before_anything_is_written(
    short_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(shard.disk_bytes for shard in slice_shards(small_config()))
    free = needed + RESERVE_BYTES - short_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(total=0, used=0, free=free))
    if not short_bytes:
        small_slice(tmp_path / "deep" / "er")
        return
    with pytest.raises(SpaceError, match="are free"):
        small_slice(tmp_path / "deep" / "er")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_holes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_disk_bytes", lambda fd: 1 << 20)
    with pytest.raises(SparseFileError):
        small_slice(tmp_path / "s")
    assert not (tmp_path / "s").exists()


# The command


@pytest.fixture
def small_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_slice, "RELEASED", SMALL)


@pytest.mark.usefixtures("small_release")
def test_the_command_makes_a_slice_and_says_what_it_made(tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "s"
    assert main(["bench", "slice", str(out), "--layers", "3", "--experts", "8", "--draft-stages", "1", "--json"]) == 0
    text, err = capsys.readouterr()
    record = json.loads(text)
    assert err == "" and record["kind"] == "bench-slice"
    data = record["data"]
    assert (data["n_layers"], data["n_experts_per_layer"], data["n_draft_stages"]) == (3, 8, 1)
    files = list(out.glob("*.safetensors"))
    assert data["apparent_bytes"] == sum(path.stat().st_size for path in files)
    assert data["n_shards"] == len(files)
    on_disk = sum(path.stat().st_blocks * 512 for path in files)
    assert data["disk_bytes"] - 4096 <= on_disk <= data["disk_bytes"] + 2 * 4096 * len(files)
    assert audit(out, require_complete=True).sound
    assert main(["bench", "slice", str(out), "--experts", "8"]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.usefixtures("small_release")
def test_a_size_gives_as_many_layers_as_fit(tmp_path: Path, capsys: Output) -> None:
    sizes = [sum(s.disk_bytes for s in slice_shards(small_config(n))) for n in (5, 6)]
    for name, size_bytes, n_layers in (("a", sizes[1] - 1, 5), ("b", sizes[1], 6)):
        assert main(["bench", "slice", str(tmp_path / name), "--experts", "8", "--size", f"{size_bytes}B"]) == 0
        assert f"layers          {n_layers}, 8 experts each" in capsys.readouterr().out
    assert main(["bench", "slice", str(tmp_path / "c"), "--experts", "8", "--size", "10kB"]) == 2
    assert "the smallest such slice takes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layers", "0"], "--layers must be from 1 to 40"),
        (["--layers", "41"], "--layers must be from 1 to 40"),
        (["--experts", "385"], "--experts must be from 1 to 384"),
        (["--layers", "2", "--draft-stages", "3"], "--draft-stages must be from 0 to 2"),
        (["--seed", "-1"], "--seed must be from 0"),
        (["--layers", "2", "--size", "8GB"], "cannot be used together"),
        (["--size", "many"], "--size must be a size such as 24GB"),
        (["--size", "5 bananas"], "--size must be a size such as 24GB"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    arguments: list[str], said: str, tmp_path: Path, capsys: Output
) -> None:
    assert main(["bench", "slice", str(tmp_path / "s"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_sizes_in_the_table_are_the_releases() -> None:
    # spec/architecture.md section 1, and the vocabulary's and the draft head's sizes
    letters = {"vocab_size": 129280, "dim": 5120, "hc_mult": 4, "n_heads": 64, "head_dim": 512, "rope_head_dim": 64}
    letters |= {"q_lora_rank": 1280, "o_groups": 8, "o_lora_rank": 1024, "window_size": 128, "index_n_heads": 32}
    letters |= {"index_head_dim": 128, "index_topk": 512, "n_routed_experts": 384, "n_activated_experts": 6}
    letters |= {"moe_inter_dim": 2304, "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256}
    letters |= {"dspark_block_size": 5, "hc_sinkhorn_iters": 20}
    assert {name: RELEASED[name] for name in letters} == letters
