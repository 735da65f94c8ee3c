"""`artesian bench cache`: which replacement policy reads the fewest experts, by replaying a trace over all of them."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import exp, log
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.report import envelope, table
from app.sanitize import one_line
from storage.policy import DEFAULT_POLICY, POLICIES
from storage.replay import ReplayResult, Tally, fewest_misses, replay
from storage.synthetic import synthetic_requests
from storage.trace import Request, TraceReader

SYNTHETIC_LAYERS = 4
SYNTHETIC_EXPERTS = 384
DEFAULT_SPARE_SLOTS = 16
MOST_REQUESTS = 1_000_000
"""Held in memory, some 300 bytes each: half a gigabyte takes 20,000 tokens of the released model, all layers
together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score:
    """One policy over all sizes."""

    policy: str
    results: tuple[ReplayResult, ...]
    """One for each size."""
    ratio: float
    """Its decode misses as a multiple of the fewest that any policy had, geometric mean over the sizes."""


def run(
    *,
    trace: Annotated[Path | None, Parameter(help="Recorded requests.")] = None,
    synthetic: Annotated[int | None, Parameter(help="Make a trace up, from this seed.")] = None,
    slots: Annotated[
        tuple[int, ...] | None,
        Parameter(
            consume_multiple=True,
            help="Slots a layer to try. [default: 1/64 to 1/2 of the experts of the largest layer]",
        ),
    ] = None,
    spare_slots: Annotated[
        int, Parameter(help="Slots lent to all layers together while a prompt is read.")
    ] = DEFAULT_SPARE_SLOTS,
    most_requests: Annotated[int, Parameter(help="Replay at most this many requests.")] = MOST_REQUESTS,
    as_json: Annotated[bool, Parameter(name="--json", help="Print the figures as JSON.")] = False,
) -> ExitCode:
    """Replay recorded requests for experts over every policy and several sizes, and name the best.

    Raises: UsageError; TraceError when the file is not a trace.
    """
    if (trace is None) == (synthetic is None):
        raise UsageError("Give either --trace FILE or --synthetic SEED")
    if slots is not None and (not slots or min(slots) < 1):
        raise UsageError("--slots must be at least 1")
    if spare_slots < 0 or most_requests < 1:
        raise UsageError("--spare-slots must be at least 0 and --most-requests at least 1")
    if trace is not None:
        reader = TraceReader(trace)
        name, n_experts, all_requests = one_line(str(trace)), reader.n_experts, iter(reader)
    else:
        name, n_experts = f"made up, seed {synthetic}", dict.fromkeys(range(SYNTHETIC_LAYERS), SYNTHETIC_EXPERTS)
        all_requests = synthetic_requests(synthetic or 0, n_layers=SYNTHETIC_LAYERS, n_experts=SYNTHETIC_EXPERTS)
    requests = list(islice(all_requests, most_requests))
    if not any(request.phase == "decode" for request in requests):
        raise UsageError(f"{name}: no decode request to judge a policy by", hint="Record a run that writes an answer.")
    if next(all_requests, None) is not None:
        print(f"artesian: only the first {most_requests:,} requests are replayed", file=sys.stderr)
    sizes = slots or _default_sizes(max(n_experts.values()))
    scores, best_possible = _judge(requests, n_experts, sizes, spare_slots)
    if as_json:
        print(envelope("bench_cache", _as_json(name, n_experts, spare_slots, scores, best_possible)))
    else:
        print("\n".join(_lines(name, n_experts, sizes, scores, best_possible)))
    return ExitCode.DONE


def _default_sizes(n_experts: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, n_experts // part) for part in (64, 32, 16, 8, 4, 2)}))


def _judge(
    requests: Sequence[Request], n_experts: Mapping[int, int], sizes: Sequence[int], spare_slots: int
) -> tuple[list[_Score], list[Tally]]:
    """Every policy at every size, best policy first, and what no policy can beat."""
    results: dict[str, list[ReplayResult]] = {policy: [] for policy in POLICIES}
    possible = []
    for i, size in enumerate(sizes):
        possible.append(fewest_misses(requests, n_experts, slots_per_layer=size))
        for j, policy in enumerate(POLICIES):
            _progress(f"replaying {i * len(POLICIES) + j + 1} of {len(sizes) * len(POLICIES)}: {policy}, {size} slots")
            results[policy].append(
                replay(requests, n_experts, policy=policy, slots_per_layer=size, spare_slots=spare_slots)
            )
    _progress("")
    fewest = [min(results[policy][i].decode.n_misses for policy in POLICIES) for i in range(len(sizes))]
    scores = []
    for policy, of_policy in results.items():
        # One is added so that a size at which nothing is missed does not divide by nothing.
        ratios = [(r.decode.n_misses + 1) / (least + 1) for r, least in zip(of_policy, fewest, strict=True)]
        mean = exp(sum(map(log, ratios)) / len(ratios))
        scores.append(_Score(policy=policy, results=tuple(of_policy), ratio=mean))
    return sorted(scores, key=lambda score: score.ratio), possible


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r" + text.ljust(60) + ("" if text else "\r"))
        sys.stderr.flush()


def _lines(
    name: str, n_experts: Mapping[int, int], sizes: Sequence[int], scores: Sequence[_Score], possible: Sequence[Tally]
) -> Iterable[str]:
    first = scores[0].results[0]
    asked = first.decode.n_requests / first.decode.n_steps
    yield f"trace     {name}"
    yield f"layers    {len(n_experts)} of up to {max(n_experts.values())} experts"
    yield f"steps     {first.decode.n_steps:,} decode, {first.prefill.n_steps:,} prefill"
    yield ""
    yield f"Experts read per decode step, of {asked:,.1f} asked for (share found in memory), by slots a layer:"
    rows = [("policy", *(str(size) for size in sizes), "to the best")]
    for score in scores:
        cells = [_cell(result.decode) for result in score.results]
        rows.append((score.policy, *cells, f"x {score.ratio:.3f}"))
    rows.append(("future known, none lent", *(_cell(tally) for tally in possible), ""))
    yield table(rows, right=range(1, len(sizes) + 2))
    yield ""
    best = scores[0].policy
    yield f"Best here: {best}" + (", the default." if best == DEFAULT_POLICY else f"; the default is {DEFAULT_POLICY}.")


def _cell(tally: Tally) -> str:
    return f"{tally.misses_per_step:.2f} ({100 * tally.hit_rate:.1f}%)"


def _as_json(
    name: str,
    n_experts: Mapping[int, int],
    spare_slots: int,
    scores: Sequence[_Score],
    possible: Sequence[Tally],
) -> dict[str, Any]:
    return {
        "trace": name,
        "n_experts_by_layer": {str(layer): n for layer, n in n_experts.items()},
        "spare_slots": spare_slots,
        "best": scores[0].policy,
        "default": DEFAULT_POLICY,
        "policies": [
            {
                "policy": score.policy,
                "ratio_to_best": score.ratio,
                "sizes": [
                    {
                        "slots_per_layer": result.slots_per_layer,
                        "decode": _tally_json(result.decode),
                        "prefill": _tally_json(result.prefill),
                    }
                    for result in score.results
                ],
            }
            for score in scores
        ],
        "fewest_possible": [
            {"slots_per_layer": result.slots_per_layer, "decode": _tally_json(tally)}
            for result, tally in zip(scores[0].results, possible, strict=True)
        ],
    }


def _tally_json(tally: Tally) -> dict[str, float]:
    return {**asdict(tally), "hit_rate": tally.hit_rate, "misses_per_step": tally.misses_per_step}
