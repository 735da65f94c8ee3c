"""`artesian bench io`: how fast this machine's drives give experts and rows, by depth and size of reads."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.progress import ProgressLine, TimedProgress
from app.reading import require_useful
from app.report import envelope, format_bytes, table
from app.sanitize import one_line
from app.stopping import StopKey
from engine.config import load_config
from storage.arena import span_bytes
from storage.batch import DEFAULT_DEPTH
from storage.checkpoint import Checkpoint
from storage.direct import IoPath
from storage.expert_layout import ExpertLayout, expert_layouts
from storage.iobench import (
    RANDOM_BATCH,
    RANDOM_BYTES,
    RANDOM_JUDGE_DEPTH,
    TURN_S,
    Arm,
    ArmResult,
    Measurement,
    Progress,
    arms,
)
from storage.replica_files import ReplicaFiles

DEFAULT_SECONDS = 60.0
_HEAD = ("drive", "reads", "by", "depth", "size", "median", "lowest", "highest", "of sequential", "of best")


def run(
    folder: Annotated[Path, Parameter(name="MODEL", help="The model's folder, or what `artesian bench slice` made.")],
    /,
    *,
    mirror: Annotated[list[Path] | None, Parameter(help="Folder with copies of its shards; may be repeated.")] = None,
    split: Annotated[list[Path] | None, Parameter(help="Folder with more of its shards; may be repeated.")] = None,
    seconds: Annotated[float, Parameter(help="How long to measure; three rounds at least.")] = DEFAULT_SECONDS,
    depth: Annotated[int, Parameter(help="The depth to judge: reads in flight on each drive.")] = DEFAULT_DEPTH,
    json_output: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Measure how fast the drives give experts and rows.

    Whole experts in random order by depth and size of reads, direct and through the page cache, and 4 KB reads, each
    beside a plain sequential read of the same round; every drive alone, and all together. Medians over the rounds.
    Ctrl+C ends it with the rounds that are complete.

    Raises: UsageError; what opening a checkpoint raises; DriveError.
    """
    if not 0 <= seconds <= 86_400:
        raise UsageError(f"--seconds must be from 0 to 86400, not {seconds:g}")
    if not 1 <= depth <= 256:
        raise UsageError(f"--depth must be from 1 to 256, not {depth}")
    require_useful(folder, split or ())
    config = load_config(folder).config
    line = ProgressLine(sys.stderr, columns=shutil.get_terminal_size().columns)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint.open(folder, mirrors=mirror or (), splits=split or ()))
        layers = {layer: (f"layers.{layer}.ffn.experts.", config.n_routed_experts) for layer in range(config.n_layers)}
        layouts = list(expert_layouts(checkpoint.tensors, layers).values())
        shards = sorted({extent.shard for layout in layouts for extent in layout.extents})
        replicas = checkpoint.replicas
        direct = stack.enter_context(ReplicaFiles.open(replicas, shards, "auto"))
        buffered = stack.enter_context(ReplicaFiles.open(replicas, shards, "buffered"))
        drives = sorted({copy.drive for shard in shards for copy in replicas.copies(shard)})
        measurement = Measurement(
            arms(drives, default_depth=depth),
            [layout.extents for layout in layouts],
            direct=direct,
            buffered=buffered,
            drives=replicas.drives,
            block_bytes=direct.block_bytes,
            turn_s=TURN_S,
        )

        def show(progress: Progress) -> None:
            line.show(
                TimedProgress(
                    what="measuring",
                    elapsed_s=progress.elapsed_s,
                    total_s=max(seconds, progress.elapsed_s),
                    read_bytes=progress.read_bytes,
                )
            )

        try:
            with StopKey() as stop:
                results = measurement.run(seconds, on_progress=show, should_stop=stop.pressed)
        finally:
            line.clear()
        data = report(results, layouts, direct.block_bytes, direct.io_paths(), depth)
    print(envelope("bench-io", data) if json_output else render(data))
    return ExitCode.STOPPED if stop.pressed() else ExitCode.DONE


def report(
    results: Sequence[ArmResult],
    layouts: Sequence[ExpertLayout],
    block_bytes: int,
    paths: Mapping[str, Sequence[IoPath]],
    depth: int,
) -> dict[str, Any]:
    """Everything that was measured, with units in the key names."""
    payload = sum(layout.payload_bytes for layout in layouts)
    spans = sum(span_bytes(extent.length, block_bytes) for layout in layouts for extent in layout.extents)
    return {
        "experts": {
            "n": len(layouts),
            "payload_bytes": payload / len(layouts),
            "most_read_bytes": spans / len(layouts),
            "extents": sum(len(layout.extents) for layout in layouts) / len(layouts),
        },
        "default_depth": depth,
        "block_bytes": block_bytes,
        "drives": {drive: [_path(path) for path in some] for drive, some in paths.items()},
        "n_rounds": len(results[0].rates_bytes_s) if results else 0,
        "results": [_result(result, depth) for result in results],
    }


