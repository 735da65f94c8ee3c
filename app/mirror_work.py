"""The wizard's pieces of work, as what a `DriveJob` runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from app.drive_job import DriveJob
from app.mirroring import UNWEIGHED, MirrorDesk
from app.progress import WorkProgress
from app.report import format_bytes
from engine.errors import Stopped
from storage.errors import shown
from storage.mirroring.copying import CopyProgress
from storage.mirroring.places import Place
from storage.mirroring.undoing import remove_copies

Run = Callable[[DriveJob], str]


def measure_job(desk: MirrorDesk, place: Place) -> Run:
    """Measure a place and remember it."""

    def run(job: DriveJob) -> str:
        rate = desk.measure(place, job.stopping)
        if job.stopping():
            raise Stopped("measuring was stopped")
        return f"{shown(str(place.folder))} reads {format_bytes(rate)}/s."

    return run


def copy_job(desk: MirrorDesk, place: Place, target: Path, shards: Sequence[str]) -> Run:
    """Copy shards to a folder on a place, and have later runs read from it."""

    def run(job: DriveJob) -> str:
        def show(progress: CopyProgress) -> None:
            job.progress = WorkProgress(
                what=progress.phase,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                elapsed_s=progress.elapsed_s,
            )

        desk.place_of(target)  # refuses a drive that was unmounted since the screen was drawn
        copier = desk.copier(target, place, on_progress=show)
        job.use(copier)
        made = copier.run(desk.jobs(shards))
        if job.stopping():
            raise Stopped("Copying was stopped; begun again, it goes on where it was")
        noted = desk.use(target)
        n_bytes = sum(desk.headers[shard].file_bytes for shard in made)
        use = "It is read from with the next start." if noted else f"To read from it: --mirror {shown(str(target))}"
        use += f" {UNWEIGHED}" if desk.unweighed else ""
        return f"Copied {format_bytes(n_bytes)} to {shown(str(target))}, each copy read back equal. {use}"

    return run


def check_job(desk: MirrorDesk, target: Path) -> Run:
    """Compare every byte of the copies in a folder with what was copied."""

    def run(job: DriveJob) -> str:
        def show(progress: WorkProgress) -> None:
            job.progress = progress

        found = desk.check(target, everything=True, on_progress=show, should_stop=job.stopping)
        done = sum(one.checked_bytes for one in found)
        bad = [one.error for one in found if one.error is not None]
        if bad:
            return f"{len(bad)} of {len(found)} copies are damaged: {bad[0]}. {bad[0].hint}"
        return f"All {len(found)} copies are as they were copied, {format_bytes(done)} read."

    return run


def remove_job(desk: MirrorDesk, target: Path) -> Run:
    """Take the copies in a folder away, and its place in the settings."""

    def run(job: DriveJob) -> str:
        removed = remove_copies(target, lambda shard: desk.has_other(shard, target))
        desk.disuse(target)
        return f"Removed {len(removed.shards)} copies, {format_bytes(removed.freed_bytes)} are free again."

    return run
