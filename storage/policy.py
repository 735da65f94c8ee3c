"""Who goes next when a full table needs room: replacement policies behind one protocol.

A policy knows keys and their order, nothing of slots, bytes or pins. A key that must stay (pinned) is not taken out of
the policy; `victim` is told which keys may go and passes over the others. Those are the keys of the step being worked
on, so a victim costs a constant number of operations beside them, whatever the size of the table.

Sources of the designs: segmented LRU, Karedla et al. 1994; CLOCK, Corbató 1968; S3-FIFO, Yang et al. 2023; the random
choice among the oldest entries, and what an exact LRU does on a cyclic working set, from the traces published for other
engines.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
Evictable = Callable[[K], bool]


class Policy(Protocol[K]):
    """The order in which keys leave. Every key is admitted once, then hit any number of times, then leaves once."""

    def admit(self, key: K) -> None:
        """`key` has come in."""

    def hit(self, key: K) -> None:
        """`key` was asked for while in."""

    def victim(self, evictable: Evictable[K]) -> K | None:
        """Remove and return the key to give up, or None when no key may go."""

    def forget(self, key: K) -> None:
        """`key` has left for another reason than `victim`."""


def _oldest(keys: OrderedDict[K, None], evictable: Evictable[K]) -> K | None:
    """The first key in order that may go, removed; None when none may."""
    for key in keys:
        if evictable(key):
            del keys[key]
            return key
    return None


class Lru(Policy[K]):
    """The key not asked for the longest goes. Worst possible when a working set slightly larger than the table
    repeats.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self._keys: OrderedDict[K, None] = OrderedDict()

    def admit(self, key: K) -> None:
        self._keys[key] = None

    def hit(self, key: K) -> None:
        self._keys.move_to_end(key)

    def victim(self, evictable: Evictable[K]) -> K | None:
        return _oldest(self._keys, evictable)

    def forget(self, key: K) -> None:
        del self._keys[key]


