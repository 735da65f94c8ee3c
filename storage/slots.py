"""Slot bookkeeping: which key lies in which slot, what may be given up, what is on its way. No bytes, no clock, no
thread.

A slot is empty, reserved (its read is in flight) or ready, and any number of users may have pinned it. The one thing to
get
right: a reserved or pinned slot is never given up, and a reserved one is never a hit, so that nothing is multiplied by
bytes that have not arrived, or arrived for somebody else.

Keys come in for one of three reasons (`Claim`), and only those somebody *used* are the policy's:

- `use`: asked for by a decode step. The policy decides how long it stays.
- `scan`: asked for by a prefill larger than the table, which would otherwise flush everything decoding wants.
- `warm`: read ahead at idle because it was popular; unproven until it is hit.

The last two lie in a list of guests, newest given up first, and become the policy's when they are used. Newest first is
the best order for both: of a scan that repeats (the next prefill chunk) the earliest keys stay and are hits, where
oldest-first would keep exactly those that come last; and a warm-up brings the hottest first.
"""

from collections.abc import Container, Hashable
from enum import IntEnum
from typing import Generic, Literal, TypeVar

from storage.ids import SlotIndex
from storage.policy import Policy

K = TypeVar("K", bound=Hashable)
Claim = Literal["use", "scan", "warm"]


class SlotState(IntEnum):
    """What a slot holds."""

    EMPTY = 0
    RESERVED = 1
    READY = 2
    RETIRED = 3
    """Given back by `resize`; takes part in nothing."""


