"""Where an expert's bytes are: its tensors by name, and the fewest runs that cover them.

In the released shards the three weights of an expert lie next to each other and so do its three scales, so that six
tensors are two reads. Nothing assumes it: whatever touches is merged, in any order, over any number of shards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage.arena import stride_for
from storage.errors import UnknownTensor, shown
from storage.extents import Extent, merge
from storage.headers import TensorEntry
from storage.ids import ExpertId

EXPERT_PARTS = ("w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale")
"""The tensors of an expert, in the order their bytes are handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayout:
    """One expert's place on the drives."""

    parts: tuple[Extent, ...]
    """Its tensors, in the order of `EXPERT_PARTS`; no extent is empty."""
    extents: tuple[Extent, ...]
    """What is read: the fewest runs that cover the parts."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of the extents."""
        return sum(extent.length for extent in self.extents)


def expert_layout(tensors: Mapping[str, TensorEntry], prefix: str, parts: Sequence[str] = EXPERT_PARTS) -> ExpertLayout:
    """The layout of the expert whose tensors are `prefix + part`, for example `layers.3.ffn.experts.17.w1.weight`.

    Raises: UnknownTensor for a part the checkpoint does not hold.
    """
    missing = [part for part in parts if prefix + part not in tensors]
    if missing:
        name = prefix + missing[0]
        raise UnknownTensor(
            f"The checkpoint holds no tensor {shown(name)!r}, and an expert needs it",
            tensor=name,
            hint="Run `artesian audit` on the folder to see what is missing.",
        )
    extents = tuple(tensors[prefix + part].extent for part in parts)
    return ExpertLayout(parts=extents, extents=tuple(merge(extents)))


def expert_layouts(
    tensors: Mapping[str, TensorEntry], layers: Mapping[int, tuple[str, int]]
) -> dict[ExpertId, ExpertLayout]:
    """The layouts of all experts, in the order of their flat index.

    Args:
        layers: Layer number -> (prefix of its experts such as `layers.3.ffn.experts.`, how many there are).

    Raises: UnknownTensor.
    """
    return {
        ExpertId(layer, expert): expert_layout(tensors, f"{prefix}{expert}.")
        for layer, (prefix, n_experts) in sorted(layers.items())
        for expert in range(n_experts)
    }


def slot_bytes(layouts: Iterable[ExpertLayout], block_bytes: int) -> int:
    """Size of a slot that takes any of `layouts` from a drive of this block size."""
    return max(stride_for((extent.length for extent in layout.extents), block_bytes) for layout in layouts)
