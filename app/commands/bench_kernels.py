"""`artesian bench kernels`: how fast weights are consumed as they are stored, against memory and the torch path."""

import time
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.report import envelope, format_bytes, table
from app.stopping import StopKey

if TYPE_CHECKING:
    from engine.kernels.bench import KernelBench

DEFAULT_SECONDS = 30.0
_LEAST_ROUNDS = 3


def run(
    *,
    seconds: Annotated[float, Parameter(help="How long to measure; three rounds at least.")] = DEFAULT_SECONDS,
    threads: Annotated[int | None, Parameter(help="Threads to use. [default: as many as torch would]")] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Measure how fast the kernels consume stored weights.

    Weights of released shapes, cold, by rows of activations; the native and the torch path in turn; beside what memory
    and the processor gave in the same rounds. Medians. Ctrl+C ends it with the rounds that are complete.

    Raises: UsageError; KernelError when there are no native kernels to measure.
    """
    if not 0 <= seconds <= 86_400:
        raise UsageError(f"--seconds must be from 0 to 86400, not {seconds:g}")
    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"--threads must be from 1 to 1024, not {threads}")
    # Here and not at the top: they bring torch, a second that `bench --help` need not wait.
    import torch

    from engine import kernels
    from engine.errors import KernelError
    from engine.kernels.bench import KernelBench

    native = kernels.native()
    if native is None:
        raise KernelError(
            "there are no native kernels to measure",
            hint=f"They were not built, or {kernels.VARIABLE} is torch. `artesian doctor` tells.",
        )
    n_threads = torch.get_num_threads() if threads is None else threads
    kernels.set_threads(n_threads)
    torch.set_num_threads(n_threads)  # of the torch path that is measured beside the native one
    bench = KernelBench(native)
    started = time.monotonic()
    with StopKey() as stop:
        n_rounds = 0
        while not stop.pressed() and (n_rounds < _LEAST_ROUNDS or time.monotonic() - started < seconds):
            bench.round()
            n_rounds += 1
    data = report(bench, native.instruction_set, n_threads, n_rounds)
    print(envelope("bench-kernels", data) if as_json else render(data))
    return ExitCode.STOPPED if stop.pressed() else ExitCode.DONE


def report(bench: "KernelBench", instruction_set: str, n_threads: int, n_rounds: int) -> dict[str, Any]:
    """Everything that was measured, with units in the key names; ratios are of medians of the same rounds."""
    read, made = median(bench.floors.read_bytes_s), median(bench.floors.multiply_adds_s)
    results = []
    by_torch = {(arm.shape.name, arm.rows): median(arm.seconds) for arm in bench.arms if arm.path == "torch"}
    for arm in bench.arms:
        seconds = median(arm.seconds)
        results.append(
            {
                "kernel": arm.shape.name,
                "shape": [arm.shape.n, arm.shape.k],
                "rows": arm.rows,
                "path": arm.path,
                "stored_bytes": arm.shape.stored_bytes,
                "median_s": seconds,
                "rate_bytes_s": arm.rate_bytes_s,
                "of_memory": arm.rate_bytes_s / read,
                "of_multiply_adds": arm.multiply_adds_s / made,
                "of_torch": by_torch[arm.shape.name, arm.rows] / seconds,
            }
        )
    return {
        "instruction_set": instruction_set,
        "n_threads": n_threads,
        "n_rounds": n_rounds,
        "memory_read_bytes_s": read,
        "multiply_adds_s": made,
        "results": results,
    }


def render(data: dict[str, Any]) -> str:
    """The report for people: a line for each kernel and number of rows."""
    head = (
        f"{data['instruction_set']}, {data['n_threads']} threads, {data['n_rounds']} rounds: memory gives"
        f" {format_bytes(data['memory_read_bytes_s'])}/s,"
        f" the processor {data['multiply_adds_s'] / 1e9:.0f} billion multiply-adds/s\n\n"
    )
    rows = [("kernel", "rows", "time", "weights", "of memory", "of arithmetic", "torch", "faster")]
    pairs = zip(data["results"][::2], data["results"][1::2], strict=True)
    for native, by_torch in pairs:
        rows.append(
            (
                native["kernel"],
                str(native["rows"]),
                f"{native['median_s'] * 1e3:.2f} ms",
                f"{format_bytes(native['rate_bytes_s'])}/s",
                f"{native['of_memory']:.0%}",
                f"{native['of_multiply_adds']:.0%}",
                f"{format_bytes(by_torch['rate_bytes_s'])}/s",
                f"{native['of_torch']:.1f}x",
            )
        )
    return head + table(rows, right=(1, 2, 3, 4, 5, 6, 7))
