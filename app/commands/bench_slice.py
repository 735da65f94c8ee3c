"""`artesian bench slice`: a synthetic checkpoint of released widths, to measure a machine without the 510 GB."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.paths import demo_folder
from app.progress import ProgressLine, WorkProgress
from app.report import envelope, format_bytes, format_rate, format_seconds, table
from app.sanitize import one_line
from app.sizes import parse_bytes
from app.slices.geometry import RELEASED, RELEASED_LAYERS, RELEASED_STAGES, slice_config
from app.slices.tokenizer import filled_tokenizer
from app.slices.write import SliceShard, slice_shards, write_slice
from engine.config import ModelConfig
from engine.inventory import Group

DEFAULT_LAYERS = 4


def run(
    out: Annotated[Path, Parameter(name="OUT", help="Folder to make; nothing is overwritten.")],
    /,
    *,
    layers: Annotated[int | None, Parameter(help=f"Backbone layers. [default: {DEFAULT_LAYERS}]")] = None,
    experts: Annotated[int, Parameter(help="Routed experts of a layer, 18.8 MB each.")] = RELEASED["n_routed_experts"],
    draft_stages: Annotated[int, Parameter(help="Stages of the draft head, up to 3; 2.6 GB each.")] = 0,
    size: Annotated[str | None, Parameter(help="As many layers as fit in this, instead of --layers: 20GB.")] = None,
    seed: Annotated[int, Parameter(help="Same seed, same bytes.")] = 0,
    json_output: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Make a synthetic checkpoint of released widths.

    Few layers, all experts, random finite weights, and engram tables with the released number of rows as sparse files.
    It answers nonsense at the speed a real one would. Progress goes to stderr.

    Raises: UsageError, SpaceError, SparseFileError before anything is written; OSError from the drive.
    """
    if layers is not None and size is not None:
        raise UsageError("--layers and --size cannot be used together")
    n_layers = DEFAULT_LAYERS if layers is None else layers
    for option, value, least, most in (
        ("--layers", n_layers, 1, RELEASED_LAYERS),
        ("--experts", experts, 1, RELEASED["n_routed_experts"]),
        ("--draft-stages", draft_stages, 0, RELEASED_STAGES if size else min(RELEASED_STAGES, n_layers)),
        ("--seed", seed, 0, 2**63 - 1),
    ):
        if not least <= value <= most:
            raise UsageError(f"{option} must be from {least} to {most}, not {value}")
    tokenizer, n_classes = filled_tokenizer(demo_folder(), RELEASED["vocab_size"])

    def config(n_layers: int) -> ModelConfig:
        return slice_config(n_layers, n_classes=n_classes, n_experts=experts, n_stages=draft_stages, sizes=RELEASED)

    chosen = config(n_layers) if size is None else _largest(parse_bytes(size, "--size"), config, max(1, draft_stages))
    line = ProgressLine(sys.stderr, columns=shutil.get_terminal_size().columns)
    began = time.monotonic()

    def show(done: int, total: int) -> None:
        elapsed_s = time.monotonic() - began
        line.show(WorkProgress(what="writing", done_bytes=done, total_bytes=total, elapsed_s=elapsed_s))

    try:
        shards = write_slice(out, chosen, tokenizer, seed=seed, on_progress=show)
    finally:
        line.clear()
    data = report(out, chosen, shards, time.monotonic() - began)
    print(envelope("bench-slice", data) if json_output else _lines(data))
    return ExitCode.DONE


def _largest(size_bytes: int, config: Callable[[int], ModelConfig], least: int) -> ModelConfig:
    """The slice with most layers that takes at most `size_bytes`."""
    fitting = None
    needed = 0
    for n_layers in range(least, RELEASED_LAYERS + 1):
        candidate = config(n_layers)
        needed = sum(shard.disk_bytes for shard in slice_shards(candidate))
        if needed > size_bytes:
            break
        fitting = candidate
    if fitting is None:
        raise UsageError(
            f"--size: the smallest such slice takes {format_bytes(needed)}, more than {format_bytes(size_bytes)}",
            hint="Fewer --experts make it smaller.",
        )
    return fitting


def report(folder: Path, config: ModelConfig, shards: Sequence[SliceShard], elapsed_s: float) -> dict[str, Any]:
    """What was made, with units in the key names."""
    experts = [tensor for shard in shards for tensor in shard.tensors.values() if tensor.group is Group.EXPERTS]
    return {
        "folder": str(folder),
        "n_layers": config.n_layers,
        "n_experts_per_layer": config.n_routed_experts,
        "n_draft_stages": config.n_mtp_layers,
        "n_shards": len(shards),
        "n_tensors": sum(len(shard.tensors) for shard in shards),
        "disk_bytes": sum(shard.disk_bytes for shard in shards),
        "apparent_bytes": sum(shard.file_bytes for shard in shards),
        "expert_bytes": sum(math.prod(tensor.shape) for tensor in experts),
        "engram_rows": list(config.engram_num_embeddings),
        "elapsed_s": elapsed_s,
    }


def _lines(data: Mapping[str, Any]) -> str:
    took = f"{format_seconds(data['elapsed_s'])}, {format_rate(data['disk_bytes'], data['elapsed_s'])}"
    rows = [
        ("folder", one_line(data["folder"])),
        ("layers", f"{data['n_layers']}, {data['n_experts_per_layer']} experts each"),
        ("draft stages", str(data["n_draft_stages"])),
        ("files", f"{data['n_shards']} shards, {data['n_tensors']:,} tensors"),
        ("on disk", format_bytes(data["disk_bytes"])),
        ("routed experts", format_bytes(data["expert_bytes"])),
        ("with its holes", f"{format_bytes(data['apparent_bytes'])}: the engram tables are sparse files"),
        ("engram rows", ", ".join(f"{rows:,}" for rows in data["engram_rows"]) or "none"),
        ("took", took),
    ]
    return table(rows)
