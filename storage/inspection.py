"""Look at a checkpoint's folders without reading payload: which shards are there, whole or not, and what is wrong.

Shards are found by the index, by their suffix, by the holes in a numbered series, and by their first bytes, so that a
folder still downloading and a folder of header prefixes under any name are both understood.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from storage.crosscheck import duplicate_problems, index_problems, shard_problems
from storage.errors import DriveError, IndexesDiffer, MissingFolder, NoIndex, StorageError, shown
from storage.headers import SHARD_SUFFIX, HeaderScan, ShardHeader, TensorEntry, is_plausible_header, scan_header
from storage.index import INDEX_NAME, MAX_SHARDS, ShardIndex, read_index
from storage.inventory import Inventory, Problem, ShardRecord, status_of

_UNFINISHED_SUFFIXES = (
    *(".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp"),
    ".artesian-part",  # of a join: `mirroring.part`
)
_NUMBERED = re.compile(r"(.*-)(\d{1,5})(-of-)(\d{1,5})(\.safetensors)")


def inspect(folder: Path, *, splits: Sequence[Path] = ()) -> Inventory:
    """Look at everything but payload in `folder`, and in `splits`, which hold further shards of the same checkpoint.

    Never raises for what the folders hold; what is wrong is in `problems`, the most telling first. Reads one header per
    shard: 0.1 s for the fixture, about a second for the release's 48 shards and 96,085 tensors.
    """
    unusable = {place: error for place in (folder, *splits) if (error := unusable_folder(place)) is not None}
    problems = [Problem(error=error, blocks=True) for error in unusable.values()]
    places = [place for place in (folder, *splits) if place not in unusable]
    index, index_error = _index_of(places, problems)
    names = {place: _shard_names(place, problems) for place in places}
    found = sorted({name for listed in names.values() for name in listed})
    wanted = list(index.shards) if index is not None else _series(found)
    scans: dict[str, HeaderScan] = {}
    paths: dict[str, list[Path]] = {}
    for name in dict.fromkeys([*wanted, *found]):
        paths[name], scans[name] = _best_file(name, places or [folder])
    records = _records(paths, scans, index)
    problems += shard_problems(folder, records) if places else []
    problems += duplicate_problems(records)
    problems += index_problems(index, records) if index is not None else []
    tensors: dict[str, TensorEntry] = {}
    for record in records.values():
        for name, entry in record.header.tensors.items() if record.header is not None else ():
            tensors.setdefault(name, entry)
    return Inventory(
        folder=folder,
        splits=tuple(splits),
        index=index,
        index_error=index_error,
        shards=records,
        tensors=tensors,
        unfinished=tuple(sorted(path for place in places for path in _unfinished(place))),
        problems=tuple(problems),
    )


def idle_split(folder: Path, splits: Sequence[Path]) -> Path | None:
    """The first of `splits` that nothing would be read from: every shard in it is whole in a folder before it.

    Names decide; headers are only read of shards that are there twice. A folder that cannot be looked into is none.
    """
    before = [folder]
    for split in splits:
        if unusable_folder(split) is None:
            names = _shard_names(split, [])
            brings_index = (split / INDEX_NAME).exists() and not any((one / INDEX_NAME).exists() for one in before)
            if not brings_index and all(_best_file(name, [*before, split])[0][0].parent != split for name in names):
                return split
        before.append(split)
    return None


def unusable_folder(folder: Path) -> StorageError | None:
    """Why `folder` cannot be looked into (MissingFolder, DriveError), or None."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return None
        return MissingFolder(f"{shown(str(folder))} is not a folder", hint="Give the folder that holds the shards.")
    except (FileNotFoundError, NotADirectoryError):
        hint = "Give the folder that holds the model's .safetensors files; if it is on a drive, see that it is mounted."
        return MissingFolder(f"{shown(str(folder))} is not there", hint=hint)
    except OSError as refused:
        return DriveError.of(refused, folder, None)


