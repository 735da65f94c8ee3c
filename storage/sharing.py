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


class _Plan:
    """One way to share a batch out, and when each drive would be done."""

    def __init__(
        self,
        items: Sequence[Item],
        allowed: frozenset[str],
        weights: Mapping[str, float],
        waiting: Mapping[str, int],
    ) -> None:
        self._items = items
        # A drive outside `allowed` still serves what nobody else has.
        self._drives = [tuple(d for d in item.drives if d in allowed) or item.drives for item in items]
        fastest = max(weights[drive] for item in items for drive in item.drives) if items else 1.0
        self._rates = {drive: max(weights[drive], fastest * 1e-9) or 1.0 for drives in self._drives for drive in drives}
        self.drive_of = [pick(item.key, drives, weights) for item, drives in zip(items, self._drives, strict=True)]
        self._end = {drive: waiting.get(drive, 0) / rate for drive, rate in self._rates.items()}
        for item, drive in zip(items, self.drive_of, strict=True):
            self._end[drive] += self._cost(item, drive)

    @property
    def end(self) -> float:
        """When the last drive is done."""
        return max((self._end[drive] for drive in set(self.drive_of)), default=0.0)

    def even_out(self) -> None:
        """Move items off the drive that ends last while the later of the two ends comes sooner by it."""
        while True:
            last = max(set(self.drive_of), key=lambda drive: (self._end[drive], drive), default="")
            move: tuple[float, int, str] | None = None
            for i, drive in enumerate(self.drive_of):
                for other in self._drives[i] if drive == last else ():
                    if other != last:
                        item = self._items[i]
                        end = max(self._end[other] + self._cost(item, other), self._end[last] - self._cost(item, last))
                        if end < self._end[last] * (1 - 1e-9) and (move is None or (end, i, other) < move):
                            move = end, i, other
            if move is None:
                return
            _, i, other = move
            self._end[last] -= self._cost(self._items[i], last)
            self._end[other] += self._cost(self._items[i], other)
            self.drive_of[i] = other

    def _cost(self, item: Item, drive: str) -> float:
        return (item.n_bytes + REQUEST_BYTES) / self._rates[drive]
