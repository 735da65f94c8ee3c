"""`artesian plan`: who gets how much memory and how fast it will be, before anything is loaded. Reads headers only."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.drafting import DraftOptions, make_drafting
from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import ModelChoice, choose_model, require_config
from app.paths import as_named, rates_file, runs_file, settings_file
from app.plan_text import as_data, last_lines, lines
from app.planning import RELEASED_NAME, Planned, gather_facts, plan_for, profile_shares, read_model, released_model
from app.rates import RateBook
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.report import envelope, format_bytes
from app.settings import load_settings
from app.sizes import bytes_of
from app.values import RULES, Numerics
from engine.draft.settings import DraftMode
from planner.explain import VRAM_SHARE, curve, explain
from planner.facts import Drive, Gpu, MachineFacts, assumed_rates, at_memory_rate, with_drives
from planner.footprint import Footprint
from planner.plan import Size
from storage.errors import MissingFolder

PLOT_BYTES = 128_000_000_000
"""Memory the plot goes up to, unless the ceiling is more."""


def run(
    model: Annotated[
        Path | None,
        Parameter(
            name="MODEL",
            help="The model's folder, one of header prefixes, or a config.json. [default: as set, else the demo]",
        ),
    ] = None,
    /,
    *,
    memory: Annotated[MemoryOptions | None, Parameter(name="*", group="Memory")] = None,
    slots: Annotated[int | None, Parameter(help="Experts of each layer kept in memory. [default: planned]")] = None,
    chunk_tokens: Annotated[int | None, Parameter(help="Prompt tokens in one forward. [default: planned]")] = None,
    cache_rows: Annotated[int | None, Parameter(help="Rows of each engram table kept. [default: planned]")] = None,
    depth: Annotated[int | None, Parameter(help="Reads in flight on each drive. [default: by its kind]")] = None,
    draft: Annotated[DraftMode | None, Parameter(help="With room for the draft head. [default: auto]")] = None,
    numerics: Annotated[Numerics | None, Parameter(help="As the run has it. [default: as set, else exact]")] = None,
    mirror: Annotated[list[str] | None, Parameter(help="Folder with copies of shards; may be repeated.")] = None,
    split: Annotated[list[str] | None, Parameter(help="Folder with more shards; may be repeated.")] = None,
    what_if: Annotated[
        str | None,
        Parameter(help="Another machine: ram=128GB,vram=24GB,drives=2,drive=7GB,cores=8,memory=60GB. Any of them."),
    ] = None,
    plot: Annotated[str | None, Parameter(help="Speed against memory: `screen`, or an .svg or .png file.")] = None,
    released: Annotated[bool, Parameter(help="Of the released model, with nothing of it at hand.")] = False,
    last: Annotated[
        bool, Parameter(help="What was predicted of the model's last turn, and what then happened.")
    ] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Show what would live where, how fast it would be, and what would make it faster. Loads nothing.

    Raises: DoesNotFit with the smallest change that would fit; UsageError; ConfigError.
    """
    settings = load_settings(settings_file())
    if released and (model is not None or last):
        raise UsageError(f"--released names the model, so {'--last' if last else 'MODEL'} has no place beside it")
    choice = choose_model(None if model is None else str(model), settings)
    if released:
        home = Path.home() if Path.home().is_dir() else Path()
        choice = ModelChoice(folder=home, origin="--model", is_demo=False)
    if not choice.folder.exists():
        raise MissingFolder(
            f"{choice.folder} ({choice.origin}) does not exist", hint="Give a folder, or the config.json of a model."
        )
    if choice.folder.is_dir() and not released:
        require_config(choice.folder)
    if last:
        return show_last(choice.folder, as_json=as_json)
    if chunk_tokens is not None and not RULES["chunk_tokens"].accepts(chunk_tokens):
        raise UsageError(f"--chunk-tokens must be {RULES['chunk_tokens'].wanted}, not {chunk_tokens}")
    said = ReadingOptions(mirror=mirror, split=split, slots=slots, depth=depth, cache_rows=cache_rows)
    reading = make_reading(said, settings, choice)
    drafting = make_drafting(DraftOptions(draft=draft), settings)
    wishes = make_wishes(
        memory or MemoryOptions(), settings, reading, chunk_tokens=chunk_tokens, drafting=drafting.mode
    )
    mode = numerics or settings.numerics
    known = (
        released_model(choice.folder, numerics=mode)
        if released
        else read_model(choice.folder, reading.splits, numerics=mode)
    )
    facts = gather_facts((known.folder, *reading.splits, *reading.mirrors), RateBook(rates_file()))
    if what_if is not None:
        supposition = parse_what_if(what_if)
        facts = supposed(facts, supposition)
        if "vram" in supposition and wishes.vram is None:
            wishes = replace(wishes, vram=Size(share=VRAM_SHARE))
    shares = profile_shares(choice, known.footprint.config, known.outline.marks, known.sources)
    planned = plan_for(facts, known.footprint, wishes, shares)
    explanation = explain(facts, known.footprint, planned.plan, wishes, planned.abilities, shares)
    notes = [known.note] if known.note else []
    title = f"{RELEASED_NAME if released else choice.folder.resolve().name}: {describe(known.footprint)}"
    points = _curve(planned) if plot is not None or as_json else ()
    if as_json:
        data = {"model": RELEASED_NAME if released else str(choice.folder), "what_if": what_if, **as_data(explanation)}
        data["notes"] += notes
        data["curve"] = [{"ceiling_bytes": n, "tokens_s": speed} for n, speed in points]
        print(envelope("plan", data))
    else:
        print("\n".join(lines(title, explanation, notes)))
    if plot is not None:
        from app.plan_plot import text_plot, write_plot  # not at the top: a plan is 5 ms sooner there
    if plot == "screen" and not as_json:
        print("\n" + "\n".join(text_plot(points, planned.plan.ceiling_bytes)))
    elif plot is not None and plot != "screen":
        write_plot(as_named(plot), points, planned.plan.ceiling_bytes, title)
        print(f"artesian: the plot is in {plot}", file=sys.stderr)
    return ExitCode.DONE


