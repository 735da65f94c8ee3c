"""Who reads what: items shared out over drives by a golden-ratio hash, and a batch evened out so that no drive holds it
up.

Pure arithmetic on names, bytes and weights. A single item goes by its hash alone, so over a long run each drive gets
its share and hot neighbours spread. That is not enough for a batch that is waited for as a whole: one expert on a drive
ten times slower takes longer than six on the fast one. So a batch starts from the hashes, and items leave the drive
that would finish last as long as that makes the end come sooner; and slow drives are left out when that is sooner
still.

Source of the hash: Knuth, The Art of Computer Programming 3, 6.4 (multiplicative hashing); consecutive numbers land
evenly (the three-distance theorem).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd."""
REQUEST_BYTES = 64 << 10
"""What beginning a request costs, as bytes that could have been read meanwhile; matters for rows, not for experts."""

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Bytes that are read together from one drive."""

    key: int
    """Number by which it is hashed: an expert's flat index, a row's number."""
    n_bytes: int
    drives: tuple[str, ...]
    """Drives that have it; at least one."""


def pick(key: int, drives: Sequence[str], weights: Mapping[str, float]) -> str:
    """The drive of `drives` that item `key` belongs to; each gets a share of the keys in proportion to its weight.

    Drives of weight 0 get nothing unless all are.
    """
    if len(drives) == 1:
        return drives[0]
    total = sum(weights[drive] for drive in drives)
    point = (key * GOLDEN & _MASK) / (_MASK + 1)  # in [0, 1)
    if total <= 0:
        return drives[int(point * len(drives))]
    left = point * total
    for drive in drives:
        left -= weights[drive]
        if left < 0:
            return drive
    return next(drive for drive in reversed(drives) if weights[drive] > 0)  # rounding took the last one past the end


def share_out(
    items: Sequence[Item], weights: Mapping[str, float], waiting_bytes: Mapping[str, int] | None = None
) -> list[str]:
    """The drive for each item of a batch that is waited for as a whole.

    `weights` are rates, in any one unit; `waiting_bytes` is what the drives have yet to read of earlier batches. By
    those rates the batch never ends later than the same batch shared out without the slowest drive (or the slowest two,
    ...), as long as the others have every item.
    """
    waiting = waiting_bytes or {}
    used = sorted({drive for item in items for drive in item.drives}, key=lambda drive: (-weights[drive], drive))
    best: list[str] = []
    best_end = float("inf")
    for n_fastest in range(len(used), 0, -1):
        plan = _Plan(items, frozenset(used[:n_fastest]), weights, waiting)
        plan.even_out()
        if plan.end < best_end * (1 - 1e-9):
            best, best_end = plan.drive_of, plan.end
    return best


_Kind = tuple[int, tuple[str, ...]]
"""Bytes of an item, and the drives it may be read from."""


class _Plan:
    """One way to share a batch out, and when each drive would be done."""

    def __init__(
        self,
        items: Sequence[Item],
        allowed: frozenset[str],
        weights: Mapping[str, float],
        waiting: Mapping[str, int],
    ) -> None:
        # A drive outside `allowed` still serves what nobody else has.
        possible = [tuple(d for d in item.drives if d in allowed) or item.drives for item in items]
        fastest = max(weights[drive] for item in items for drive in item.drives) if items else 1.0
        self._rates = {drive: max(weights[drive], fastest * 1e-9) or 1.0 for drives in possible for drive in drives}
        self.drive_of = [pick(item.key, drives, weights) for item, drives in zip(items, possible, strict=True)]
        self._end = {drive: waiting.get(drive, 0) / rate for drive, rate in self._rates.items()}
        # Items that are alike but for their numbers, by drive: of these, which there are a thousand rows of, the first
        # is as good to move as any.
        self._held: dict[str, dict[_Kind, list[int]]] = {drive: {} for drive in self._rates}
        for i, (item, drives, drive) in enumerate(zip(items, possible, self.drive_of, strict=True)):
            self._end[drive] += self._cost(item.n_bytes, drive)
            self._held[drive].setdefault((item.n_bytes, drives), []).append(i)  # ascending, so a heap

    @property
    def end(self) -> float:
        """When the last drive is done."""
        return max((self._end[drive] for drive in set(self.drive_of)), default=0.0)

    def even_out(self) -> None:
        """Move items off the drive that ends last while the later of the two ends comes sooner by it."""
        while True:
            used = (drive for drive, kinds in self._held.items() if kinds)
            last = max(used, key=lambda drive: (self._end[drive], drive), default="")
            move: tuple[float, int, str, _Kind] | None = None
            for kind, numbers in self._held.get(last, {}).items():
                n_bytes, drives = kind
                for other in drives:
                    if other != last:
                        end = max(
                            self._end[other] + self._cost(n_bytes, other), self._end[last] - self._cost(n_bytes, last)
                        )
                        this = (end, numbers[0], other, kind)
                        if end < self._end[last] * (1 - 1e-9) and (move is None or this < move):
                            move = this
            if move is None:
                return
            self._move(move[3], last, move[2])

    def _move(self, kind: "_Kind", last: str, other: str) -> None:
        """The first item of a kind goes from one drive to another."""
        i = heappop(self._held[last][kind])
        if not self._held[last][kind]:
            del self._held[last][kind]
        heappush(self._held[other].setdefault(kind, []), i)
        self._end[last] -= self._cost(kind[0], last)
        self._end[other] += self._cost(kind[0], other)
        self.drive_of[i] = other

    def _cost(self, n_bytes: int, drive: str) -> float:
        return (n_bytes + REQUEST_BYTES) / self._rates[drive]