def _path(path: IoPath) -> dict[str, Any]:
    return {
        "file": str(path.file),
        "direct": path.direct,
        "block_bytes": path.block_bytes,
        "file_system": path.file_system,
        "reason": path.reason,
    }


def _result(result: ArmResult, depth: int) -> dict[str, Any]:
    arm = result.arm
    return {
        "drive": arm.drive or "all",
        "pattern": {"item": "experts"}.get(arm.pattern, arm.pattern),
        "direct": arm.direct,
        "depth": arm.depth,
        "read_bytes": arm.piece_bytes,
        "is_default": _is_default(arm, depth),
        "rate_bytes_s": result.rate_bytes_s,
        "rates_bytes_s": list(result.rates_bytes_s),
        "of_sequential": result.of_sequential,
        "of_best": result.of_best,
        "of_random": result.of_random,
    }


def _is_default(arm: Arm, depth: int) -> bool:
    return arm.pattern == "item" and arm.direct and arm.depth == depth and arm.piece_bytes is None


def render(data: Mapping[str, Any]) -> str:
    """The report for people."""
    if not data["results"]:
        return "stopped before the first round was complete"
    experts = data["experts"]
    blocks = [
        f"{experts['n']:,} experts of {format_bytes(experts['payload_bytes'])} in {experts['extents']:.3g} reads each, "
        f"at most {format_bytes(experts['most_read_bytes'] - experts['payload_bytes'])} more for whole blocks"
    ]
    for drive, paths in data["drives"].items():
        ways = dict.fromkeys(_way(path) for path in paths)
        blocks += [f"{one_line(drive)}: {'; '.join(ways)}"]
    rows: list[tuple[str, ...]] = [_HEAD, *(_row(result) for result in data["results"])]
    blocks += ["", table(rows, right=(3, 5, 6, 7, 8, 9)), ""]
    blocks += [_verdict(result) for result in data["results"] if result["is_default"]]
    blocks += [_rows_verdict(result) for result in data["results"] if result["of_random"] is not None]
    blocks += [f"{data['n_rounds']} rounds; rates are medians, ratios are medians of the ratio within a round"]
    return "\n".join(blocks)


def _way(path: Mapping[str, Any]) -> str:
    where = f" on {path['file_system']}" if path["file_system"] else ""
    if path["direct"]:
        return f"direct reads{where}, blocks of {path['block_bytes']:,} bytes"
    return f"through the page cache{where}: {path['reason']}"


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    size = "whole" if result["read_bytes"] is None else format_bytes(result["read_bytes"])
    rates = result["rates_bytes_s"]
    return (
        one_line(result["drive"]),
        result["pattern"],
        "direct" if result["direct"] else "cache",
        str(result["depth"]) + ("*" if result["is_default"] else ""),
        size,
        _rate(result, result["rate_bytes_s"]),
        _rate(result, min(rates)),
        _rate(result, max(rates)),
        _share(result["of_sequential"]),
        _share(result["of_best"]),
    )


def _rate(result: Mapping[str, Any], rate_bytes_s: float) -> str:
    if result["pattern"] in ("random", "rows"):
        return f"{rate_bytes_s / result['read_bytes']:,.0f}/s"
    return f"{format_bytes(rate_bytes_s)}/s"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.0f}%"


def _rows_verdict(result: Mapping[str, Any]) -> str:
    token_s = RANDOM_BATCH * RANDOM_BYTES / result["rate_bytes_s"]
    judge = f"{RANDOM_BATCH} reads of {format_bytes(RANDOM_BYTES)} at depth {RANDOM_JUDGE_DEPTH}"
    times = 1 / result["of_random"]
    return f"engram rows of a token, {RANDOM_BATCH} reads: {1000 * token_s:.1f} ms cold, {times:.2f} times {judge}"


def _verdict(result: Mapping[str, Any]) -> str:
    drive = "" if result["drive"] == "all" else f" on {one_line(result['drive'])}"
    return (
        f"* experts at depth {result['depth']}{drive}: {format_bytes(result['rate_bytes_s'])}/s, "
        f"{_share(result['of_best'])} of the best depth and size, {_share(result['of_sequential'])} of sequential"
    )
