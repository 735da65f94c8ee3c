"""`artesian verify`: the engine against golden results, number by number, with the worst difference of each kind."""

import sys
import time
from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import Parameter

from app.exits import ExitCode
from app.paths import as_named
from app.progress import CountProgress, ProgressLine
from app.report import envelope, table


def run(
    model: Annotated[str, Parameter(help="The model's folder.")],
    /,
    *,
    golden: Annotated[str, Parameter(help="Folder with golden.json and the recorded tensors.")],
    numerics: Annotated[
        Literal["exact", "reference"],
        Parameter(help="Float32 activations, or the vendor's roundings (judged statistically)."),
    ] = "exact",
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Compare the engine with golden results, feeding the recorded tokens. The exit code is 1 on disagreement."""
    # Here and not at the top: it brings torch, a second that `verify --help` need not wait.
    from engine.golden import compare

    started = time.monotonic()
    progress = ProgressLine(sys.stderr)

    def show(done: int, total: int) -> None:
        elapsed_s = time.monotonic() - started
        progress.show(CountProgress(what="comparing", unit="positions", done=done, total=total, elapsed_s=elapsed_s))

    try:
        report = compare(as_named(model), as_named(golden), numerics=numerics, on_progress=show)
    finally:
        progress.clear()
    if as_json:
        print(envelope("verify", {"numerics": numerics, **asdict(report)}))
    else:
        rows = [("kind", "rows", "differ", "worst", "limit", "")]
        for kind in report.kinds:
            counts = (f"{kind.rows:,}", f"{kind.mismatches:,}")
            verdict = "agrees" if kind.agrees else "DISAGREES"
            rows.append((kind.kind, *counts, _number(kind.worst), _number(kind.limit), verdict))
        print(table(rows, right=(1, 2, 3, 4)))
        print(f"\n{numerics}: {'everything agrees' if report.agrees else 'engine and golden results disagree'}")
    return ExitCode.DONE if report.agrees else ExitCode.FAILED


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