class RandomOldest(Policy[K]):
    """A random one of the oldest few percent goes: LRU that does not fall off the cliff of a repeating working set.

    The oldest part is kept as an array beside the ordered rest, so that a choice, and the refill it needs, are O(1).
    """

    SHARE = 0.08

    def __init__(self, size: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._young: OrderedDict[K, None] = OrderedDict()
        self._old: list[K] = []
        self._place: dict[K, int] = {}

    def admit(self, key: K) -> None:
        self._young[key] = None

    def hit(self, key: K) -> None:
        if key in self._young:
            self._young.move_to_end(key)
        else:
            self._take_old(key)
            self._young[key] = None

    def victim(self, evictable: Evictable[K]) -> K | None:
        target = max(1, round(self.SHARE * (len(self._young) + len(self._old))))
        while len(self._old) < target and self._young:
            key, _ = self._young.popitem(last=False)
            self._place[key] = len(self._old)
            self._old.append(key)
        for _ in range(len(self._old)):
            key = self._old[self._random.randrange(len(self._old))]
            if evictable(key):
                self._take_old(key)
                return key
        for key in self._old:  # an unlucky draw among mostly pinned keys
            if evictable(key):
                self._take_old(key)
                return key
        return _oldest(self._young, evictable)

    def forget(self, key: K) -> None:
        if key in self._young:
            del self._young[key]
        else:
            self._take_old(key)

    def _take_old(self, key: K) -> None:
        place, last = self._place.pop(key), self._old.pop()
        if last != key:
            self._old[place] = last
            self._place[last] = place


class SegmentedLru(Policy[K]):
    """Two LRU lists: a key asked for again moves to the protected one; the unprotected oldest goes first."""

    PROTECTED_SHARE = 0.8

    def __init__(self, size: int, seed: int = 0) -> None:
        self._limit = max(1, int(self.PROTECTED_SHARE * size))
        self._probation: OrderedDict[K, None] = OrderedDict()
        self._protected: OrderedDict[K, None] = OrderedDict()

    def admit(self, key: K) -> None:
        self._probation[key] = None

    def hit(self, key: K) -> None:
        if key in self._protected:
            self._protected.move_to_end(key)
            return
        del self._probation[key]
        self._protected[key] = None
        if len(self._protected) > self._limit:
            demoted, _ = self._protected.popitem(last=False)
            self._probation[demoted] = None

    def victim(self, evictable: Evictable[K]) -> K | None:
        key = _oldest(self._probation, evictable)
        return key if key is not None else _oldest(self._protected, evictable)

    def forget(self, key: K) -> None:
        del (self._probation if key in self._probation else self._protected)[key]


class Clock(Policy[K]):
    """First in, first out, with another chance for each time a key was asked for, up to `CHANCES`.

    Three chances, not the one of the original: fewer misses at every size of every trace tried (`artesian bench
    cache`).
    """

    CHANCES = 3

    def __init__(self, size: int, seed: int = 0) -> None:
        self._uses: OrderedDict[K, int] = OrderedDict()

    def admit(self, key: K) -> None:
        self._uses[key] = 0

    def hit(self, key: K) -> None:
        self._uses[key] = min(self.CHANCES, self._uses[key] + 1)

    def victim(self, evictable: Evictable[K]) -> K | None:
        for _ in range(len(self._uses) * (self.CHANCES + 1)):
            key, uses = self._uses.popitem(last=False)
            if not evictable(key):
                self._uses[key] = uses
            elif uses:
                self._uses[key] = uses - 1
            else:
                return key
        return None

    def forget(self, key: K) -> None:
        del self._uses[key]


class S3Fifo(Policy[K]):
    """Three FIFO queues: a small one for newcomers, a main one for keys asked for again, and the names of those that
    left early.

    A key used only once passes through the small queue without touching the main one; one that comes back soon after it
    left is admitted to the main queue at once.
    """

    SMALL_SHARE = 0.1
    CHANCES = 3

    def __init__(self, size: int, seed: int = 0) -> None:
        self._small_limit = max(1, int(self.SMALL_SHARE * size))
        self._ghost_limit = max(1, size - self._small_limit)
        self._small: OrderedDict[K, int] = OrderedDict()
        self._main: OrderedDict[K, int] = OrderedDict()
        self._ghost: OrderedDict[K, None] = OrderedDict()

    def admit(self, key: K) -> None:
        if key in self._ghost:
            del self._ghost[key]
            self._main[key] = 0
        else:
            self._small[key] = 0

    def hit(self, key: K) -> None:
        queue = self._small if key in self._small else self._main
        queue[key] = min(self.CHANCES, queue[key] + 1)

    def victim(self, evictable: Evictable[K]) -> K | None:
        key = None
        if len(self._small) >= self._small_limit:
            key = self._from_small(evictable)
        if key is None:
            key = self._from_main(evictable)
        if key is None:
            key = self._from_small(evictable)
        return key if key is not None else self._from_main(evictable)  # the small queue may just have moved there

    def forget(self, key: K) -> None:
        del (self._small if key in self._small else self._main)[key]

    def _from_small(self, evictable: Evictable[K]) -> K | None:
        for _ in range(len(self._small)):
            key, uses = self._small.popitem(last=False)
            if not evictable(key):
                self._small[key] = uses
            elif uses:
                self._main[key] = 0
            else:
                self._ghost[key] = None
                if len(self._ghost) > self._ghost_limit:
                    self._ghost.popitem(last=False)
                return key
        return None

    def _from_main(self, evictable: Evictable[K]) -> K | None:
        for _ in range(len(self._main) * (self.CHANCES + 1)):
            key, uses = self._main.popitem(last=False)
            if not evictable(key):
                self._main[key] = uses
            elif uses:
                self._main[key] = uses - 1
            else:
                return key
        return None


class AgedLfu(Policy[K]):
    """The key used least goes, the oldest of equals first; uses are halved now and then and outlive a short absence.

    Keys lie in one ordered bucket per number of uses, so the least used is found without a search. How fast it forgets
    decides everything: halving after 16 uses a place instead of 6 reads 2 to 4% fewer experts on the demo model's
    routing, and 8 to 15% more where habits change fast (replayed traces).
    """

    MOST_USES = 15
    HALVE_AFTER = 6
    """Admissions and hits per place in the table between two halvings."""
    REMEMBERED = 8
    """Keys remembered after they left, per place in the table."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self._halve_after = self.HALVE_AFTER * max(1, size)
        self._remembered = self.REMEMBERED * max(1, size)
        self._uses: dict[K, int] = {}
        self._buckets: list[OrderedDict[K, None]] = [OrderedDict() for _ in range(self.MOST_USES + 1)]
        self._left: OrderedDict[K, int] = OrderedDict()
        self._since_halving = 0

    def admit(self, key: K) -> None:
        self._place(key, self._left.pop(key, 0) + 1)
        self._tick()

    def hit(self, key: K) -> None:
        self._place(key, self._lift(key) + 1)
        self._tick()

    def victim(self, evictable: Evictable[K]) -> K | None:
        for uses, bucket in enumerate(self._buckets):
            key = _oldest(bucket, evictable)
            if key is not None:
                del self._uses[key]
                self._left[key] = uses
                if len(self._left) > self._remembered:
                    self._left.popitem(last=False)
                return key
        return None

    def forget(self, key: K) -> None:
        self._lift(key)

    def _place(self, key: K, uses: int) -> None:
        uses = min(uses, self.MOST_USES)
        self._uses[key] = uses
        self._buckets[uses][key] = None

    def _lift(self, key: K) -> int:
        uses = self._uses.pop(key)
        del self._buckets[uses][key]
        return uses

    def _tick(self) -> None:
        self._since_halving += 1
        if self._since_halving < self._halve_after:
            return
        self._since_halving = 0
        order = [key for bucket in self._buckets for key in bucket]
        for key in order:
            self._place(key, self._lift(key) // 2)
        self._left = OrderedDict((key, uses // 2) for key, uses in self._left.items() if uses > 1)


POLICIES: dict[str, Callable[[int, int], Policy[Any]]] = {
    "lru": Lru,
    "random-oldest": RandomOldest,
    "slru": SegmentedLru,
    "clock": Clock,
    "s3fifo": S3Fifo,
    "lfu": AgedLfu,
}
"""Name -> maker of a policy for a table of so many places, and a seed (only policies that draw lots use it)."""

DEFAULT_POLICY = "lfu"
"""Of experts. On the demo model's recorded routing (tests/data/demo-routing.trace) it reads 12 to 21% fewer than LRU
with 8 to 24 slots for 32 experts. The one trace on which it read more (up to a fifth, with half of the experts in
memory) was made up so that habits change fifteen times faster than by default: `artesian bench cache`.
"""
