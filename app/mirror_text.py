"""Copies on other drives, in words: for the commands, the screen and line mode alike."""

from collections.abc import Iterator

from app.mirroring import MirrorDesk, MirrorState
from app.report import format_bytes, format_seconds
from app.sanitize import one_line
from storage.mirroring.places import Place
from storage.mirroring.proposal import Proposal


def facts_of(made: Proposal) -> Iterator[tuple[str, str]]:
    """Label and text of each thing to know; a lone "no" when there is nothing to gain."""
    place = made.place
    if made.why_not and (place.obstacle or place.shares_with or not made.shards):
        yield "no", made.why_not
        return
    n_shards = len(made.shards)
    fits = "" if made.whole else " (what fits)"
    copies = f"{n_shards} shard{'' if n_shards == 1 else 's'}, {format_bytes(made.copy_bytes)}{fits}"
    yield "copies", f"{copies}, for {made.read_share:.0%} of the expert reads"
    if made.gain is None:
        yield "gain", "not known before the drive is measured"
    else:
        yield "gain", f"reads {made.gain:.2f} times as fast as now"
    if made.copy_s is not None:
        yield "takes", f"about {format_seconds(made.copy_s)} to copy and read back"
    if made.costs_ram:
        yield "memory", "gone after a restart, and the expert cache has that much less"
    if made.why_not:
        yield "but", made.why_not


def place_remark(place: Place) -> str:
    """What is to be known of a place before anything else, or ""."""
    if place.obstacle:
        return place.obstacle
    if place.shares_with:
        return "the model's own disk: no more speed"
    return "memory: gone after a restart" if place.kind == "memory" else ""


def state_text(state: MirrorState, desk: MirrorDesk) -> str:
    """One mirror, for a person."""
    used = "used" if state.in_settings else "not in the settings"
    head = f"{one_line(str(state.folder))}: {state.kind}, {used}"
    if state.problem:
        head += f"\n  {state.problem}"
    n_shards = len(state.shards)
    size = f"{n_shards} of {len(desk.headers)} shards, {format_bytes(state.copied_bytes)}"
    rate = (
        "" if state.rate_bytes_s is None else f", drive {one_line(state.drive)} at {format_bytes(state.rate_bytes_s)}/s"
    )
    return f"{head}\n  {size}, {state.read_share:.0%} of the expert reads{rate}"
