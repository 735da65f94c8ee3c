"""Checks on the n-gram tables.

The one thing a reader would get wrong: a wrong `engram_n_heads` must not be blamed on the projection. Its width is a
whole number of heads; how many there are is the row counts' business when those do not come out.
"""

from collections.abc import Iterator

from engine.audit.check import Check, demands, exactly
from engine.audit.records import Fault, Finding, Waiting
from engine.audit.view import View
from engine.inventory import FP4_COLUMNS, scale_shape

_TABLE = frozenset({"engram.embed.weight", "engram.embed.scale"})
_PROJECTION = frozenset({"engram.wkv.weight", "engram.wkv.scale", "engram.q_weight", "engram.k_weight"})


def _tables(view: View) -> Iterator[Finding]:
    yield from exactly(view, _TABLE)


def _projections(view: View) -> Iterator[Finding]:
    config, tensors = demands(view)
    yield from exactly(view, _PROJECTION)
    derived = view.derived_tables
    heads_in_doubt = derived is not None and tuple(t.rows for t in derived) != config.engram_num_embeddings
    for layer in config.engram_layer_ids:
        for vector in ("q_weight", "k_weight"):
            name = f"layers.{layer}.engram.{vector}"
            yield from view.shape(name, tensors[name].shape)
        name = f"layers.{layer}.engram.wkv.weight"
        rows, columns = tensors[name].shape
        entry = view.entries.get(name)
        if heads_in_doubt and entry is not None and len(entry.shape) == 2:
            head_columns = (config.engram_max_ngram_size - 1) * config.engram_head_dim
            columns = max(entry.shape[1] // head_columns, 1) * head_columns
        yield from view.shape(name, (rows, columns))


def _rows(view: View, *, too_few: bool) -> Iterator[Finding]:
    """Faults of tables whose declared or stored rows are below (or above) the sum of the moduli."""
    config, _ = demands(view)
    tables = view.derived_tables
    if tables is None:
        yield Waiting(what="a config the tables can be derived from")
        return
    derived = tuple(table.rows for table in tables)
    declared = config.engram_num_embeddings
    word = "fewer" if too_few else "more"

    def wrong(rows: int, needed: int) -> bool:
        return rows < needed if too_few else rows > needed

    if any(wrong(*pair) for pair in zip(declared, derived, strict=True)):
        yield Fault(
            message=f"declared {list(declared)} rows, {word} than derived {list(derived)}",
            found=declared,
            expected=derived,
            values={
                "engram_num_embeddings": declared,
                "engram_vocab_size": config.engram_vocab_size,
                "engram_max_ngram_size": config.engram_max_ngram_size,
                "engram_n_heads": config.engram_n_heads,
            },
        )
    for table in tables:
        name = f"layers.{table.layer}.engram.embed.weight"
        entry = view.entries.get(name)
        if entry is None:
            absence = view.absence(name)
            assert absence is not None
            yield from view.waiting(absence)
        elif entry.shape and wrong(entry.shape[0], table.rows):
            yield Fault(
                message=f"{name} has {entry.shape[0]:,} rows, {word} than derived {table.rows:,}",
                tensor=name,
                shard=entry.extent.shard,
                found=entry.shape[0],
                expected=table.rows,
            )


def _storage(view: View) -> Iterator[Finding]:
    config, tensors = demands(view)
    width = config.engram_head_dim
    for layer in config.engram_layer_ids:
        weight, scale = (f"layers.{layer}.engram.embed.{part}" for part in ("weight", "scale"))
        entry = view.entries.get(weight)
        declared = tensors[weight].shape[0]
        rows = entry.shape[0] if entry is not None and entry.shape else declared  # how many is for the row counts
        yield from view.dtype(weight, "F8_E4M3")
        yield from view.shape(weight, (rows, width))
        yield from view.dtype(scale, "F8_E8M0")
        yield from view.shape(scale, scale_shape((rows, width), (1, FP4_COLUMNS)))


CHECKS = (
    Check(name="engram.tables", title="tables exactly on the engram layers", judge=_tables),
    Check(name="engram.projections", title="each table has its projection and its gate weights", judge=_projections),
    Check(
        name="engram.rows-enough",
        title="tables have at least the rows their moduli add up to",
        judge=lambda view: _rows(view, too_few=True),
    ),
    Check(
        name="engram.rows-exact",
        title="tables have no more rows than their moduli add up to",
        judge=lambda view: _rows(view, too_few=False),
    ),
    Check(name="engram.storage", title="rows are fp8 with one scale per 32 values of a row", judge=_storage),
)
