"""What copies on a drive would buy: which shards, how many bytes, how long copying takes, how much faster reads get.

Pure: numbers in, numbers out. The one thing a reader would get wrong: a second drive helps only with what it holds.
With a share `c` of the reads on both drives the rate is the sum of the two as long as `c` is at least the second's part
of it; below that the first drive still reads 1 - c alone, and that is what takes the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.mirroring.places import Place

RESERVE_SHARE = 0.05
MOST_RESERVE_BYTES = 20 * 10**9
"""Of a file system a twentieth stays free, but not more than this: full ones get slow, and others need room too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUse:
    """One shard, and what is read of it while answering."""

    shard: str
    file_bytes: int
    read_share: float
    """Its part of all bytes read while answering, 0 to 1: from the usage profile, or from what lies in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Copies on one place."""

    place: Place
    shards: tuple[str, ...]
    """In the order of copying: what is read most for its size first."""
    copy_bytes: int
    copy_s: float | None
    """How long copying and reading back take; None when the place was not measured."""
    read_share: float
    """Part of all reads that the copies can serve."""
    place_rate_bytes_s: float | None
    gain: float | None
    """Read rate with the copies over the rate without: 1 is no gain; None when a rate is not known."""
    whole: bool
    """Whether every shard fits."""
    costs_ram: bool
    """Whether the copies lie in memory: they are gone after a restart, and the expert cache has that much less."""
    why_not: str
    """Why it is not worth doing, or ""."""


def reserve_bytes(place: Place) -> int:
    """What stays free on a place."""
    return min(int(place.total_bytes * RESERVE_SHARE), MOST_RESERVE_BYTES)


def propose(
    uses: Sequence[ShardUse],
    place: Place,
    *,
    rates_bytes_s: Mapping[str, float],
    place_rate_bytes_s: float | None,
    there: frozenset[str] = frozenset(),
    begun_bytes: Mapping[str, int] | None = None,
    budget_bytes: int | None = None,
) -> Proposal:
    """The best set of copies on `place`.

    `rates_bytes_s` are the cold read rates of the drives the model is on now, `place_rate_bytes_s` that of the place.
    `there` are shards the place has copies of already; `budget_bytes` limits what is copied, as does the free space.
    `begun_bytes` is what interrupted copies of some shards have taken of that.
    """
    room, begun = max(0, place.free_bytes - reserve_bytes(place)), begun_bytes or {}
    chosen, copy_bytes, taken_bytes = [], 0, 0
    by_worth = sorted(uses, key=lambda use: (-use.read_share / max(use.file_bytes, 1), use.shard))
    for use in by_worth:
        needed = taken_bytes + use.file_bytes - begun.get(use.shard, 0)
        if use.shard in there or use.read_share <= 0 or needed > room:
            continue
        if budget_bytes is not None and copy_bytes + use.file_bytes > budget_bytes:
            continue
        chosen.append(use.shard)
        copy_bytes, taken_bytes = copy_bytes + use.file_bytes, needed
    covered = sum(use.read_share for use in uses if use.shard in chosen or use.shard in there)
    now = sum(rates_bytes_s.values())
    gain = None
    if place_rate_bytes_s is not None and now > 0:
        gain = 1.0 if place.shares_with else gain_of(now, place_rate_bytes_s, covered)
    slowest = min([rate for rate in (now, place_rate_bytes_s) if rate], default=None)
    return Proposal(
        place=place,
        shards=tuple(chosen),
        copy_bytes=copy_bytes,
        # Read once and written once, side by side; then read back. Drives write slower than they read, often by half.
        copy_s=None if place_rate_bytes_s is None or not slowest else copy_bytes * (2 / slowest + 1 / slowest),
        read_share=covered,
        place_rate_bytes_s=place_rate_bytes_s,
        gain=gain,
        whole=all(use.shard in chosen or use.shard in there for use in uses if use.read_share > 0),
        costs_ram=place.kind == "memory",
        why_not=_why_not(place, chosen, there, gain),
    )


def choose_split(
    uses: Sequence[ShardUse], place: Place, *, rate_bytes_s: float, place_rate_bytes_s: float
) -> tuple[str, ...]:
    """The shards to move to `place` so that both drives are busy equally long: each serves what the other lacks.

    Taken in the order of what is read most for its size while the place's part, its rate over the sum, is not passed
    and they fit. A mirror gains the same and keeps a copy; a split is for where there is no room for one.
    """
    room = max(0, place.free_bytes - reserve_bytes(place))
    part = place_rate_bytes_s / (rate_bytes_s + place_rate_bytes_s)
    chosen, share = [], 0.0
    for use in sorted(uses, key=lambda use: (-use.read_share / max(use.file_bytes, 1), use.shard)):
        if use.read_share > 0 and share + use.read_share <= part + 1e-9 and use.file_bytes <= room:
            chosen.append(use.shard)
            share += use.read_share
            room -= use.file_bytes
    return tuple(chosen)


def gain_of(rate: float, second: float, share: float) -> float:
    """How many times faster reads get when a drive of rate `second` can serve `share` of what one of `rate` reads.

    The two read side by side; the second gets its part `second / (rate + second)`, or all it can serve if that is less.
    """
    if rate <= 0 or second <= 0 or share <= 0:
        return 1.0
    part = min(share, second / (rate + second))
    return 1 / max(1 - part, part * rate / second)


def _why_not(place: Place, chosen: Sequence[str], there: frozenset[str], gain: float | None) -> str:
    if place.obstacle:
        return place.obstacle
    if place.shares_with:
        return f"it is the same disk as the model's ({', '.join(place.shares_with)}): twice the space, no more speed"
    if there and not chosen:
        return "what fits is there already"
    if not chosen:
        return "no shard fits"
    if gain is not None and gain < 1.02:
        return "the drive is too slow to help"
    return ""
