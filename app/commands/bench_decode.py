"""`artesian bench decode MODEL`: where the time of a prompt and of a token goes, beside what the machine allows."""

import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from app.backends.opening import open_checkpoint
from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import choose_model, require_folder
from app.paths import rates_file, settings_file
from app.planning import gather_facts, plan_for
from app.progress import CountProgress, ProgressLine
from app.rates import RateBook
from app.reading import MemoryOptions, Reading, ReadingOptions, make_reading, make_wishes
from app.report import envelope, format_bytes, table
from app.sanitize import one_line
from app.settings import load_settings
from app.stopping import StopKey
from app.values import RULES
from engine.config import load_config
from engine.phases import PHASES
from planner.footprint import footprint, places
from planner.plan import Plan, Wishes

if TYPE_CHECKING:
    from engine.measure import Arm, ForwardBench
    from engine.model import Model

DEFAULT_PROMPT_TOKENS = 512
DEFAULT_ROUNDS = 3


def run(
    folder: Annotated[Path, Parameter(name="MODEL", help="The model's folder, or what `artesian bench slice` made.")],
    /,
    *,
    prompt_tokens: Annotated[int, Parameter(help="Tokens of the prompt, drawn at random.")] = DEFAULT_PROMPT_TOKENS,
    rounds: Annotated[int, Parameter(help="How often everything is measured; medians are shown.")] = DEFAULT_ROUNDS,
    compare: Annotated[bool, Parameter(help="Also read and multiply in turn, and in blocks of 32 positions.")] = False,
    chunk_tokens: Annotated[int | None, Parameter(help="Prompt tokens in one forward. [default: planned]")] = None,
    memory: Annotated[MemoryOptions | None, Parameter(name="*", group="Memory")] = None,
    slots: Annotated[int | None, Parameter(help="Experts of each layer kept in memory. [default: planned]")] = None,
    depth: Annotated[int | None, Parameter(help="Reads in flight on each drive. [default: by its kind]")] = None,
    mirror: Annotated[list[str] | None, Parameter(help="Folder with copies of shards; may be repeated.")] = None,
    split: Annotated[list[str] | None, Parameter(help="Folder with more shards; may be repeated.")] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Measure where the time of a prompt and of a token goes.

    A prompt from cold slots, decode steps whose experts are in memory, and decode steps as they come: seconds, bytes
    and rates of each phase, beside the least that the bytes allow at what memory and drives gave in the same minute.
    Ctrl+C ends it with the rounds that are complete.

    Raises: UsageError; what opening a model raises; DoesNotFit; StorageError.
    """
    for option, value, least, most in (
        ("--prompt-tokens", prompt_tokens, 1, 1 << 20),
        ("--rounds", rounds, 1, 1000),
    ):
        if not least <= value <= most:
            raise UsageError(f"{option} must be from {least} to {most}, not {value}")
    if chunk_tokens is not None and not RULES["chunk_tokens"].accepts(chunk_tokens):
        raise UsageError(f"--chunk-tokens must be {RULES['chunk_tokens'].wanted}, not {chunk_tokens}")
    settings = load_settings(settings_file())
    choice = choose_model(str(folder), settings)
    require_folder(choice)
    reading = make_reading(ReadingOptions(mirror=mirror, split=split, slots=slots, depth=depth), settings, choice)
    wishes = make_wishes(
        memory or MemoryOptions(), settings, reading, chunk_tokens=chunk_tokens, drafting="off"
    )  # fmt: skip
    # Here and not at the top: it brings torch, a second that `bench --help` need not wait.
    from engine.measure import ForwardBench

    line = ProgressLine(sys.stderr)
    with StopKey() as stop, _opened(choice.folder, reading, wishes, line, stop) as (model, plan):
        draw = random.Random(0)
        prompt = [draw.randrange(model.config.vocab_size) for _ in range(prompt_tokens)]
        bench = ForwardBench(model, prompt, chunk_tokens=plan.chunk_tokens, compare=compare)
        began, n_done = time.monotonic(), 0

        def show() -> None:
            nonlocal n_done
            n_done += 1
            total, elapsed_s = rounds * len(bench.arms), time.monotonic() - began
            line.show(CountProgress(what="measuring", unit="runs", done=n_done, total=total, elapsed_s=elapsed_s))

        try:
            while bench.n_rounds < rounds and not stop.pressed():
                bench.round(stop.pressed, show)
        finally:
            line.clear()
        data = report(model, bench, prompt_tokens, plan)
    print(envelope("bench-decode", data) if as_json else render(data))
    return ExitCode.STOPPED if stop.pressed() else ExitCode.DONE


@contextmanager
def _opened(
    folder: Path, reading: Reading, wishes: Wishes, line: ProgressLine, stop: StopKey
) -> Iterator[tuple["Model", Plan]]:
    """The model as a turn would open it, without its draft head, and the plan it was opened by."""
    from engine.kernels import set_threads
    from engine.model import Model
    from engine.streams import StreamSettings

    notices: deque[str] = deque()
    config = load_config(folder).config
    with closing(open_checkpoint(folder, reading, notices.append)) as checkpoint:
        facts = gather_facts((folder, *reading.splits, *reading.mirrors), RateBook(rates_file()))
        plan = plan_for(facts, footprint(config, places(checkpoint.tensors)), wishes, {}).plan
        set_threads(plan.threads)
        streams = StreamSettings(
            slots_per_layer=plan.slots,
            spare_slots=plan.spare_slots,
            cache_rows=plan.cache_rows,
            embedding_rows=plan.embedding_rows,
            policy=reading.policy,
            io=reading.io,
            depth=plan.depth,
        )
        try:
            model = Model.open(
                checkpoint,
                config,
                streams=streams,
                drafts=False,
                notices=notices,
                on_progress=line.show,
                should_stop=stop.pressed,
            )
        finally:
            line.clear()
            for text in notices:
                print(f"artesian: {one_line(text)}", file=sys.stderr)
        with closing(model):
            yield model, plan


def report(model: "Model", bench: "ForwardBench", prompt_tokens: int, plan: Plan) -> dict[str, Any]:
    """Everything that was measured, with units in the key names; medians over the rounds."""
    from engine.kernels import path

    runs = [one for arm in bench.arms for one in arm.runs]
    config = model.config
    return {
        "model": str(model.checkpoint.folder),
        "n_layers": config.n_layers,
        "n_experts_per_layer": config.n_routed_experts,
        "kernels": path(),
        "n_threads": plan.threads,
        "slots_per_layer": min(plan.slots.values()),
        "prompt_tokens": prompt_tokens,
        "chunk_tokens": min(plan.chunk_tokens, prompt_tokens),
        "n_rounds": bench.n_rounds,
        "memory_read_bytes_s": median(one.memory_bytes_s for one in runs) if runs else None,
        "drive_read_bytes_s": median(one.drive_bytes_s for one in runs) if runs else None,
        "results": [_result(arm) for arm in bench.arms if arm.runs],
    }


def _result(arm: "Arm") -> dict[str, Any]:
    runs = arm.runs
    phases = []
    for phase in PHASES:
        seconds = median(one.phases.seconds[phase] for one in runs)
        n_bytes = median(one.phases.bytes[phase] for one in runs)
        rate = n_bytes / seconds if seconds > 0 else 0.0
        phases.append({"phase": phase, "seconds": seconds, "bytes": n_bytes, "rate_bytes_s": rate})
    return {
        "work": arm.name,
        "n_tokens": runs[0].n_tokens,
        "median_s": median(one.seconds for one in runs),
        "seconds": [one.seconds for one in runs],
        "tokens_s": median(one.n_tokens / one.seconds for one in runs),
        "weights_bytes": median(one.weights_bytes for one in runs),
        "read_bytes": median(one.read_bytes for one in runs),
        "floor_s": median(one.floor_s for one in runs),
        "of_floor": median(one.seconds / one.floor_s for one in runs),
        "outside_native_and_reads": median(one.outside_s / one.seconds for one in runs),
        "phases": phases,
    }


_NAMES = {"expert_reads": "expert reads", "dense": "shared and dense"}
"""Of phases whose own names are no words."""


def render(data: Mapping[str, Any]) -> str:
    """The report for people: a line for each way of running, then one for each phase of each."""
    if not data["results"]:
        return "stopped before the first round was complete"
    head = (
        f"{data['n_layers']} layers of {data['n_experts_per_layer']} experts, {data['kernels']}, {data['n_threads']}"
        f" threads, {data['n_rounds']} rounds: memory gives {format_bytes(data['memory_read_bytes_s'])}/s,"
        f" the drives {format_bytes(data['drive_read_bytes_s'])}/s"
    )
    works = [("work", "tokens", "time", "a token", "weights", "read", "floor", "of floor", "outside")]
    works += [
        (
            result["work"],
            str(result["n_tokens"]),
            _time(result["median_s"]),
            _time(result["median_s"] / result["n_tokens"]),
            format_bytes(result["weights_bytes"]),
            format_bytes(result["read_bytes"]),
            _time(result["floor_s"]),
            f"{result['of_floor']:.2f}x",
            f"{result['outside_native_and_reads']:.1%}",
        )
        for result in data["results"]
    ]
    note = "outside: share of the time neither in native code nor waiting for the drives"
    phases = _phase_rows(data["results"])
    return "\n\n".join([head, table(works, right=range(1, 9)), note, table(phases, right=range(1, len(phases[0])))])


def _phase_rows(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Time and rate of every phase of each way of running, side by side."""
    rows = [("phase", *(cell for result in results for cell in (result["work"], "")))]
    for index, phase in enumerate(PHASES):
        cells: list[str] = []
        for result in results:
            one = result["phases"][index]
            cells.append(_time(one["seconds"]) if one["seconds"] else "")
            cells.append(f"{format_bytes(one['rate_bytes_s'])}/s" if one["bytes"] else "")
        if any(cells):
            rows.append((_NAMES.get(phase, phase), *cells))
    return rows


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
