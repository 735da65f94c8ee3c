"""How a model is read from its drives: what the command line and the settings say, as one record.

The one thing a reader would get wrong: mirrors, splits and weights in the settings belong to the model that the
settings name. For another one they would only be refused, so they are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from app.errors import UsageError
from app.model_choice import ModelChoice
from app.paths import as_named
from app.sanitize import one_line
from app.settings import Settings
from app.sizes import size_of
from app.values import RULES
from planner.plan import DraftWish, Wishes
from storage.defaults import DEFAULT_DEPTH
from storage.policy import DEFAULT_POLICY, POLICIES

if TYPE_CHECKING:
    from storage.direct import IoMode

Io = Literal["auto", "direct", "buffered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """What the command line said of the drives; None where it is silent."""

    mirror: Annotated[
        list[str] | None, Parameter(help="Folder with copies of some or all shards; may be repeated.")
    ] = None
    split: Annotated[
        list[str] | None, Parameter(help="Folder with more shards of the checkpoint; may be repeated.")
    ] = None
    drive_weight: Annotated[
        list[str] | None,
        Parameter(help="DIR=W: share of the reads, for the model's and every other folder. [default: measured]"),
    ] = None
    verify_mirror: Annotated[
        bool | None, Parameter(help="Compare samples of the mirrors' bytes first, 16 MB a shard and copy.")
    ] = None
    io: Annotated[
        Io | None, Parameter(help="Past the page cache, through it, or past it where that works. [default: auto]")
    ] = None
    slots: Annotated[int | None, Parameter(help="Experts of each layer kept in memory. [default: planned]")] = None
    depth: Annotated[
        int | None,
        Parameter(help=f"Reads in flight on each drive, 1 to 256. [default: {DEFAULT_DEPTH} for most]"),
    ] = None
    cache_rows: Annotated[int | None, Parameter(help="Rows of each engram table kept. [default: planned]")] = None
    cache_policy: Annotated[
        str | None,
        Parameter(help=f"Which expert makes room: {', '.join(POLICIES)}. [default: {DEFAULT_POLICY}]"),
    ] = None
    record_trace: Annotated[
        str | None, Parameter(help="File to record the requests for experts in, for `artesian bench cache`.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What the command line said of memory; None where it is silent."""

    ram: Annotated[
        str | None, Parameter(help="Most memory: 24GB, or 80% of what is available. [default: all but the reserve]")
    ] = None
    vram: Annotated[str | None, Parameter(help="The same of every GPU. [default: none is used]")] = None
    reserve: Annotated[
        str | None, Parameter(help="Memory left to the system: 4GB, or 10% of all. [default: a tenth, at least 2GB]")
    ] = None
    context: Annotated[int | None, Parameter(help="Most tokens of a conversation. [default: planned]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a model is read. None means: the engine's default."""

    mirrors: tuple[Path, ...] = ()
    splits: tuple[Path, ...] = ()
    weights: Mapping[Path, float] | None = None
    """Relative rates of the model's folder and all others; None has them measured where they matter."""
    verify_mirrors: bool = False
    io: "IoMode" = "auto"
    slots: int | None = None
    """Experts of a layer kept in memory."""
    depth: int | None = None
    cache_rows: int | None = None
    policy: str = DEFAULT_POLICY
    trace: Path | None = None
    """Where requests for experts are recorded."""


def make_reading(options: ReadingOptions, settings: Settings, choice: ModelChoice) -> Reading:
    """The options, then the settings, checked.

    Raises: UsageError for an option that cannot act.
    """
    for name in ("mirror", "split", "drive_weight", "slots", "depth", "cache_rows", "cache_policy", "record_trace"):
        value = getattr(options, name)
        if value is not None and not RULES[name].accepts(value):
            said = _shown(value) or "nothing"
            raise UsageError(f"--{name.replace('_', '-')} must be {RULES[name].wanted}, not {said}")
    saved = settings if is_for(settings, choice) else Settings()
    weights: Sequence[str] | None = options.drive_weight
    weights_of = "--drive-weight"
    if weights is None and options.mirror is None and options.split is None:
        weights, weights_of = saved.drive_weight, "drive_weight in the settings"  # of the folders that they name
    mirrors = _folders(options.mirror or saved.mirror)
    splits = _folders(options.split or saved.split)
    _require_distinct(choice.folder, splits, mirrors)
    if options.split:
        require_useful(choice.folder, splits)
    if options.verify_mirror and not mirrors:
        raise UsageError("--verify-mirror has no effect without a mirror", hint="Name its folder with --mirror.")
    if options.drive_weight and not (mirrors or splits):
        raise UsageError(
            "--drive-weight has no effect with a single folder", hint="Name others with --mirror or --split."
        )
    io: IoMode = options.io or io_mode(settings)
    return Reading(
        mirrors=mirrors,
        splits=splits,
        weights=_weights(weights, (choice.folder, *splits, *mirrors), source=weights_of) if weights else None,
        verify_mirrors=bool(settings.verify_mirror if options.verify_mirror is None else options.verify_mirror),
        io=io,
        slots=options.slots or settings.slots,
        depth=options.depth or settings.depth,
        cache_rows=settings.cache_rows if options.cache_rows is None else options.cache_rows,
        policy=options.cache_policy or settings.cache_policy or DEFAULT_POLICY,
        trace=_trace(options.record_trace),
    )


def make_wishes(
    options: MemoryOptions,
    settings: Settings,
    reading: Reading,
    *,
    chunk_tokens: int | None = None,
    drafting: DraftWish = "auto",
) -> Wishes:
    """What is asked of the planner: the options, then the settings.

    Raises: UsageError for an option that is no size.
    """
    for name in ("ram", "vram", "reserve", "context"):
        value = getattr(options, name)
        if value is not None and not RULES[name].accepts(value):
            raise UsageError(f"--{name} must be {RULES[name].wanted}, not {value}")
    sizes = {name: getattr(options, name) or getattr(settings, name) for name in ("ram", "vram", "reserve")}
    return Wishes(
        ram=size_of(sizes["ram"]) if sizes["ram"] else None,
        vram=size_of(sizes["vram"]) if sizes["vram"] else None,
        reserve=size_of(sizes["reserve"]) if sizes["reserve"] else None,
        context_tokens=options.context or settings.context,
        chunk_tokens=chunk_tokens,
        slots=reading.slots,
        cache_rows=reading.cache_rows,
        depth=reading.depth,
        drafting=drafting,
    )


def require_useful(folder: Path, splits: Sequence[Path]) -> None:
    """Raises: UsageError for a split on the command line that nothing would be read from."""
    # Here and not at the top, like `_trace`: what few commands need would take the start of each 20 ms.
    from storage.inspection import idle_split

    idle = idle_split(folder, splits)
    if idle is not None:
        raise UsageError(
            f"--split {one_line(str(idle))} has no shard that is not in {one_line(str(folder))} already",
            hint="A split holds shards that are nowhere else. Copies of shards are named with --mirror.",
        )


def saved_folders(settings: Settings, choice: ModelChoice) -> tuple[Path, ...]:
    """The splits and mirrors in the settings, if they are of the chosen model."""
    return _folders([*(settings.split or ()), *(settings.mirror or ())]) if is_for(settings, choice) else ()


def io_mode(settings: Settings) -> "IoMode":
    """How the settings want drives read."""
    match settings.io:
        case "direct" | "buffered" as io:
            return io
        case _:
            return "auto"


def is_for(settings: Settings, choice: ModelChoice) -> bool:
    """Whether what the settings say of drives is about the chosen model."""
    return settings.model is not None and _real(settings.model) == choice.folder.resolve()


def _folders(names: Sequence[str] | None) -> tuple[Path, ...]:
    return tuple(as_named(name) for name in names or ())


def _real(name: str | Path) -> Path:
    return as_named(name).resolve()


def _require_distinct(model: Path, splits: Sequence[Path], mirrors: Sequence[Path]) -> None:
    seen = {model.resolve()}
    for option, folders in (("--split", splits), ("--mirror", mirrors)):
        for folder in folders:
            if folder.resolve() in seen:
                raise UsageError(
                    f"{option} {_shown(folder)} is the model's folder, or was named before",
                    hint="Each folder is named once.",
                )
            seen.add(folder.resolve())


def _weights(texts: Sequence[str], folders: Sequence[Path], *, source: str) -> dict[Path, float]:
    """Weights by folder as it is named among `folders`, from `DIR=W`; `source` is where they were found."""
    by_place = {folder.resolve(): folder for folder in folders}
    weights: dict[Path, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        folder = by_place.get(_real(name))
        if folder is None:
            raise UsageError(
                f"{source} {_shown(text)} names a folder that is not read from",
                hint="Weigh the model's folder and those of --mirror and --split.",
            )
        weights[folder] = float(number)
    missing = [folder for folder in folders if folder not in weights]
    if not any(weights.values()):
        raise UsageError(f"{source} is 0 for every folder", hint="At least one must be read from.")
    if missing:
        raise UsageError(
            f"{source} says nothing of {_shown(missing[0])}",
            hint="Weigh every folder, or none to have it measured.",
        )
    return weights


def _trace(name: str | None) -> Path | None:
    """The file to record in; nothing but an earlier trace is overwritten."""
    if name is None:
        return None
    from storage.trace import MAGIC

    path = as_named(name)
    try:
        if not path.parent.is_dir():
            raise UsageError(f"--record-trace {_shown(name)}: there is no folder {_shown(path.parent)}")
        if not path.exists():
            return path
        if not path.is_file():  # a pipe would wait here for a writer
            raise UsageError(f"--record-trace {_shown(name)} is not a file")
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"--record-trace {_shown(name)} cannot be written: {error.strerror or error}") from error
    if head not in (b"", MAGIC):
        raise UsageError(
            f"--record-trace {_shown(name)} would overwrite a file that is not a trace", hint="Name a new file."
        )
    return path


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
