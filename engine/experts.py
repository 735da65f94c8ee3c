"""Routed experts: their names in a checkpoint, and their bytes as matrices; never a path, never an offset.

Where the bytes are and when they are read is storage's (`streams` opens it); a slot's bytes become an `ExpertWeights`
once, when they have arrived, and stay that object for as long as they stay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.config import ModelConfig
from engine.errors import FormatError
from engine.formats import SCALE_BLOCK, check_codes
from engine.kernels import Matrix
from storage.checkpoint import Checkpoint
from storage.expert_layout import EXPERT_PARTS
from storage.ids import ExpertId

if TYPE_CHECKING:
    from engine.tiers.card import Card  # it multiplies what is declared here


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """One routed FFN, packed as stored."""

    w1: Matrix  # [F, D] gate branch
    w2: Matrix  # [D, F]
    w3: Matrix  # [F, D] up branch
    card: "Card | None" = None
    """Whose memory it lies in, and who multiplies it; None for the processor."""


def expert_prefixes(config: ModelConfig, *, drafts: bool = False) -> Mapping[int, tuple[str, int]]:
    """Layer -> (prefix of its experts' tensor names, how many there are); with the draft stages when `drafts`."""
    prefixes = {layer: (f"layers.{layer}.ffn.experts.", config.n_routed_experts) for layer in range(config.n_layers)}
    if drafts:
        for stage in range(config.n_mtp_layers):
            prefixes[config.n_layers + stage] = (f"mtp.{stage}.ffn.experts.", config.dspark_n_routed_experts)
    return prefixes


def _shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    d, f = config.dim, config.moe_inter_dim
    return {"w1": (f, d), "w2": (d, f), "w3": (f, d)}


def expert_bytes(config: ModelConfig) -> int:
    """Weights and scales of one routed expert, as stored."""
    return sum(n * (k // 2) + n * (k // SCALE_BLOCK) for n, k in _shapes(config).values())


def check_experts(checkpoint: Checkpoint, config: ModelConfig, *, drafts: bool = False) -> None:
    """Raises: FormatError when an expert the config asks for is missing, misshapen or not packed fp4."""
    wanted = {}
    for part, (n, k) in _shapes(config).items():
        wanted[f"{part}.weight"] = ("I8", (n, k // 2))
        wanted[f"{part}.scale"] = ("F8_E8M0", (n, k // SCALE_BLOCK))
    for prefix, n_experts in expert_prefixes(config, drafts=drafts).values():
        for expert in range(n_experts):
            for part, (dtype, shape) in wanted.items():
                name = f"{prefix}{expert}.{part}"
                entry = checkpoint.tensors.get(name)
                if entry is None or entry.dtype != dtype or entry.shape != shape:
                    found = "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
                    raise FormatError(
                        f"tensor {name!r} is {found}, expected {dtype} {list(shape)}",
                        hint="The config and the shards do not belong together. Run `artesian audit` on the folder.",
                    )


def attach_expert(config: ModelConfig) -> Callable[[ExpertId, tuple[memoryview, ...]], ExpertWeights]:
    """What turns an expert's bytes, in the order of `EXPERT_PARTS`, into matrices over the same memory.

    The returned function raises FormatError naming the tensor and the position of a NaN scale.
    """
    shapes, prefixes = _shapes(config), expert_prefixes(config, drafts=True)

    def attach(key: ExpertId, views: tuple[memoryview, ...]) -> ExpertWeights:
        bytes_of = dict(zip(EXPERT_PARTS, views, strict=True))
        matrices = {}
        for part, (n, k) in shapes.items():
            weight = torch.frombuffer(bytes_of[f"{part}.weight"], dtype=torch.uint8).view(n, k // 2)
            scale = torch.frombuffer(bytes_of[f"{part}.scale"], dtype=torch.uint8).view(n, k // SCALE_BLOCK)
            check_codes(f"{prefixes[key.layer][0]}{key.expert}.{part}", weight, scale, fp8=False)
            matrices[part] = Matrix(kind="fp4", weight=weight, scale=scale)
        return ExpertWeights(w1=matrices["w1"], w2=matrices["w2"], w3=matrices["w3"])

    return attach
