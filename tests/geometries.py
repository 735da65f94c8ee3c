"""Geometries that cross what toys usually miss, each with a seed whose choices have margins.

A limit nobody reaches in a small model is a limit nobody tests: more experts than 256, a selection that cuts, windows
that wrap many times, row ids beyond 32 bits, sources in an order that is not the released one. The seeds were found by
search (`python -m tests.geometries`, which prints the margins); `tests/engine/test_geometries.py` checks them again.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.engine.oracle import Oracle, Row
from tests.maker import NO_TOWER, Geometry, Tower, Weight, fill_rows, make

LIMITS = {"top1": 0.01, "router": 1e-4, "index": 1e-4, "candidates": 1e-4}
"""Smallest distance between what is chosen and what is not, by kind: twenty times what float32 loses on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A geometry to run: its prompt is `prompt_tokens` seeded ids, then `steps` greedy tokens are decoded."""

    geometry: Geometry
    seed: int = 0
    prompt_tokens: int = 37
    steps: int = 14
    tweak: Callable[[Weight], Weight | None] = lambda weight: weight
    ties: bool = False
    """Whether index scores tie by construction, so that their margin is zero."""
    sparse_rows: bool = False
    """Whether the engram tables are holes, to be written at the rows that are read."""

    def prompt(self) -> list[int]:
        """The prompt's ids; raw bits, so that they are the same everywhere."""
        raw = np.random.PCG64([self.seed, 77]).random_raw(self.prompt_tokens)
        return [int(bits % self.geometry.vocab_size) for bits in raw]


def _without(part: str) -> Callable[[Weight], Weight | None]:
    return lambda weight: replace(weight, mean=0.0, std=0.0) if part in weight.name else weight


def _louder(part: str, gain: float) -> Callable[[Weight], Weight | None]:
    return lambda weight: replace(weight, std=weight.std * gain) if part in weight.name else weight


def _no_rows(weight: Weight) -> Weight | None:
    return None if weight.kind == "rows" else weight


