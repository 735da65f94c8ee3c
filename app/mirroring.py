"""The drive wizard without its screens: what a model's drives are, where copies could go, and doing it.

Commands and screens both come through here. The one thing a reader would get wrong: the settings name mirrors only for
the model they name. For another one a copy is made all the same, and the option that uses it is said.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import UsageError
from app.model_choice import ModelChoice, require_folder
from app.paths import as_named, rates_file, settings_file
from app.planning import drive_facts, profile_shares
from app.progress import WorkProgress
from app.rates import RateBook
from app.reading import is_for, saved_folders
from app.settings import Settings, load_settings
from app.settings_edit import edit_settings
from engine.config import load_config
from engine.errors import Stopped
from planner.facts import ASSUMED_OTHER_BYTES_S
from storage.checkpoint import refusal
from storage.drives import DriveFacts, drive_of
from storage.errors import BadManifest, StorageError, TargetRefused, shown
from storage.fingerprint import fingerprint
from storage.headers import ShardHeader, read_header
from storage.inspection import inspect
from storage.inventory import Inventory
from storage.mirroring.checking import SAMPLED_BLOCKS, CheckedShard, check_copies
from storage.mirroring.copying import LOCK_NAME, Copier, CopyJob, CopyProgress
from storage.mirroring.files import WRITE
from storage.mirroring.manifest import Kind, Manifest, read_manifest, remove_manifest
from storage.mirroring.measuring import measure_place
from storage.mirroring.part import BLOCK_BYTES, allocated_bytes
from storage.mirroring.places import LEAST_BYTES, Place, find_places, unmounted_above
from storage.mirroring.proposal import Proposal, ShardUse, choose_split, propose, reserve_bytes
from storage.mirroring.undoing import drop_sources, remove_copies

_EXPERT = re.compile(r"(layers|mtp)\.(\d+)\.ffn\.experts\.(\d+)\.")
UNWEIGHED = "drive_weight said nothing of the new folder and was taken out of the settings: shares are measured."
FOLDER_NAME = "artesian-mirror"
"""What a new mirror's folder is called on its drive, with the model's name behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """One mirror or split folder of the model, as it is now."""

    folder: Path
    kind: Kind
    drive: str
    """Name of the drive it is on now, "" when the folder is not there."""
    shards: tuple[str, ...]
    """Copies its record names."""
    copied_bytes: int
    read_share: float
    rate_bytes_s: float | None
    in_settings: bool
    problem: str
    """Why it cannot be used as it is, or ""."""


