"""Checks on the inventory, the packing and the experts: what there is, in which shape, stored as what."""

from collections import defaultdict
from collections.abc import Iterator

from engine.audit.check import Check, demands, having
from engine.audit.records import Fault, Finding, Waiting
from engine.audit.view import View
from engine.inventory import ExpectedTensor, Group, Tensors, scale_shape
from storage.errors import ExtentMismatch, GapInData, OverlappingTensors, UnknownDtype
from storage.headers import TensorEntry

PACKING_FAULTS = (ExtentMismatch, OverlappingTensors, GapInData, UnknownDtype)
"""What storage finds wrong between a header's entries; the rest of its faults are about the header itself."""

_OTHER_BLOCKS = ((128, 128), (64, 64), (16, 16), (1, 32), (1, 128), (256, 256))
"""Blocks other models use; a scale that fits one of them is of another format, not of a wrong shape."""

_GATE = "ffn.gate."
_OWN_SHAPE_CHECK = ("engram.", "ffn.experts.", _GATE, "markov_head.", "confidence_head.", "main_proj.")


def _is_dense_fp8(tensor: ExpectedTensor) -> bool:
    return tensor.dtype == "F8_E4M3" and tensor.role != "engram.embed.weight"


def _fits(entry: TensorEntry, tensor: ExpectedTensor) -> bool:
    return entry.dtype == tensor.dtype and entry.shape == tensor.shape


# Inventory


def _layer_sets(view: View) -> Iterator[Finding]:
    config, tensors = demands(view)
    yield from view.demand(name for name, tensor in tensors.items() if tensor.layer is not None)
    for name, place in view.extras.items():
        if place is not None and not place.stage and place.number < config.n_layers:
            yield view.unexpected(name)