CASES: dict[str, Case] = {
    # Nothing special: the roles of the release in five layers; selection and candidates cut.
    "released-roles": Case(seed=2, geometry=Geometry()),
    # More experts than a byte counts, more than one in sixty picked.
    "experts-384": Case(
        geometry=Geometry(
            n_layers=3,
            compress_ratios=(0, 2, 1),
            kv_source_layers=(1, 2),
            index_source_layers=(1, 2),
            candidate_source_layer=2,
            n_routed_experts=384,
            n_activated_experts=6,
            n_mtp_layers=1,
        ),
        prompt_tokens=25,
    ),
    # Twenty windows, a selection of three in ninety, a prompt of several chunks.
    "many-windows": Case(
        seed=2,
        geometry=Geometry(window_size=4, index_topk=3, candidate_topk_blocks=2, candidate_block_size=2),
        prompt_tokens=90,
    ),
    # Two of a dozen candidate blocks of three survive, used by two later index sources.
    "few-candidates": Case(
        geometry=Geometry(
            n_layers=6,
            compress_ratios=(0, 2, 1, 1, 1, 1),
            kv_source_layers=(1, 2),
            index_source_layers=(1, 2, 3, 5),
            candidate_source_layer=2,
            candidate_topk_blocks=2,
            candidate_block_size=3,
            index_topk=4,
        ),
    ),
    # Row ids above 2^32 and byte offsets above 2^36, in a sparse file.
    "far-rows": Case(
        geometry=Geometry(engram_vocab_size=1_200_000_000, engram_max_ngram_size=3),
        prompt_tokens=15,
        steps=6,
        sparse_rows=True,
    ),
    # Coarse and fine sources interleaved with window layers; the first layer compresses, the last does not.
    "ratio-4-then-2": Case(
        seed=1,
        geometry=Geometry(
            n_layers=7,
            compress_ratios=(4, 4, 0, 2, 2, 0, 0),
            kv_source_layers=(0, 3),
            index_source_layers=(0, 1, 3),
            candidate_source_layer=-1,
            index_topk=3,
            engram_layer_ids=(0, 5),
        ),
    ),
    # Finer to coarser to finest: an unfinished ratio-4 group scores the keys of the ratio-2 source below it.
    "ratio-2-4-1": Case(
        geometry=Geometry(
            n_layers=6,
            compress_ratios=(2, 2, 4, 4, 1, 1),
            kv_source_layers=(0, 2, 4),
            index_source_layers=(0, 1, 2, 3, 4, 5),
            candidate_source_layer=4,
            index_topk=4,
            candidate_topk_blocks=2,
        ),
    ),
    # The candidate source is neither the last index source nor above the last KV source, window layers in between.
    "early-candidates": Case(
        geometry=Geometry(
            n_layers=7,
            compress_ratios=(0, 2, 2, 1, 1, 0, 1),
            kv_source_layers=(1, 3, 6),
            index_source_layers=(1, 2, 3, 4, 6),
            candidate_source_layer=3,
            candidate_topk_blocks=2,
            index_topk=4,
            dspark_target_layer_ids=(1, 4),
        ),
    ),
    # A ratio-1 source first: later coarser sources score its keys, fresh ones included.
    "ratio-1-first": Case(
        geometry=Geometry(
            n_layers=6,
            compress_ratios=(0, 1, 2, 2, 0, 1),
            kv_source_layers=(1, 2, 5),
            index_source_layers=(1, 2, 3, 5),
            candidate_source_layer=-1,
            index_topk=4,
        ),
    ),
    # The finest source in the middle: the key slot goes back and forth between the last two, token by token.
    "ratio-2-1-2": Case(
        geometry=Geometry(
            compress_ratios=(0, 2, 1, 2, 2),
            kv_source_layers=(1, 2, 3),
            index_source_layers=(1, 2, 3, 4),
            candidate_source_layer=-1,
            index_topk=3,
        ),
        prompt_tokens=38,
    ),
    # One group picked, so that keys matter from the fourth token on.
    "one-group": Case(geometry=Geometry(index_topk=1, candidate_source_layer=-1), prompt_tokens=21),
    # No fp8 dimension but the width is a multiple of 32; scale blocks straddle output groups and heads.
    "odd-dims": Case(
        seed=5,
        geometry=Geometry(
            dim=96,
            n_heads=6,
            head_dim=20,
            rope_head_dim=6,
            q_lora_rank=44,
            o_groups=3,
            o_lora_rank=20,
            index_n_heads=5,
            index_head_dim=22,
            engram_n_heads=1,
            dspark_markov_rank=12,
        ),
    ),
    "one-expert-active": Case(geometry=Geometry(n_activated_experts=1, dspark_n_activated_experts=1)),
    # Two residual copies, trigrams at most, two engram layers, the first at layer 0.
    "two-copies": Case(
        geometry=Geometry(hc_mult=2, hc_sinkhorn_iters=1, engram_max_ngram_size=3, engram_layer_ids=(0, 3)),
    ),
    "no-engram": Case(geometry=Geometry(engram_layer_ids=())),
    # Window attention alone, no draft head, no image tower, one residual copy.
    "no-compression": Case(
        geometry=Geometry(
            n_layers=3,
            compress_ratios=(0, 0, 0),
            kv_source_layers=(),
            index_source_layers=(),
            candidate_source_layer=-1,
            hc_mult=1,
            n_mtp_layers=0,
            vision=NO_TOWER,
        ),
    ),
    # Everything compressed is selected, so prefill and decode are the same function.
    "nothing-cut": Case(geometry=Geometry(index_topk=64, candidate_topk_blocks=32)),
    # Every index score is zero: the lowest groups are taken, the lowest blocks survive.
    "all-tie": Case(geometry=Geometry(), tweak=_without("indexer.weights_proj"), ties=True),
    # Router logits near +-100: exp overflows in float32, softplus must not.
    "loud-router": Case(seed=2, geometry=Geometry(), tweak=_louder("ffn.gate.weight", 25.0)),
}
"""Every case by name."""