def show_last(folder: Path, *, as_json: bool) -> ExitCode:
    """The last turn on the model in `folder`. Raises: UsageError when there was none."""
    from app.last_run import load_runs  # here saves every other plan 15 ms

    name = str(folder.resolve())
    run = next((run for run in load_runs(runs_file()) if run.model == name), None)
    if run is None:
        raise UsageError(
            f"no turn on {folder} is on record", hint="Ask it something first; turns on the demo are not kept."
        )
    print(envelope("plan-last", asdict(run)) if as_json else "\n".join(last_lines(run)))
    return ExitCode.DONE


def describe(sizes: Footprint) -> str:
    """The model in a few words."""
    config = sizes.config
    on_drives = sizes.experts_bytes + sizes.tables_bytes
    return (
        f"{config.n_layers} layers of {config.n_routed_experts} experts, {format_bytes(on_drives)} stays on the drives"
    )


def _curve(planned: Planned) -> tuple[tuple[int, float], ...]:
    most = max(PLOT_BYTES, round(1.2 * planned.plan.ceiling_bytes))
    return curve(planned.facts, planned.footprint, planned.wishes, planned.abilities, planned.shares, most)


DESKTOP_VRAM_BYTES = 1_000_000_000
"""Of a card that is supposed: what a desktop shows itself with."""
_KEYS = {
    "ram": "a size such as 128GB",
    "vram": "a size such as 24GB",
    "drives": "a number",
    "drive": "a rate such as 7GB",
    "cores": "a number",
    "memory": "a rate such as 60GB",
}


def parse_what_if(text: str) -> dict[str, int]:
    """`ram=128GB,drives=2` as numbers. Raises: UsageError naming the key and what it takes."""
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in _KEYS:
            raise UsageError(f"--what-if knows {', '.join(_KEYS)}, not {key!r}")
        is_count = key in ("drives", "cores")
        number = _count(value) if is_count else bytes_of(value)
        if number is None or number < 1:
            raise UsageError(f"--what-if {key} must be {_KEYS[key]}, not {value!r}")
        if is_count and number > 1024:
            raise UsageError(f"--what-if {key} is at most 1,024, not {number:,}")
        found[key] = number
    return found


def _count(text: str) -> int | None:
    digits = text.strip()
    # More digits than any count has would take Python long, or fail.
    return int(digits[:20]) if digits.isascii() and digits.isdecimal() else None


def supposed(facts: MachineFacts, what_if: Mapping[str, int]) -> MachineFacts:
    """The machine as it would be. Other programs keep what they have now, up to a quarter of the memory."""
    if "cores" in what_if:
        scale, rates = what_if["cores"] / facts.n_cores, facts.rates
        if rates.source == "assumed":
            rates = assumed_rates(what_if["cores"])
        else:  # they are of all cores together, and memory gives no more
            rates = replace(
                rates,
                fp4_bytes_s=min(rates.fp4_bytes_s * scale, rates.memory_bytes_s),
                fp8_bytes_s=min(rates.fp8_bytes_s * scale, rates.memory_bytes_s),
                plain_bytes_s=min(rates.plain_bytes_s * scale, rates.memory_bytes_s),
            )
        rates = replace(rates, multiply_adds_s=facts.rates.multiply_adds_s * scale)
        facts = replace(facts, n_cores=what_if["cores"], rates=rates)
    if "memory" in what_if:
        facts = replace(facts, rates=at_memory_rate(facts.rates, float(what_if["memory"])))
    if "ram" in what_if:
        total = what_if["ram"]
        used = min(facts.total_bytes - facts.available_bytes, total // 4)
        facts = replace(facts, total_bytes=total, available_bytes=total - max(0, used), ruled_by="--what-if")
    if "vram" in what_if:
        size = what_if["vram"]
        free = size - min(DESKTOP_VRAM_BYTES, size // 4)
        facts = replace(facts, gpus=(Gpu(name="a card", total_bytes=size, free_bytes=free),))
    if "drive" in what_if:
        given = [replace(drive, rate_bytes_s=float(what_if["drive"]), source="given") for drive in facts.drives]
        first = Drive(name="a drive", kind="nvme", rate_bytes_s=float(what_if["drive"]), source="given")
        facts = replace(facts, drives=tuple(given) or (first,))
    if "drives" in what_if and facts.drives:
        facts = with_drives(facts, what_if["drives"])
    return facts
