"""Routed experts by id, in waves; never a path, never an offset.

Owns the seam between the forward and storage: the forward says which experts of a layer it needs, storage decides where
their bytes are. Here each is read when it is asked for and dropped when the next one is, so one expert is in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.config import ModelConfig
from engine.errors import FormatError
from engine.formats import SCALE_BLOCK, check_codes
from engine.kernels import Matrix
from storage.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """One routed FFN, packed as stored."""

    w1: Matrix  # [F, D] gate branch
    w2: Matrix  # [D, F]
    w3: Matrix  # [F, D] up branch


class Experts:
    """The routed experts of a checkpoint.

    Raises: FormatError from the constructor when an expert the config asks for is missing, misshapen or not packed fp4.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._checkpoint = checkpoint
        d, f = config.dim, config.moe_inter_dim
        self._shapes: Mapping[str, tuple[int, int]] = {"w1": (f, d), "w2": (d, f), "w3": (f, d)}
        for layer in range(config.n_layers):
            for expert in range(config.n_routed_experts):
                self._check(f"layers.{layer}.ffn.experts.{expert}")

    def _check(self, prefix: str) -> None:
        for part, (n, k) in self._shapes.items():
            for name, dtype, shape in (
                (f"{prefix}.{part}.weight", "I8", (n, k // 2)),
                (f"{prefix}.{part}.scale", "F8_E8M0", (n, k // SCALE_BLOCK)),
            ):
                entry = self._checkpoint.tensors.get(name)
                if entry is None or entry.dtype != dtype or entry.shape != shape:
                    found = "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
                    raise FormatError(
                        f"tensor {name!r} is {found}, expected {dtype} {list(shape)}",
                        hint="The config and the shards do not belong together. Run `artesian audit` on the folder.",
                    )

    def waves(self, layer: int, experts: Sequence[int]) -> Iterator[Sequence[tuple[int, ExpertWeights]]]:
        """The experts of a layer, in waves of one; the weights may be used until the next wave is asked for."""
        for expert in experts:
            yield [(expert, self._read(f"layers.{layer}.ffn.experts.{expert}"))]

    def _read(self, prefix: str) -> ExpertWeights:
        parts = {}
        for part, (n, k) in self._shapes.items():
            weight = torch.frombuffer(self._checkpoint.read(f"{prefix}.{part}.weight"), dtype=torch.uint8)
            scale = torch.frombuffer(self._checkpoint.read(f"{prefix}.{part}.scale"), dtype=torch.uint8)
            matrix = Matrix(kind="fp4", weight=weight.view(n, k // 2), scale=scale.view(n, k // SCALE_BLOCK))
            check_codes(f"{prefix}.{part}", matrix.weight, matrix.scale, fp8=False)
            parts[part] = matrix
        return ExpertWeights(w1=parts["w1"], w2=parts["w2"], w3=parts["w3"])