def _index_of(places: Sequence[Path], problems: list[Problem]) -> tuple[ShardIndex | None, StorageError | None]:
    """The one index of all folders. One in a second folder must say the same."""
    index: ShardIndex | None = None
    first_error: StorageError | None = None
    for place in places:
        try:
            other = read_index(place)
        except NoIndex as error:
            first_error = first_error or error
            continue
        except StorageError as error:
            problems.append(Problem(error=error, blocks=True))
            return None, error
        if index is None:
            index = other
        elif index.weight_map != other.weight_map:
            differ = IndexesDiffer(
                f"{shown(str(index.path))} and {shown(str(other.path))} assign tensors differently",
                shard=INDEX_NAME,
                found=len(other.weight_map),
                expected=len(index.weight_map),
                hint="The folders are of different downloads; they cannot be used as one checkpoint.",
            )
            problems.append(Problem(error=differ, blocks=True))
    if index is not None:
        return index, None
    if first_error is not None:
        problems.append(Problem(error=first_error, blocks=False))
    return None, first_error or problems[0].error


def _shard_names(folder: Path, problems: list[Problem]) -> list[str]:
    """Names of the files that are shards by their suffix, or by their first bytes."""
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        problems.append(Problem(error=DriveError.of(error, folder, None), blocks=True))
        return []
    return [path.name for path in paths if path.name.endswith(SHARD_SUFFIX) or _looks_like_shard(path)]


def _looks_like_shard(path: Path) -> bool:
    if path.suffix in _UNFINISHED_SUFFIXES:
        return False
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return is_plausible_header(file.read(9))
    except OSError:
        return False


def _series(found: Sequence[str]) -> list[str]:
    """The names that a numbered series should have: 00001-of-00003 alone asks for two more."""
    series = {match.group(1, 3, 4, 5) for name in found if (match := _NUMBERED.fullmatch(name))}
    if len(series) != 1:  # two series are two checkpoints; which one is meant is not for us to say
        return []
    before, of, last, suffix = series.pop()
    return [f"{before}{number:0{len(last)}}{of}{last}{suffix}" for number in range(1, min(int(last), MAX_SHARDS) + 1)]


def _best_file(name: str, places: Sequence[Path]) -> tuple[list[Path], HeaderScan]:
    """Where the shard lies, the best file first, and that file's scan. A whole one is better than a cut one."""
    here = [place / name for place in places if os.path.lexists(place / name)] or [places[0] / name]
    scans = [scan_header(path, name) for path in here]
    best = next((i for i, scan in enumerate(scans) if not scan.faults), 0)
    return [here[best], *here[:best], *here[best + 1 :]], scans[best]


def _records(
    paths: Mapping[str, Sequence[Path]], scans: Mapping[str, HeaderScan], index: ShardIndex | None
) -> dict[str, ShardRecord]:
    absent = {name for name, scan in scans.items() if status_of(scan) == "missing"}
    stands_for = {name: _stands_for(name, scan.header, index, absent) for name, scan in scans.items()}
    renamed = {shard for name, shard in stands_for.items() if shard != name}
    first_with: dict[bytes, str] = {}
    records: dict[str, ShardRecord] = {}
    for name, scan in scans.items():
        header, status = scan.header, status_of(scan)
        if status == "missing" and name in renamed:
            continue  # the file that holds its tensors says so
        duplicate_of = None if header is None else first_with.setdefault(header.digest, name)
        records[name] = ShardRecord(
            shard=name,
            path=paths[name][0],
            status=status,
            present_bytes=_size(paths[name][0]) if header is None else header.file_bytes,
            expected_bytes=None if header is None else header.expected_bytes,
            header=header,
            faults=scan.faults,
            listed=index is not None and stands_for[name] in index.shards,
            stands_for=stands_for[name],
            duplicate_of=None if duplicate_of == name else duplicate_of,
            other_paths=tuple(paths[name][1:]),
        )
    return records


def _stands_for(name: str, header: ShardHeader | None, index: ShardIndex | None, absent: Set[str]) -> str:
    """The absent shard of the index whose tensors this file of another name holds, or the file's own name."""
    if index is None or header is None or name in index.shards:
        return name
    assigned = next((index.weight_map[tensor] for tensor in header.tensors if tensor in index.weight_map), name)
    return assigned if assigned in absent else name


def _size(path: Path) -> int:
    try:
        facts = path.stat()
    except OSError:
        return 0
    return facts.st_size if stat.S_ISREG(facts.st_mode) else 0


def _unfinished(folder: Path) -> list[Path]:
    """What download tools leave while they work, beside the shards and where the hub's tool keeps them."""
    places = [folder, folder / ".cache" / "huggingface" / "download"]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    found: list[Path] = []
    for place in places:
        try:
            found += [path for path in place.iterdir() if path.suffix in _UNFINISHED_SUFFIXES and path.is_file()]
        except OSError:
            continue  # the place does not exist, which is the ordinary case
    return found
