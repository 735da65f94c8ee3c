"""From a model folder and wishes to a plan: gathers the facts, reads headers, asks the planner. No torch.

Both `artesian plan` and the run come through here, so a dry run and a real one cannot disagree.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from app.machine import find_gpus, may_have_gpu
from app.model_choice import ModelChoice
from app.rates import RateBook
from app.usage import profile_file, usage_dir, watched_layers
from engine.config import LoadedConfig, ModelConfig, load_config
from planner.errors import MissingParts
from planner.facts import (
    ASSUMED_DRIVE_BYTES_S,
    ASSUMED_OTHER_BYTES_S,
    Drive,
    MachineFacts,
    assumed_rates,
    read_facts,
)
from planner.footprint import Footprint, TensorPlace, footprint
from planner.plan import Abilities, Plan, Wishes
from planner.solve import make_plan
from storage.drives import drive_of
from storage.errors import StorageError
from storage.fingerprint import Marked
from storage.headers import DTYPE_BITS, SHARD_SUFFIX
from storage.outline import Outline, read_outline

if TYPE_CHECKING:
    from storage.profile import UsageProfile

ABILITIES = Abilities(cards=True, cards_unasked=False, drafts=True)
"""Of the engine in this version."""
RELEASED_NAME = "DeepSeek-V4.1-Flash"
RELEASED_BYTES = 510_000_000_000
"""Its shards, the image tower's included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, as far as planning needs it."""

    folder: Path
    sources: tuple[Path, ...]
    """Config files."""
    footprint: Footprint
    outline: Outline
    note: str = ""
    """What was assumed of it, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and everything it was made from."""

    facts: MachineFacts
    footprint: Footprint
    wishes: Wishes
    shares: Mapping[int, Sequence[float]]
    plan: Plan
    abilities: Abilities = ABILITIES


def read_model(path: Path, splits: Sequence[Path] = (), *, numerics: str | None = None) -> Model:
    """The model of a checkpoint folder, of a folder of header prefixes, or of a config file alone.

    What no header says is taken from the config. Raises: ConfigError; OSError when a folder cannot be listed.
    """
    is_file = path.is_file()
    loaded = load_config(path.parent, config=path) if is_file else load_config(path)
    folder = path.parent if is_file else path
    with _no_collecting():
        outline = read_outline(() if is_file else (folder, *splits))
        return _read_model(folder, loaded, outline, numerics or "exact")


def released_model(folder: Path, *, numerics: str | None = None) -> Model:
    """The released model, with nothing of it at hand but its published widths; `folder` is where it would lie.

    Without the image tower, which no text needs. Takes half a second.
    """
    # Here and not at the top: every other plan is 10 ms sooner there.
    from app.slices.geometry import RELEASED_CLASSES, RELEASED_LAYERS, RELEASED_STAGES, slice_config

    config = slice_config(RELEASED_LAYERS, n_classes=RELEASED_CLASSES, n_stages=RELEASED_STAGES)
    with _no_collecting():
        sizes = footprint(config, expected_places(config), numerics=numerics or "exact")
    nothing = Outline(shards=(), refused=(), headers=(), marks={})
    note = "Nothing of it was looked at: its sizes follow from the published widths, the drive is your home's."
    return Model(folder=folder, sources=(), footprint=sizes, outline=nothing, note=note)


