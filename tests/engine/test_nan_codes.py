"""NaN codes in a checkpoint: found at load or first use, named with tensor and position, never spread.

One byte of a made checkpoint is overwritten; what a person sees must say where it is.
"""

from pathlib import Path

import pytest
import torch

from engine.config import load_config
from engine.errors import FormatError
from engine.model import Model, Trace
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from tests.engine.oracle import Oracle
from tests.maker import Geometry, find, make, poke

PROMPT = [3, 141, 59, 26, 53, 58]

GEOMETRY = Geometry(
    n_layers=3,
    compress_ratios=(0, 2, 1),
    kv_source_layers=(1, 2),
    index_source_layers=(1, 2),
    candidate_source_layer=2,
    n_mtp_layers=1,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path, GEOMETRY, seed=1)


def run(folder: Path) -> tuple[Trace, torch.Tensor]:
    """A prefill of the prompt: what it chose, and its logits."""
    with Checkpoint.open(folder) as checkpoint:
        config = load_config(folder).config
        streams = StreamSettings(slots_per_layer=config.n_routed_experts)
        model = Model.open(checkpoint, config, streams=streams)
        try:
            trace = Trace()
            result = model.forward(model.new_state(), PROMPT, "prefill", n_logits=len(PROMPT), trace=trace)
            return trace, result.logits
        finally:
            model.close()


def overwrite(folder: Path, name: str, position: tuple[int, int], byte: int) -> None:
    """Put a byte at a position of a tensor of one-byte elements."""
    width = find(folder, name).shape[1]
    poke(folder, name, position[0] * width + position[1], bytes([byte]))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_code_in_a_dense_weight_is_refused_at_load(folder: Path, code: int) -> None:
    overwrite(folder, "layers.1.attn.wkv.weight", (5, 33), code)
    with pytest.raises(FormatError) as refused:
        run(folder)
    for part in ("layers.1.attn.wkv.weight", "[5, 33]", f"0x{code:02X}"):
        assert part in str(refused.value)
    assert "audit" in refused.value.hint


def test_the_reserved_code_in_a_dense_scale_is_refused_at_load(folder: Path) -> None:
    overwrite(folder, "layers.2.ffn.shared_experts.w2.scale", (1, 0), 255)
    with pytest.raises(FormatError, match=r"layers\.2\.ffn\.shared_experts\.w2\.scale\[1, 0\]"):
        run(folder)


def test_the_reserved_code_in_an_experts_scale_is_refused_at_first_use(folder: Path) -> None:
    used = run(folder)[0].routing[1].experts.flatten().tolist()
    expert = max(used)
    overwrite(folder, f"layers.1.ffn.experts.{expert}.w3.scale", (17, 1), 255)
    with Checkpoint.open(folder) as checkpoint:
        config = load_config(folder).config
        model = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=config.n_routed_experts))
        state = model.new_state()
        for _ in range(2):  # it is not in a slot afterwards either
            with pytest.raises(FormatError, match=rf"layers\.1\.ffn\.experts\.{expert}\.w3\.scale\[17, 1\]"):
                model.forward(state, PROMPT, "prefill")
        assert state.n_tokens == 0
        model.close()


def test_an_expert_nobody_asks_for_is_not_looked_at(folder: Path) -> None:
    trace, logits = run(folder)
    unused = set(range(GEOMETRY.n_routed_experts)) - set(trace.routing[2].experts.flatten().tolist())
    overwrite(folder, f"layers.2.ffn.experts.{min(unused)}.w1.scale", (0, 0), 255)
    assert torch.equal(run(folder)[1], logits)


@pytest.mark.parametrize(("part", "position", "code"), [("weight", 7, 0x7F), ("weight", 31, 0xFF), ("scale", 0, 255)])
def test_a_nan_code_in_an_engram_row_is_refused_when_the_row_is_read(
    folder: Path, part: str, position: int, code: int
) -> None:
    trace, logits = run(folder)
    read = set(trace.rows[1].flatten().tolist())
    row, other = max(read), min(set(range(GEOMETRY.engram_rows[0])) - read)
    overwrite(folder, f"layers.1.engram.embed.{part}", (other, position), code)
    assert torch.equal(run(folder)[1], logits)
    overwrite(folder, f"layers.1.engram.embed.{part}", (row, position), code)
    with pytest.raises(FormatError) as refused:
        run(folder)
    message = str(refused.value).replace(",", "")
    assert "layers.1.engram.embed" in message and str(row) in message and f"{part}[" in message


def test_scale_code_zero_is_a_very_small_scale_and_not_an_error(folder: Path) -> None:
    """Code 0 is 2^-127. With weights of up to 448 that is nothing beside the others, as the oracle says too."""
    overwrite(folder, "layers.0.attn.wo_b.scale", (0, 0), 0)
    for row in range(GEOMETRY.dim):
        overwrite(folder, f"layers.0.ffn.experts.{row % 8}.w2.scale", (row, 0), 0)
    _, logits = run(folder)
    rows = Oracle(folder).prefill(PROMPT)
    for row, want in zip(logits, rows, strict=True):
        torch.testing.assert_close(row.double(), torch.from_numpy(want.logits), rtol=0, atol=2e-4)