def _shapes(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    for name, tensor in tensors.items():
        in_block = tensor.layer is not None or tensor.stage is not None
        if in_block and not tensor.role.startswith(_OWN_SHAPE_CHECK) and not name.endswith(".scale"):
            yield from view.shape(name, tensor.shape)


def _plain(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    for name, tensor in tensors.items():
        if tensor.dtype in ("BF16", "F32"):
            yield from view.dtype(name, tensor.dtype)


def _totals(view: View) -> Iterator[Finding]:
    index = view.inventory.index
    listed = [r for r in view.records() if r.header is not None and (r.listed or index is None)]
    entries = [entry for r in listed if r.header is not None for entry in r.header.tensors.values()]
    total = sum(entry.extent.length for entry in entries)
    if total == 0:
        yield Fault(message=f"the headers show {len(entries)} tensors of {total} bytes", found=total)
        return
    if index is None or index.total_bytes is None:
        return
    if total > index.total_bytes or (total < index.total_bytes and not view.open_shards):
        yield Fault(
            message=f"the headers show {total:,} bytes of tensors, the index states {index.total_bytes:,}",
            shard=index.path.name,
            found=total,
            expected=index.total_bytes,
        )
    yield from (Waiting(what=shard) for shard in view.open_shards)


def _ends(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    names = [name for name, tensor in tensors.items() if tensor.group is Group.EMBEDDING]
    yield from view.demand(names)
    for name in names:
        yield from view.shape(name, tensors[name].shape)


def _known(view: View) -> Iterator[Finding]:
    config, _ = demands(view)
    for name, place in view.extras.items():
        if name.startswith(("vision.", "aligner.", "image_")):
            continue
        if place is None or place.number >= (config.n_mtp_layers if place.stage else config.n_layers):
            yield view.unexpected(name)


# Packing


def _extents(view: View) -> Iterator[Finding]:
    for record in view.records():
        for fault in record.faults:
            if isinstance(fault, PACKING_FAULTS):
                yield Fault(
                    message=str(fault),
                    tensor=fault.tensor,
                    shard=fault.shard,
                    found=fault.found,
                    expected=fault.expected,
                    hint=fault.hint,
                )
        if record.header is None:
            yield Waiting(what=record.shard)


def _scales(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    for name, tensor in tensors.items():
        if tensor.dtype != "F8_E8M0":
            continue
        weight = name.removesuffix("scale") + "weight"
        entry = view.entries.get(name)
        if tensor.expert is not None and weight in view.entries and entry is not None and _fits(entry, tensor):
            continue  # nearly all scales of a model: what follows would look at each five times
        yield from view.demand([name, weight])
        yield from view.dtype(name, "F8_E8M0")
        yield from _scale_shape(view, tensors, weight, name)
    for name in view.extras:
        stem, _, last = name.rpartition(".")
        entry = view.entries.get(name)
        if last == "scale" and f"{stem}.weight" not in view.names:
            yield _unpaired(name, entry, f"{stem}.weight")
        if entry is not None and entry.dtype.startswith("F8_E4M3") and f"{stem}.scale" not in view.names:
            yield _unpaired(name, entry, f"{stem}.scale")


def _scale_shape(view: View, tensors: Tensors, weight: str, scale: str) -> Iterator[Finding]:
    """The scale's shape against its weight's: by the config, or as stored where the config does not settle it."""
    shape, entry = tensors[weight].shape, view.entries.get(weight)
    if tensors[weight].group is Group.ENGRAM:
        if entry is None or len(entry.shape) != 2:
            return
        shape = entry.shape
    if tensors[weight].dtype == "I8":
        yield from view.shape(scale, scale_shape((shape[0], 2 * shape[1]), (1, 32)))
    elif not _is_dense_fp8(tensors[weight]):
        yield from view.shape(scale, scale_shape(shape, (1, 32)))
    else:
        blocks = ((view.fp8_block, view.fp8_block), (32, 32), *_OTHER_BLOCKS)
        yield from view.shape(scale, *dict.fromkeys(scale_shape(shape, block) for block in blocks))


def _unpaired(name: str, entry: TensorEntry | None, partner: str) -> Fault:
    return Fault(
        message=f"{name} has no {partner}",
        tensor=name,
        shard=entry.extent.shard if entry else None,
        found="absent",
        expected=partner,
    )


def _dense_blocks(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    expected = (view.fp8_block, view.fp8_block)
    for name, tensor in tensors.items():
        if not _is_dense_fp8(tensor):
            continue
        yield from view.dtype(name, "F8_E4M3")
        scale = name.removesuffix("weight") + "scale"
        weight_entry, scale_entry = view.entries.get(name), view.entries.get(scale)
        if weight_entry is None or scale_entry is None or len(weight_entry.shape) != 2:
            absence = view.absence(scale)
            yield from view.waiting(absence) if absence is not None else ()
            continue
        shape = weight_entry.shape if tensor.group is Group.ENGRAM else tensor.shape
        if scale_entry.shape == scale_shape(shape, expected):
            continue
        for block in ((32, 32), *_OTHER_BLOCKS):
            if scale_entry.shape == scale_shape(shape, block):
                yield Fault(
                    message=f"{name} has one scale per {block[0]}x{block[1]} block, "
                    f"{expected[0]}x{expected[1]} is expected",
                    tensor=scale,
                    shard=scale_entry.extent.shard,
                    found=block,
                    expected=expected,
                )
                break


# Experts


def _experts_packed(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    for name, tensor in tensors.items():
        if tensor.group is not Group.EXPERTS:
            continue
        entry = view.entries.get(name)
        if entry is None or not _fits(entry, tensor):
            yield from view.dtype(name, tensor.dtype)
            yield from view.shape(name, tensor.shape)


def expert_counts(view: View, *, stage: bool) -> Iterator[Finding]:
    """A fault for each layer (or draft stage) that lacks experts, or tensors of one, or has some too many."""
    config, tensors = demands(view)
    wanted = config.dspark_n_routed_experts if stage else config.n_routed_experts
    lacking: dict[int, dict[int, Fault]] = defaultdict(dict)
    for finding in view.demand(having(view, lambda role: role.startswith("ffn.experts."), stage=stage)):
        if isinstance(finding, Fault) and finding.tensor is not None:
            tensor = tensors[finding.tensor]
            number = tensor.stage if stage else tensor.layer
            assert number is not None and tensor.expert is not None
            lacking[number].setdefault(tensor.expert, finding)
        else:
            yield finding
    kind = "draft stage" if stage else "layer"
    for number, faults in sorted(lacking.items()):
        first = next(iter(faults.values()))
        yield Fault(
            message=f"{kind} {number} has {wanted - len(faults):,} whole routed experts of {wanted:,}: {first.message}",
            tensor=first.tensor,
            shard=first.shard,
            found=wanted - len(faults),
            expected=wanted,
            values={kind.replace(" ", "_"): number},
        )
    for name, place in view.extras.items():
        if place is not None and place.stage == stage and place.expert is not None and place.expert >= wanted:
            yield view.unexpected(name)


def _routers(view: View) -> Iterator[Finding]:
    _, tensors = demands(view)
    for stage in (False, True):
        for name in having(view, lambda role: role.startswith(_GATE), stage=stage):
            yield from view.demand([name])
            yield from view.shape(name, tensors[name].shape)


CHECKS = (
    Check(
        name="inventory.layers", title="every backbone layer has the tensors of its kind, no more", judge=_layer_sets
    ),
    Check(
        name="inventory.shapes",
        title="attention, shared experts, norms and mixes have the config's shapes",
        judge=_shapes,
    ),
    Check(name="inventory.plain", title="unquantised tensors are BF16 or F32 as specified", judge=_plain),
    Check(name="inventory.totals", title="tensors and bytes add up to the index's total", judge=_totals, derived=False),
    Check(name="inventory.ends", title="embedding, head and final norm are there, in shape", judge=_ends),
    Check(name="inventory.known", title="no tensor is of a layer or kind the config does not have", judge=_known),
    Check(name="packing.extents", title="extents match shapes, without overlap or gap", judge=_extents, derived=False),
    Check(
        name="packing.scales",
        title="every quantised weight has a scale of its shape, every scale a weight",
        judge=_scales,
    ),
    Check(name="packing.fp8-blocks", title="dense fp8 weights have one scale per block", judge=_dense_blocks),
    Check(
        name="experts.packed",
        title="routed experts are packed fp4 with one scale per 32 columns",
        judge=_experts_packed,
    ),
    Check(
        name="experts.backbone",
        title="every backbone layer has all its routed experts",
        judge=lambda view: expert_counts(view, stage=False),
    ),
    Check(
        name="experts.draft",
        title="every draft stage has all its routed experts",
        judge=lambda view: expert_counts(view, stage=True),
    ),
    Check(name="experts.routers", title="every router has its weight and both biases, in shape", judge=_routers),
)