class SlotTable(Generic[K]):
    """A fixed number of slots and the keys in them. Lookup is O(1); so is the choice of a victim, pinned keys aside.

    Args:
        n_slots: Slots, numbered from 0; also the most `resize` can go back to.
        policy: Made for this table and shared with no other.
        n_guests: How many keys a scan may hold in a full table before it gives up its own newest.
    """

    def __init__(self, n_slots: int, policy: Policy[K], *, n_guests: int = 2) -> None:
        assert n_slots >= 0 and n_guests >= 1, (n_slots, n_guests)
        self._policy = policy
        self._n_guests = n_guests
        self._guests: dict[K, None] = {}
        self._scans_in_flight = 0
        self._slot_of: dict[K, SlotIndex] = {}
        self._key_of: list[K | None] = [None] * n_slots
        self._claim_of: list[Claim] = ["use"] * n_slots
        self._state = [SlotState.EMPTY] * n_slots
        self._pins = [0] * n_slots
        self._free = [SlotIndex(i) for i in reversed(range(n_slots))]
        self._retired: list[SlotIndex] = []
        self.evictions = 0
        """Keys given up for others so far."""

    @property
    def n_slots(self) -> int:
        """Slots in use or free; without the retired ones."""
        return len(self._state) - len(self._retired)

    @property
    def n_free(self) -> int:
        """Empty slots."""
        return len(self._free)

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: K) -> bool:
        """Is `key` ready or on its way?"""
        return key in self._slot_of

    def state(self, slot: SlotIndex) -> SlotState:
        """What `slot` holds."""
        return self._state[slot]

    def key(self, slot: SlotIndex) -> K | None:
        """The key in `slot`, or on its way into it."""
        return self._key_of[slot]

    def slot(self, key: K) -> SlotIndex:
        """The slot `key` is in, or on its way into. Counts as no use of it."""
        return self._slot_of[key]

    def is_ready(self, key: K) -> bool:
        """Are the bytes of `key` there?"""
        slot = self._slot_of.get(key)
        return slot is not None and self._state[slot] is SlotState.READY

    def use(self, key: K) -> None:
        """Stamp `key`, which is ready or on its way, as asked for by a step."""
        slot = self._slot_of[key]
        if self._state[slot] is SlotState.RESERVED:
            self._scans_in_flight -= self._claim_of[slot] == "scan"
            self._claim_of[slot] = "use"
        elif key in self._guests:
            del self._guests[key]
            self._policy.admit(key)
        else:
            self._policy.hit(key)

    def reserve(self, key: K, claim: Claim = "use", keep: Container[K] = ()) -> SlotIndex | None:
        """Reserve a slot for `key`, giving up another key if need be; None when every slot is pinned or reserved.

        A warm-up gives up only guests that are not in `keep`, and otherwise gets None.
        """
        assert key not in self._slot_of, key
        if self._free:
            slot = self._free.pop()
        else:
            victim = self._victim(claim, keep)
            if victim is None:
                return None
            slot = self._slot_of.pop(victim)
            self.evictions += 1
        self._slot_of[key] = slot
        self._key_of[slot] = key
        self._claim_of[slot] = claim
        self._state[slot] = SlotState.RESERVED
        self._scans_in_flight += claim == "scan"
        return slot

    def fill(self, slot: SlotIndex) -> None:
        """The bytes of a reserved slot have arrived."""
        key = self._leave_reserved(slot)
        self._state[slot] = SlotState.READY
        if self._claim_of[slot] == "use":
            self._policy.admit(key)
        else:
            self._guests[key] = None

    def fail(self, slot: SlotIndex) -> None:
        """The read of a reserved slot failed: the slot is empty and unpinned, and the key will be read again."""
        key = self._leave_reserved(slot)
        del self._slot_of[key]
        self._empty(slot)

    def drop(self, key: K) -> None:
        """Give up a ready, unpinned key on request."""
        slot = self._slot_of[key]
        assert self._state[slot] is SlotState.READY and not self._pins[slot], (key, self._state[slot])
        self._forget(key)
        del self._slot_of[key]
        self._empty(slot)

    def clear(self) -> None:
        """Give up every key; all of them are ready and unpinned."""
        for key in list(self._slot_of):
            self.drop(key)

    def pin(self, slot: SlotIndex) -> None:
        """Keep a ready or reserved slot until the matching `unpin`."""
        assert self._state[slot] in (SlotState.READY, SlotState.RESERVED), (slot, self._state[slot])
        self._pins[slot] += 1

    def unpin(self, slot: SlotIndex) -> None:
        """Undo one `pin`."""
        assert self._pins[slot] > 0, slot
        self._pins[slot] -= 1

    def resize(self, n_slots: int) -> list[SlotIndex]:
        """Retire slots down to `n_slots`, or take retired ones back; returns those newly retired.

        Busy slots are not retired: when too many are, fewer than asked are, and the caller asks again after the step.
        """
        assert 0 <= n_slots <= len(self._state), n_slots
        while self.n_slots < n_slots:
            slot = self._retired.pop()
            self._state[slot] = SlotState.EMPTY
            self._free.append(slot)
        retired = []
        while self.n_slots > n_slots:
            if not self._free:
                victim = self._victim("use", ())
                if victim is None:
                    break
                self.evictions += 1
                self._empty(self._slot_of.pop(victim))
            slot = self._free.pop()
            self._state[slot] = SlotState.RETIRED
            self._retired.append(slot)
            retired.append(slot)
        return retired

    def check(self) -> None:
        """Assert that the tables agree with each other; for tests."""
        for key, slot in self._slot_of.items():
            assert self._key_of[slot] == key
            assert self._state[slot] in (SlotState.READY, SlotState.RESERVED)
        by_state = [self._state.count(state) for state in SlotState]
        assert by_state[SlotState.EMPTY] == len(self._free) == len(set(self._free))
        assert by_state[SlotState.RETIRED] == len(self._retired)
        assert by_state[SlotState.READY] + by_state[SlotState.RESERVED] == len(self._slot_of)
        assert all(self._state[self._slot_of[key]] is SlotState.READY for key in self._guests)
        assert all(not self._pins[slot] for slot in self._free)
        claims = [c for c, s in zip(self._claim_of, self._state, strict=True) if s is SlotState.RESERVED]
        assert self._scans_in_flight == claims.count("scan")

    def _evictable(self, key: K) -> bool:
        return not self._pins[self._slot_of[key]]

    def _victim(self, claim: Claim, keep: Container[K]) -> K | None:
        """Take a key out of the guests or the policy; it keeps its slot until the caller reuses that."""
        if claim == "scan" and len(self._guests) + self._scans_in_flight < self._n_guests:
            victim = self._policy.victim(self._evictable)
            if victim is not None:
                return victim
        for guest in reversed(self._guests):
            if self._evictable(guest) and guest not in keep:
                del self._guests[guest]
                return guest
        return None if claim == "warm" else self._policy.victim(self._evictable)

    def _leave_reserved(self, slot: SlotIndex) -> K:
        key = self._key_of[slot]
        assert self._state[slot] is SlotState.RESERVED and key is not None, (slot, self._state[slot])
        self._scans_in_flight -= self._claim_of[slot] == "scan"
        return key

    def _forget(self, key: K) -> None:
        if key in self._guests:
            del self._guests[key]
        else:
            self._policy.forget(key)

    def _empty(self, slot: SlotIndex) -> None:
        self._state[slot] = SlotState.EMPTY
        self._key_of[slot] = None
        self._pins[slot] = 0
        self._free.append(slot)