RELEASED = Geometry(
    vocab_size=129280,
    dim=5120,
    n_layers=40,
    n_heads=64,
    head_dim=512,
    rope_head_dim=64,
    q_lora_rank=1280,
    o_groups=8,
    o_lora_rank=1024,
    window_size=128,
    moe_inter_dim=2304,
    n_routed_experts=384,
    n_activated_experts=6,
    swiglu_limit=10.0,
    compress_ratios=(0, 0, *[2] * 18, *[1] * 20),
    kv_source_layers=(2, 8, 14, 20),
    index_source_layers=(2, 8, 14, 20, 24, 28, 32, 36),
    index_n_heads=32,
    index_head_dim=128,
    index_topk=512,
    candidate_source_layer=20,
    candidate_topk_blocks=2048,
    candidate_block_size=8,
    hc_sinkhorn_iters=20,
    engram_layer_ids=(1, 14),
    engram_vocab_size=16_000_000,
    engram_n_heads=8,
    engram_head_dim=256,
    n_mtp_layers=3,
    dspark_markov_rank=256,
    dspark_n_routed_experts=128,
    dspark_n_activated_experts=3,
    vision=Tower(
        n_layers=32,
        dim=1024,
        n_heads=16,
        inter_dim=2816,
        patch_size=14,
        downsample_ratio=3,
        max_n_token=1024,
        min_pixels=295_936,
    ),
)
"""The released model. Never made: its tensor list is held to the published figures."""


@dataclass
class Judged:
    """What the oracle computes for a case."""

    folder: Path
    prompt: list[int]
    rows: list[Row]
    """One a position: the prompt's, then the decoded ones."""
    greedy: list[int] = field(default_factory=list)
    """Token after the prompt and after each decode step."""

    def gaps(self) -> dict[str, float]:
        """Smallest margin of every kind of choice that tokens depend on."""
        kinds = ("router", "index", "candidates")
        gaps = {kind: min(row.gaps.get(kind, math.inf) for row in self.rows) for kind in kinds}
        return {**gaps, "top1": min(row.gaps["top1"] for row in self.rows[len(self.prompt) - 1 :])}


def judge(folder: Path, case: Case) -> Judged:
    """Make the case's checkpoint in `folder` and run the oracle on it, feeding its own greedy tokens."""
    make(folder, case.geometry, seed=case.seed, tweak=_no_rows if case.sparse_rows else case.tweak)
    oracle = _Filling(folder) if case.sparse_rows else Oracle(folder)
    prompt = case.prompt()
    result = Judged(folder=folder, prompt=prompt, rows=oracle.prefill(prompt))
    for _ in range(case.steps):
        result.greedy.append(int(result.rows[-1].logits.argmax()))
        result.rows.append(oracle.decode(result.greedy[-1]))
    result.greedy.append(int(result.rows[-1].logits.argmax()))
    return result


class _Filling(Oracle):
    """Writes each engram row into the sparse table just before it reads it for the first time."""

    def row_ids(self, ordinal: int, p: int) -> list[int]:
        rows = super().row_ids(ordinal, p)
        fill_rows(self.w.folder, self.c["engram_layer_ids"][ordinal], rows)
        return rows


def too_close(case: Case, gaps: dict[str, float]) -> dict[str, float]:
    """The margins below their limits."""
    kinds = [kind for kind in LIMITS if not (case.ties and kind in ("index", "candidates"))]
    return {kind: gaps[kind] for kind in kinds if gaps[kind] < LIMITS[kind]}


def main(names: Sequence[str]) -> None:
    """Print for each case the first seed whose choices have margins."""
    for name in names or CASES:
        for seed in range(CASES[name].seed, 1000):
            case = replace(CASES[name], seed=seed)
            with tempfile.TemporaryDirectory() as folder:
                gaps = judge(Path(folder), case).gaps()
            if not too_close(case, gaps):
                print(f"{name}: seed {seed}", {kind: f"{gap:.2g}" for kind, gap in gaps.items()}, flush=True)
                break


if __name__ == "__main__":
    main(sys.argv[1:])
