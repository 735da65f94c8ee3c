"""Checks on who owns what in compressed attention: three lists decide, and a ratio above 0 decides nothing."""

from collections import Counter
from collections.abc import Iterator

from engine.audit.check import Check, demands, exactly
from engine.audit.records import Fault, Finding, Waiting
from engine.audit.view import View

_LATENTS = frozenset({"attn.compressor.wkv.weight", "attn.compressor.norm.weight"})
_GATES = frozenset({"attn.compressor.wgate.weight"})
_KEYS = frozenset({"attn.indexer.wk.weight", "attn.indexer.k_norm.weight"})
_QUERIES = frozenset({"attn.indexer.wq_b.weight", "attn.indexer.wq_b.scale", "attn.indexer.weights_proj.weight"})

_MARKS = ("attn.indexer.wk.weight", "attn.indexer.wq_b.weight")
"""Own index keys make a layer full; own index queries alone make it reindex; neither, reuse."""


def _kinds(view: View) -> Iterator[Finding]:
    config, _ = demands(view)
    for layer in range(config.n_layers):
        expected = config.kind(layer)
        wanted = (expected == "full", expected in ("full", "reindex"))
        names = [f"layers.{layer}.{mark}" for mark in _MARKS]
        absences = [view.absence(name) for name in names]
        unseen = [absence is not None and not absence.promised and not absence.decided for absence in absences]
        there = [absence is None or absence.promised for absence in absences]
        for name, is_unseen, is_there, want in zip(names, unseen, there, wanted, strict=True):
            if is_unseen and want:
                yield from (Waiting(what=shard) for shard in view.open_shards)
            elif is_there != want:
                kind = "full" if there[0] else "reindex" if there[1] else "reuse"
                yield Fault(
                    message=f"layer {layer} has the index tensors of a {kind} layer, the config makes it {expected}",
                    tensor=name,
                    found=kind,
                    expected=expected,
                    values={"layer": layer},
                )
                break


def _counts(view: View) -> Iterator[Finding]:
    config, tensors = demands(view)
    wanted = Counter(tensor.layer for tensor in tensors.values())
    found = Counter(tensor.layer for name, tensor in tensors.items() if name in view.names)
    found.update(place.number for place in view.extras.values() if place is not None and not place.stage)
    may_hold_more = view.inventory.index is None and view.open_shards
    for layer in range(config.n_layers):
        if found[layer] < wanted[layer] and may_hold_more:
            yield from (Waiting(what=shard) for shard in view.open_shards)
        elif found[layer] != wanted[layer]:
            yield Fault(
                message=f"layer {layer} has {found[layer]:,} tensors, its kind has {wanted[layer]:,}",
                found=found[layer],
                expected=wanted[layer],
                values={"layer": layer},
            )


CHECKS = (
    Check(
        name="attention.latents",
        title="compressor projection and norm exactly on the KV sources",
        judge=lambda view: exactly(view, _LATENTS),
    ),
    Check(
        name="attention.gates",
        title="compressor gate exactly on the KV sources that pool",
        judge=lambda view: exactly(view, _GATES),
    ),
    Check(
        name="attention.index-keys",
        title="index keys exactly on the KV sources",
        judge=lambda view: exactly(view, _KEYS),
    ),
    Check(
        name="attention.index-queries",
        title="index queries exactly on the index sources",
        judge=lambda view: exactly(view, _QUERIES),
    ),
    Check(name="attention.kinds", title="full, reindex and reuse layers are the config's", judge=_kinds),
    Check(name="attention.counts", title="each layer has as many tensors as its kind", judge=_counts),
)