@contextmanager
def _no_collecting() -> Iterator[None]:
    """A hundred thousand small objects that all stay: looking among them for garbage took a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()  # else the next collection looks at all of them: 40 ms of a plan
            gc.enable()


def _read_model(folder: Path, loaded: LoadedConfig, outline: Outline, numerics: str) -> Model:
    config = loaded.config
    note = ""
    try:
        sizes = footprint(config, outline.tensors(), numerics=numerics)
    except MissingParts:
        found = {name for name, *_ in outline.tensors()}
        rest = [place for place in expected_places(config) if place[0] not in found]
        sizes = footprint(config, [*outline.tensors(), *rest], numerics=numerics)
        note = f"{len(found):,} tensors are known by their headers; the sizes of {len(rest):,} follow from the config."
    return Model(folder=folder, sources=loaded.sources, footprint=sizes, outline=outline, note=note)


def expected_places(config: ModelConfig) -> Iterable[TensorPlace]:
    """Every tensor the config demands, laid out as in the released shards: large types first, then by name."""
    # Here and not at the top: whole headers say it all.
    from engine.inventory import expected_tensors

    expected = expected_tensors(config)
    offset = 0
    for name in sorted(expected, key=lambda name: (-DTYPE_BITS[expected[name].dtype], expected[name].dtype, name)):
        tensor = expected[name]
        end = offset + prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8
        yield name, tensor.dtype, len(tensor.shape), "", offset, end
        offset = end


def gather_facts(folders: Sequence[Path], book: RateBook) -> MachineFacts:
    """The machine as it is, with the drives under `folders` and what is remembered of its rates."""
    gpus, fault = find_gpus() if may_have_gpu() else ((), "")
    drives: dict[str, Drive] = {}
    notes = [fault] if fault else []
    for folder in folders:
        # Where its shards are, which may be links to another drive.
        for place in sorted({Path(os.path.realpath(p)).parent for p in folder.glob(f"*{SHARD_SUFFIX}")}) or [folder]:
            try:
                found = drive_of(place)
            except StorageError as error:
                notes.append(f"{error}.")
                continue
            drives.setdefault(found.name, drive_facts(found.name, found.kind, book))
    facts = read_facts(gpus=gpus, drives=tuple(drives.values()))
    n_cores = min(facts.n_cores, asked_threads(os.environ) or facts.n_cores)
    rates = book.arithmetic(n_cores) or assumed_rates(n_cores)
    return replace(facts, n_cores=n_cores, rates=rates, notes=(*facts.notes, *notes))


def asked_threads(environ: Mapping[str, str]) -> int | None:
    """The threads that OMP_NUM_THREADS allows, which every other numeric program heeds too; None when it is silent."""
    text = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and 1 <= int(text[:4]) <= 4096 else None


def drive_facts(name: str, kind: str, book: RateBook) -> Drive:
    """A drive with its remembered rate, or one assumed for its kind."""
    rate = book.drive(name)
    if rate is not None:
        return Drive(name=name, kind=kind, rate_bytes_s=rate, source="remembered")
    assumed = ASSUMED_DRIVE_BYTES_S.get(kind, ASSUMED_OTHER_BYTES_S)
    return Drive(name=name, kind=kind, rate_bytes_s=assumed, source="assumed")


def profile_shares(
    choice: ModelChoice, config: ModelConfig, headers: Mapping[str, Marked], sources: Sequence[Path]
) -> dict[int, list[float]]:
    """Shares of traffic by layer, of the usage profile of the model with these headers and config files; empty when it
    has none.
    """
    profiles = usage_dir(choice)
    if profiles is None or not headers:
        return {}
    n_experts = watched_layers(config)
    path, mark = profile_file(profiles, headers, sources)
    if not path.is_file():
        return {}
    # Here and not at the top: numpy reads it, without which a plan is a fifth sooner.
    from storage.profile import UsageProfile

    return shares_of(UsageProfile.load(path, mark, n_experts), n_experts)


def shares_of(profile: "UsageProfile", layers: Iterable[int]) -> dict[int, list[float]]:
    """The layers that were watched, and the shares of their experts."""
    shares = {layer: profile.shares(layer) for layer in layers}
    return {layer: some for layer, some in shares.items() if any(some)}


def plan_for(facts: MachineFacts, sizes: Footprint, wishes: Wishes, shares: Mapping[int, Sequence[float]]) -> Planned:
    """The plan for these. Raises: PlanError."""
    # Drafts could change an answer in `reference`, so there they are made only when asked for.
    abilities = replace(ABILITIES, drafts=sizes.numerics == "exact" or wishes.drafting == "on")
    plan = make_plan(facts, sizes, wishes, abilities, shares)
    return Planned(facts=facts, footprint=sizes, wishes=wishes, shares=shares, plan=plan, abilities=abilities)
