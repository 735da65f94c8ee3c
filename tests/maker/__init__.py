"""Makes small checkpoints in the released format: any geometry, seeded, with numpy alone.

    folder = make(tmp_path / "toy", Geometry(n_routed_experts=384), seed=3)

`Geometry` says the sizes and roles, `make` writes the folder, `poke` damages it afterwards. Values are scaled so that
logits have a standard deviation near 4 and every part of the model moves them.
"""

from tests.maker.geometry import NO_TOWER, Geometry, Tower
from tests.maker.inventory import Weight
from tests.maker.write import Place, fill_rows, find, has_sparse_files, make, poke

__all__ = [
    "NO_TOWER",
    "Geometry",
    "Place",
    "Tower",
    "Weight",
    "fill_rows",
    "find",
    "has_sparse_files",
    "make",
    "poke",
]