class MirrorDesk:
    """The drives of one model."""

    def __init__(
        self,
        choice: ModelChoice,
        settings: Settings,
        book: RateBook,
        *,
        settings_path: Path | None = None,
        splits: Sequence[Path] | None = None,
        find_drive: Callable[[Path], DriveFacts] = drive_of,
        root: Path = Path("/"),
        least_bytes: int = LEAST_BYTES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """`splits` are further folders of the model; None takes those of the settings. `root`, `find_drive`,
        `least_bytes` and `block_bytes` are for tests.

        Raises: MissingFolder; the first problem of a checkpoint that is not whole; ConfigError.
        """
        require_folder(choice)
        self.choice = choice
        self._settings = settings
        self._settings_path = settings_path
        self._book = book
        self._find_drive = find_drive
        self._root = root
        self._least_bytes = least_bytes
        self._block_bytes = block_bytes
        saved = tuple(as_named(name) for name in settings.split or ()) if self.in_settings else ()
        self.splits = tuple(splits) if splits is not None else saved
        self.inventory: Inventory = inspect(choice.folder, splits=self.splits)
        problem = refusal(self.inventory)
        if problem is not None:
            raise problem
        self.headers: Mapping[str, ShardHeader] = {
            shard: record.header
            for shard, record in self.inventory.shards.items()
            if record.header is not None and record.duplicate_of is None
        }
        loaded = load_config(choice.folder)
        self.fingerprint = fingerprint(self.headers, [path.read_bytes() for path in loaded.sources])
        shares = profile_shares(choice, loaded.config, self.headers, loaded.sources)
        self.profiled = bool(shares)
        """Whether the usage profile says what is read; else every expert counts alike."""
        self.uses = expert_uses(self.headers, shares)
        self.unweighed = False
        """Whether weights went from the settings, since they said nothing of a folder that was noted there."""

    @classmethod
    def of_user(cls, choice: ModelChoice, splits: Sequence[Path] | None = None) -> "MirrorDesk":
        """The desk with the user's settings, as they are now, and this machine's rates.

        Raises: SettingsError; what making one raises.
        """
        path = settings_file()
        return cls(choice, load_settings(path), RateBook(rates_file()), settings_path=path, splits=splits)

    @property
    def in_settings(self) -> bool:
        """Whether the settings are for this model, so that mirrors can be noted there."""
        return is_for(self._settings, self.choice)

    def drives(self) -> tuple[DriveFacts, ...]:
        """The drives the model is on without its mirrors. Raises: DriveError."""
        found: dict[str, DriveFacts] = {}
        for record in self.inventory.shards.values():
            facts = self._find_drive(record.path.resolve().parent)
            found.setdefault(facts.name, facts)
        return tuple(found.values())

    def places(self) -> tuple[Place, ...]:
        """Where copies could go, best first. Raises: DriveError."""
        return find_places(self.drives(), root=self._root, find_drive=self._find_drive, least_bytes=self._least_bytes)

    def rates(self) -> dict[str, float]:
        """What each of the model's drives gives: remembered, or assumed of its kind."""
        return {drive.name: drive_facts(drive.name, drive.kind, self._book).rate_bytes_s for drive in self.drives()}

    def rate_of(self, place: Place) -> float | None:
        """What a place gives, if that was ever measured."""
        return self._book.drive(place.drive.name)

    def measure(self, place: Place, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Measure a place and remember it. Raises: WriteError, DriveError."""
        if place.obstacle:
            raise TargetRefused(f"{shown(str(place.folder))} cannot be measured: {place.obstacle}")
        rate = measure_place(place.folder, should_stop=should_stop)
        if not should_stop():
            self._book.note_drive(place.drive.name, rate)
            self._book.save()
        return rate

    def propose(self, place: Place, *, target: Path | None = None, budget_bytes: int | None = None) -> Proposal:
        """What copies on a place would buy, in `target` or in the folder that a new mirror gets there.

        What an earlier copy left, whole or half, counts as there: the same proposal again finishes it.
        """
        folder = self.target_on(place) if target is None else target
        there = frozenset(self._recorded(folder))
        begun = {shard: allocated_bytes(folder, shard) for shard in self.headers if shard not in there}
        if budget_bytes is not None:
            copied = sum(self.headers[shard].file_bytes for shard in there if shard in self.headers)
            budget_bytes = max(0, budget_bytes - copied)
        return propose(
            self.uses, place, rates_bytes_s=self.rates(), place_rate_bytes_s=self.rate_of(place), there=there,
            begun_bytes=begun, budget_bytes=budget_bytes,
        )  # fmt: skip

    def target_on(self, place: Place) -> Path:
        """The folder that a new mirror gets on a place."""
        return place.folder / f"{FOLDER_NAME}-{self.choice.folder.resolve().name}"

    def place_of(self, target: Path) -> Place:
        """The place a folder lies on, which need not be there yet.

        Raises: TargetRefused for a drive that is not mounted, for the model's own folders, and for a folder on no
        file system that can hold files.
        """
        missing = unmounted_above(target.resolve(), root=self._root) or unmounted_above(target, root=self._root)
        if missing is not None:
            raise TargetRefused(
                f"{shown(str(target))} lies under {shown(str(missing))}, whose drive is not mounted",
                hint=f"Mount it first (`mount {missing}`); what is written there now would go to the system drive.",
            )
        if target.resolve() in {folder.resolve() for folder in (self.choice.folder, *self.splits)}:
            raise TargetRefused(f"{shown(str(target))} is the model's own folder", hint="Choose one on another drive.")
        above = next(path for path in (target, *target.absolute().parents) if path.is_dir())
        drive = self._find_drive(above)
        for place in self.places():
            if place.drive.name == drive.name and place.drive.mount_point == drive.mount_point:
                return place
        for place in find_places(self.drives(), root=self._root, find_drive=self._find_drive, least_bytes=0):
            if place.drive.name == drive.name:
                return place
        raise TargetRefused(
            f"{shown(str(target))} is on a file system that holds no files of one's own ({shown(drive.fs_type)})",
            hint="`artesian mirror scan` shows where copies can go.",
        )

    def copier(
        self,
        target: Path,
        place: Place | None,
        *,
        kind: Kind = "mirror",
        reserve: int | None = None,
        on_progress: Callable[[CopyProgress], None] = lambda _: None,
    ) -> Copier:
        """What copies into `target`; `reserve` bytes stay free, by default what `reserve_bytes` says of its place. The
        model's own folder, which may be where no copies are offered, has none.

        Raises: TargetRefused for a folder that holds the other kind of copies: a mirror's may go, a split's may not.
        """
        known = read_manifest(target)
        if known is not None and known.kind != kind and target.resolve() != self.choice.folder.resolve():
            raise TargetRefused(
                f"{shown(str(target))} is a {known.kind} already and cannot be a {kind} too",
                hint="Choose another folder, such as a new one beside it.",
            )
        drive = self._find_drive(target) if place is None else place.drive
        begun = Manifest(
            kind=kind, fingerprint=self.fingerprint, source=str(self.choice.folder.resolve()), drive=drive.name
        )
        if reserve is None:
            reserve = 0 if place is None else reserve_bytes(place)
        return Copier(target, begun, reserve_bytes=reserve, block_bytes=self._block_bytes, on_progress=on_progress)

    def jobs(self, shards: Sequence[str]) -> list[CopyJob]:
        """Copying these shards from where they lie. Raises: UsageError for one the model has not."""
        for shard in shards:
            if shard not in self.headers:
                raise UsageError(f"the model has no shard {shown(shard)}", hint="`artesian audit` lists them.")
        return [CopyJob(header=self.headers[shard], source=self.inventory.shards[shard].path) for shard in shards]

    def use(self, target: Path) -> bool:
        """Have later runs read from the mirror `target`; False when the settings are for another model.

        Raises: SettingsError.
        """
        self._look_again()
        if not self.in_settings or self._settings_path is None:
            return False
        mirrors = [*(self._settings.mirror or ())]
        if target.resolve() not in {as_named(name).resolve() for name in mirrors}:
            self._note_folder("mirror", [*mirrors, str(target.absolute())])
        return True

    def _note_folder(self, key: str, folders: Sequence[str]) -> None:
        """Name one more folder in the settings. Weights are of all folders or of none."""
        assert self._settings_path is not None
        self.unweighed = self._settings.drive_weight is not None
        self._settings = edit_settings(self._settings_path, {key: [*folders], "drive_weight": None})

    def disuse(self, target: Path) -> bool:
        """Have later runs leave the mirror `target` alone; whether the settings named it. Raises: SettingsError."""
        self._look_again()
        mirrors = [*(self._settings.mirror or ())]
        kept = [name for name in mirrors if as_named(name).resolve() != target.resolve()]
        if kept == mirrors or self._settings_path is None:
            return False
        more = kept or self._settings.split
        changes = {"mirror": kept or None, "drive_weight": self._weights_but(target) if more else None}
        self._settings = edit_settings(self._settings_path, changes)
        return True

    def _weights_but(self, folder: Path) -> list[str] | None:
        """The weights in the settings without a folder's."""
        weights = self._settings.drive_weight or ()
        return [weight for weight in weights if _weighed(weight) != folder.resolve()] or None

    def choose_split(self, place: Place) -> tuple[str, ...]:
        """The shards to move to a place so that both drives are busy equally long, of those in the model's folder."""
        here = [use for use in self.uses if self.inventory.shards[use.shard].path.parent == self.choice.folder]
        rates = self.rates()
        own = self._find_drive(self.choice.folder).name
        rate = rates.get(own, ASSUMED_OTHER_BYTES_S)
        return choose_split(here, place, rate_bytes_s=rate, place_rate_bytes_s=self.rate_of(place) or rate)

    def require_movable(self, shards: Sequence[str]) -> None:
        """Check that shards can be moved: noted in the settings, and files of their own. Raises: UsageError."""
        if not self.in_settings or self._settings_path is None:
            raise UsageError(
                "a split needs a model that the settings name: without its second folder it cannot be opened",
                hint=f"Put `model = {str(self.choice.folder.resolve())!r}` into {self._settings_path} first.",
            )
        linked = next((s for s in shards if self.inventory.shards[s].path.is_symlink()), None)
        if linked is not None:
            raise UsageError(
                f"{shown(linked)} is a link: what it points to belongs to something else",
                hint="Make a mirror instead (`artesian mirror copy`); it works with links.",
            )

    def finish_split(self, target: Path, shards: Sequence[str]) -> int:
        """Name the folder in the settings, then take away what was copied there; the bytes freed.

        In this order, so that at every moment the settings lead to every shard. Raises: SettingsError; UsageError when
        the settings have come to be for another model while it was copied; TargetRefused.
        """
        self._look_again()
        self.require_movable(shards)
        assert self._settings_path is not None
        splits = [*(self._settings.split or ())]
        if target.resolve() not in {as_named(name).resolve() for name in splits}:
            self._note_folder("split", [*splits, str(target.absolute())])
        return drop_sources([self.inventory.shards[shard].path for shard in shards], target)

    def finish_join(self, folder: Path, shards: Sequence[str]) -> int:
        """Take a split folder, whose shards are back in the model's folder, out of the settings, and its copies away.

        The copies and their record go last: until then the same command can do all that is left. Raises: SettingsError;
        TargetRefused when a shard is not back; WriteError.
        """
        own = self.choice.folder
        for shard in shards:
            is_link = (own / shard).exists() and (folder / shard).exists() and (own / shard).samefile(folder / shard)
            if is_link or not self._is_whole(own / shard, shard):
                raise TargetRefused(f"{shown(shard)} is not back in {shown(str(own))}: its copy stays")
        self._look_again()
        kept = [n for n in self._settings.split or () if as_named(n).resolve() != folder.resolve()]
        if self._settings_path is not None and kept != [*(self._settings.split or ())]:
            more = kept or self._settings.mirror
            changes = {"split": kept or None, "drive_weight": self._weights_but(folder) if more else None}
            self._settings = edit_settings(self._settings_path, changes)
        remove_manifest(own, WRITE)
        (own / LOCK_NAME).unlink(missing_ok=True)
        return remove_copies(folder, frozenset(shards).__contains__).freed_bytes

    def record_of(self, folder: Path) -> Manifest:
        """The record of this model's copies in a folder. Raises: TargetRefused when there is none; BadManifest."""
        manifest = read_manifest(folder)
        if manifest is None:
            raise TargetRefused(
                f"{shown(str(folder))} has no record of copies made here",
                hint="For copies made by hand, --verify-mirror compares samples with the model at the start of a chat.",
            )
        if manifest.fingerprint != self.fingerprint:
            raise TargetRefused(
                f"{shown(str(folder))} is the mirror of another checkpoint ({shown(manifest.source)})",
                hint="Name the model it belongs to with --model.",
            )
        return manifest

    def check(
        self,
        folder: Path,
        *,
        everything: bool,
        on_progress: Callable[[WorkProgress], None],
        should_stop: Callable[[], bool],
    ) -> list[CheckedShard]:
        """Compare the copies in a folder with what was copied: every byte, or both ends and some blocks of each.

        Raises: Stopped; as `record_of`.
        """
        manifest = self.record_of(folder)
        sizes = [(one.file_bytes, one.block_bytes) for one in manifest.shards.values()]
        total = sum(size if everything else min(size, (SAMPLED_BLOCKS + 2) * block) for size, block in sizes)
        began, done = time.monotonic(), 0

        def count(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            elapsed_s = time.monotonic() - began
            on_progress(
                WorkProgress(what="checking", done_bytes=done, total_bytes=max(total, done), elapsed_s=elapsed_s)
            )

        found = list(
            check_copies(
                folder, manifest, everything=everything, sources=self.source_of, on_bytes=count, should_stop=should_stop
            )
        )
        if should_stop():
            raise Stopped("checking was stopped")
        return found

    def states(self, extra: Sequence[Path] = ()) -> tuple[MirrorState, ...]:
        """The mirrors of the settings, those on every place, and `extra`, as they are now."""
        folders = {folder.resolve(): folder for folder in saved_folders(self._settings, self.choice)}
        saved = frozenset(folders)
        for place in self.places():
            folders.setdefault(self.target_on(place).resolve(), self.target_on(place))
        for folder in extra:
            folders.setdefault(folder.resolve(), folder)
        made = [self._state(folder, folder.resolve() in saved) for folder in folders.values()]
        asked = {folder.resolve() for folder in extra}
        return tuple(one for one in made if one.in_settings or one.shards or one.folder.resolve() in asked)

    def source_of(self, shard: str) -> Path | None:
        """The model's own file of a shard."""
        record = self.inventory.shards.get(shard)
        return None if record is None else record.path

    def has_other(self, shard: str, folder: Path) -> bool:
        """Whether the model's folders besides `folder` hold a whole file of a shard: of its size, with its header."""
        record = self.inventory.shards.get(shard)
        if record is None or shard not in self.headers:
            return False
        copy = folder / shard
        others = (path for path in (record.path, *record.other_paths) if path.exists())
        # A link to the copy is no other file, whatever folder it is in.
        return any(self._is_whole(path, shard) for path in others if not (copy.exists() and path.samefile(copy)))

    def _look_again(self) -> None:
        """Copying takes hours, in which the settings may have changed, also by another copy. Raises: SettingsError."""
        if self._settings_path is not None:
            self._settings = load_settings(self._settings_path)

    def _state(self, folder: Path, in_settings: bool) -> MirrorState:
        problem, manifest, drive = "", None, ""
        if (missing := unmounted_above(folder, root=self._root)) is not None:
            problem = f"its drive is not mounted at {missing}"
        elif not folder.is_dir():
            problem = "the folder is not there"
        else:
            try:
                manifest = read_manifest(folder)
                drive = self._find_drive(folder).name
            except (BadManifest, StorageError) as error:
                problem = str(error)
        if manifest is not None and manifest.fingerprint != self.fingerprint:
            problem = f"it is of another checkpoint ({shown(manifest.source)})"
        shards = tuple(manifest.shards) if manifest is not None and not problem else ()
        if manifest is None and not problem:  # made by hand: what has a shard's name and size
            shards = tuple(s for s, h in self.headers.items() if _size(folder / s) == h.file_bytes)
        missing_shards = [shard for shard in shards if _size(folder / shard) != self.headers[shard].file_bytes]
        if missing_shards and not problem:
            problem = f"{len(missing_shards)} of its copies are missing or cut, first {shown(missing_shards[0])}"
        return MirrorState(
            folder=folder,
            kind=manifest.kind if manifest is not None else "mirror",
            drive=drive,
            shards=shards,
            copied_bytes=sum(self.headers[shard].file_bytes for shard in shards if shard in self.headers),
            read_share=sum(use.read_share for use in self.uses if use.shard in shards),
            rate_bytes_s=self._book.drive(drive) if drive else None,
            in_settings=in_settings,
            problem=problem,
        )

    def _is_whole(self, path: Path, shard: str) -> bool:
        try:
            header = read_header(path, shard)
        except StorageError:
            return False
        return header.digest == self.headers[shard].digest and header.file_bytes == self.headers[shard].file_bytes

    def _recorded(self, folder: Path) -> Sequence[str]:
        try:
            manifest = read_manifest(folder)
        except BadManifest:
            return ()
        return () if manifest is None or manifest.fingerprint != self.fingerprint else tuple(manifest.shards)


def expert_uses(headers: Mapping[str, ShardHeader], shares: Mapping[int, Sequence[float]]) -> tuple[ShardUse, ...]:
    """What is read of each shard while answering: its experts, by their layer's traffic, each layer alike.

    `shares` are those of the usage profile, by layer; a layer it does not know counts every expert alike. A draft stage
    is the layer behind the last, and a profile that does not know it is of somebody who answers without drafts. All
    else is read once at start, or are engram rows of a few kilobytes a token, so shards without experts count nothing.
    """
    weights: dict[str, float] = dict.fromkeys(headers, 0.0)
    found: list[tuple[str, bool, int, int, int]] = []
    n_experts: dict[tuple[bool, int], int] = {}
    for shard, header in headers.items():
        for name, entry in header.tensors.items():
            if match := _EXPERT.match(name):
                drafts, number, expert = match[1] == "mtp", int(match[2]), int(match[3])
                n_experts[drafts, number] = max(n_experts.get((drafts, number), 0), expert + 1)
                found.append((shard, drafts, number, expert, entry.extent.length))
    n_layers = max((number + 1 for drafts, number in n_experts if not drafts), default=0)
    for shard, drafts, number, expert, n_bytes in found:
        known = shares.get(n_layers + number if drafts else number, ())
        share = 0.0 if drafts and shares and not known else 1 / n_experts[drafts, number]
        weights[shard] += (known[expert] if expert < len(known) else share) * n_bytes
    total = sum(weights.values()) or 1.0
    return tuple(
        ShardUse(shard=shard, file_bytes=header.file_bytes, read_share=weights[shard] / total)
        for shard, header in headers.items()
    )


def _weighed(text: str) -> Path:
    return as_named(text.rpartition("=")[0]).resolve()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
