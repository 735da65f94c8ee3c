"""Opens a checkpoint over all the drives it was given, and says in words what became of each of them. No torch."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from app.progress import CountProgress
from app.rates import RateBook
from app.reading import Reading
from app.report import format_bytes
from engine.errors import Stopped
from storage.batch import DEFAULT_DEPTH
from storage.checkpoint import Checkpoint
from storage.copies import FolderReport, FoundCopies
from storage.drives import drive_of
from storage.errors import shown
from storage.extents import Extent
from storage.mirrorcheck import verify_mirror
from storage.replica_files import ReplicaFiles
from storage.replicas import Demotion
from storage.weighing import have_choice, weigh_drives

Say = Callable[[str], None]
"""Takes one sentence for the user."""

_MOST_REFUSED = 3
"""Files named one by one for each folder; a mirror of another revision has 48 of them."""


def open_checkpoint(folder: Path, reading: Reading, say: Say) -> Checkpoint:
    """The checkpoint over its folder, splits and mirrors. What is refused is said, and so is every later failure.

    Raises: what `Checkpoint.open` raises; never for a mirror.
    """
    checkpoint = Checkpoint.open(
        folder,
        mirrors=reading.mirrors,
        splits=reading.splits,
        weights=reading.weights,
        on_demotion=Demotions(say).tell,
        find_drive=drive_of,
    )
    for stand_in in checkpoint.stand_ins:
        why = "is missing" if stand_in.error is None else f"cannot be used ({stand_in.error})"
        say(f"Shard {shown(stand_in.shard)} {why}; {shown(str(stand_in.path))} is read instead.")
    for report in checkpoint.replicas.found.reports:
        for text in _report_texts(report, checkpoint.replicas.found):
            say(text)
    return checkpoint


class Demotions:
    """Says what was demoted: every drive, and the first few files of each drive. Called from reading threads."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._n_files: Counter[str] = Counter()

    def tell(self, demotion: Demotion) -> None:
        """Say one, unless its drive had enough of them."""
        if not demotion.whole_drive:
            self._n_files[demotion.drive] += 1
            if self._n_files[demotion.drive] == _MOST_REFUSED + 1:
                self._say(f"More files of drive {shown(demotion.drive)} fail; they are not named one by one.")
            if self._n_files[demotion.drive] > _MOST_REFUSED:
                return
        self._say(demotion_text(demotion))


def demotion_text(demotion: Demotion) -> str:
    """What failed, how, and what goes on without it."""
    what = f"drive {shown(demotion.drive)}" if demotion.whole_drive else f"this file on {shown(demotion.drive)}"
    if not demotion.n_left:
        return f"{demotion.error}. No other drive holds {shown(demotion.path.name)}."
    others = "another drive" if demotion.n_left == 1 else f"{demotion.n_left} other drives"
    return f"{demotion.error}. It goes on with {others}, without {what}."


def check_mirrors(
    checkpoint: Checkpoint,
    mirrors: Sequence[Path],
    say: Say,
    on_progress: Callable[[CountProgress], None],
    should_stop: Callable[[], bool],
) -> None:
    """Compare samples of the mirrors' payload with the shards'. Copies that differ are refused, with the first
    difference, and not read.

    Raises: Stopped.
    """
    started = time.monotonic()
    total = sum(len(report.accepted) for report in checkpoint.replicas.found.reports if report.role == "mirror")
    done = 0
    for folder in mirrors:
        n_equal = checked_bytes = 0
        for checked in verify_mirror(checkpoint.replicas, folder, checkpoint.headers, should_stop=should_stop):
            done += 1
            checked_bytes += checked.checked_bytes
            if checked.first_difference is not None:
                say(f"{checked.error}. It is not used.")
            elif checked.error is not None:
                say(f"{shown(str(checked.copy.path))} could not be compared: {checked.error}")
            else:
                n_equal += 1
            elapsed_s = time.monotonic() - started
            on_progress(CountProgress(what="comparing", unit="copies", done=done, total=total, elapsed_s=elapsed_s))
        if should_stop():
            raise Stopped("comparing the mirrors was stopped")
        if n_equal:
            copies = "copy is" if n_equal == 1 else "copies are"
            size = format_bytes(checked_bytes)
            say(f"The mirror {shown(str(folder))}: {n_equal} {copies} as the shards are, in {size} compared.")


def measure_weights(
    checkpoint: Checkpoint,
    experts: Callable[[], Sequence[Sequence[Extent]]],
    reading: Reading,
    say: Say,
    book: RateBook | None = None,
) -> None:
    """Have reads shared by the rates of the drives, where a shard can be read from more than one: those remembered in
    `book`, else those they give now, which are then remembered.

    `experts` gives the extents of each. Raises: what opening a shard raises.
    """
    if not have_choice(checkpoint.replicas, checkpoint.headers):
        return
    names = sorted(checkpoint.replicas.drives)
    key = f"{' and '.join(names)}, {reading.io}, depth {reading.depth or DEFAULT_DEPTH}"
    known = None if book is None else book.shared(key)
    if known is not None and sorted(known) == names:
        checkpoint.replicas.weigh(known)
        _say_shares(known, "Measured before", say)
        return
    wanted = experts()
    shards = list(dict.fromkeys(extent.shard for item in wanted for extent in item))
    with ReplicaFiles.open(checkpoint.replicas, shards, reading.io) as files:
        rates = weigh_drives(files, wanted, depth=reading.depth or DEFAULT_DEPTH)
    measured = {rate.drive: rate.rate_bytes_s for rate in rates if rate.error is None}
    if len(measured) > 1:
        _say_shares(measured, "Measured now", say)
    if book is not None and sorted(measured) == names:
        book.note_shared(key, measured)
        book.save()


def _say_shares(rates: Mapping[str, float], when: str, say: Say) -> None:
    each = ", ".join(f"{shown(drive)} {format_bytes(rate)}/s" for drive, rate in rates.items())
    say(f"{len(rates)} drives share the reads, most where they end soonest. {when}: {each}.")


def _report_texts(report: FolderReport, found: FoundCopies) -> Iterator[str]:
    name = f"{'mirror' if report.role == 'mirror' else 'folder'} {shown(str(report.folder))}"
    if report.error is not None:
        yield f"The {name} is not used: {report.error}"
        return
    for refused in report.refused[:_MOST_REFUSED]:
        yield f"{refused.error}. It is not used."
    if len(report.refused) > _MOST_REFUSED:
        yield f"In the {name}, {len(report.refused) - _MOST_REFUSED:,} more files are not used."
    if report.role == "mirror" and not report.accepted and not report.refused:
        yield f"The {name} holds no shard of this checkpoint."
    if report.role == "split" and not report.accepted and not report.refused:
        yield f"The {name} holds no shard of this checkpoint that its other folders lack."
    if report.role == "mirror" and report.same_drive:
        drives = sorted({c.drive for some in found.copies.values() for c in some if c.folder == report.folder})
        yield (
            f"The {name} lies on the same disk as what it copies ({shown(', '.join(drives))}): "
            "it stands in for damaged files, but gives no more speed."
        )
