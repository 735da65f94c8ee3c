"""States of past conversations, kept as a tree: where two prompts part, two branches part, and what they share is there
once.

Bookkeeping and memory; what is run, and when, is `conversation`'s. The one thing a reader would get wrong: the rows of
the branch that is in use lie in the live state's own buffers and nowhere else. They are copied out when another branch
is taken up, and back when this one is, so a token's rows exist once however many branches go through it.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.state import KINDS, Rows, State, Tail

DEFAULT_STATE_BYTES = 512_000_000
LEAST_STATE_BYTES = 32_000_000
"""Beside the live state, whatever is planned: two points of the released model, at 10.5 MB each with 128 positions in
the rings of 40 layers; hundreds of a small one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a conversation between two positions, and what a state had at its end."""

    ids: npt.NDArray[np.int32]  # [n]
    kinds: bytes
    """By which rule each id was read, as in `State.kinds`."""
    tail: Tail | None
    rows: Rows


class Point:
    """A position of some conversation to which the live state can be taken.

    Attributes:
        n_tokens: The position.
        ids: The ids since the point before it, [n] int32.
        kinds: By which rule each of them was read.
        tail: What the state had there beside ids and rows; None when it was given up and only later points need this.
        rows: The groups completed since the point before it; None while they lie in the live state.
        used: When it was last of use, as a count.
    """

    __slots__ = ("children", "ids", "kinds", "n_tokens", "parent", "rows", "tail", "used")

    def __init__(
        self, parent: "Point | None", ids: npt.NDArray[np.int32], kinds: bytes, tail: Tail | None, rows: Rows | None
    ) -> None:
        self.parent = parent
        self.ids = ids
        self.kinds = kinds
        self.tail = tail
        self.rows = rows
        self.n_tokens: int = len(ids) + (parent.n_tokens if parent is not None else 0)
        self.children: list[Point] = []
        self.used = 0

    @property
    def n_bytes(self) -> int:
        """Memory it takes beside the live state's."""
        rows = 0 if self.rows is None else sum(part.nbytes for pair in self.rows.values() for part in pair)
        return rows + (0 if self.tail is None else self.tail.n_bytes)

    def path(self) -> list["Point"]:
        """From the empty conversation to this point."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]


class KeptStates:
    """A live state, and the points it can be taken to. `find` may be called from any thread, the rest from one.

    Args:
        state: The live state; empty.
        state_bytes: Most memory of it and everything beside it, which is given up as the live state grows, what was not
            of use for longest first.
    """

    def __init__(self, state: State, state_bytes: int = DEFAULT_STATE_BYTES) -> None:
        self.state = state
        self._state_bytes = state_bytes
        self._lock = threading.Lock()
        self._root = Point(None, np.empty(0, np.int32), b"", state.tail(), None)
        self._live = [self._root]
        """Points on the way to the live state, whose rows it holds."""
        self._clock = 0

    @property
    def n_bytes(self) -> int:
        """Memory beside the live state's own."""
        return sum(point.n_bytes for point in self._points())

    @property
    def n_points(self) -> int:
        """Positions the live state can be taken to, the empty one aside."""
        return sum(point.tail is not None for point in self._points())

    def find(self, ids: Sequence[int], drawn: Sequence[tuple[int, int]] = ()) -> Point:
        """The last point before the end of `ids` whose ids are theirs; the empty one if need be.

        `drawn` are the ranges of `ids` that may have been read by either rule, since the model drew them; all others
        must have been read as a prompt.
        """
        wanted = np.asarray(ids, np.int32)
        as_prompt = np.ones(len(wanted), np.bool_)
        for first, end in drawn:
            as_prompt[first:end] = False
        with self._lock:
            best, todo = self._root, [self._root]
            while todo:
                point = todo.pop()
                if point.tail is not None and point.n_tokens > best.n_tokens:
                    best = point
                todo += [child for child in point.children if _fits(child, wanted, as_prompt)]
            return best

    def go_to(self, point: Point) -> None:
        """Take the live state to `point`, which has a tail. What it was at before is lost unless it was kept, and there
        is room for it beside the live state.
        """
        assert point.tail is not None
        with self._lock:
            self._touch(point)
            if point is self._live[-1] and self.state.n_tokens == point.n_tokens:
                return
            path = point.path()
            n_shared = sum(1 for ours, theirs in zip(self._live, path, strict=False) if ours is theirs)
            self._make_room_for_leaving(n_shared, path)
            for left in reversed(self._live[n_shared:]):
                if left.tail is None and not left.children and left.parent is not None:
                    left.parent.children.remove(left)  # given up while it was in use
                else:
                    left.rows = self.state.rows(left.n_tokens - len(left.ids), left.n_tokens)
            for taken in path[n_shared:]:
                assert taken.rows is not None
                self.state.put_rows(taken.n_tokens - len(taken.ids), taken.rows)
                taken.rows = None
            self._live = path
            ids = np.concatenate([one.ids for one in path])
            self.state.move_to(ids.tolist(), b"".join(one.kinds for one in path), point.tail)

    def keep(self) -> None:
        """Make the live state's position a point, and those it has passed marked."""
        state = self.state
        with self._lock:
            for position, tail in sorted(state.tails.items()):
                if position > self._live[-1].n_tokens:
                    self._extend(position, tail)
            state.tails.clear()
            if state.n_tokens > self._live[-1].n_tokens:
                self._extend(state.n_tokens, state.tail())
            self._make_room()

    def make_room(self, n_tokens: int = 0) -> None:
        """Give up what does not fit any more beside the live state, or will not once it has `n_tokens` positions."""
        with self._lock:
            self._make_room(n_tokens)

    def adopt(self, pieces: Sequence[Piece]) -> None:
        """Take in pieces that follow each other from an empty conversation on. What is here already stays as it is."""
        with self._lock:
            parent = self._root
            for piece in pieces:
                same = _twin(parent, piece.ids, piece.kinds)
                if same is None:
                    same = Point(parent, piece.ids, piece.kinds, piece.tail, piece.rows)
                    parent.children.append(same)
                elif same.tail is None:
                    same.tail = piece.tail
                self._touch(same)
                parent = same
            self._make_room(newest=parent)

    def pieces(self, point: Point) -> Iterator[Piece]:
        """All that leads to a point, one piece at a time, wherever its rows lie."""
        for one in point.path()[1:]:
            rows = self.state.rows(one.n_tokens - len(one.ids), one.n_tokens) if one.rows is None else one.rows
            yield Piece(ids=one.ids, kinds=one.kinds, tail=one.tail, rows=rows)

    def _extend(self, n_tokens: int, tail: Tail) -> None:
        """A point of the live state at `n_tokens`, behind the last one."""
        last = self._live[-1]
        ids = np.asarray(self.state.tokens[last.n_tokens : n_tokens], np.int32)
        kinds = bytes(self.state.kinds[last.n_tokens : n_tokens])
        point = _twin(last, ids, kinds)
        if point is None:
            point = Point(last, ids, kinds, tail, None)
            last.children.append(point)
        point.tail, point.rows = tail, None
        self._live.append(point)
        self._touch(point)

    def _touch(self, point: Point) -> None:
        self._clock += 1
        point.used = self._clock

    def _make_room(self, n_tokens: int = 0, *, newest: Point | None = None) -> None:
        """Give up tails, and branches nobody can be taken to any more, until all fits; never the end of the live branch
        or, where it was just taken in, `newest`.
        """
        stays = self._live[-1] if newest is None else newest
        self._give_up([point for point in self._points() if point is not stays], self._excess(n_tokens))

    def _make_room_for_leaving(self, n_shared: int, path: Sequence[Point]) -> None:
        """Give up what the branch that is left, from its point number `n_shared` on, has no room beside once its rows
        are copied out of the live state; of that branch the end, if all else is not enough.
        """
        rows_bytes = self.state.rows_bytes
        excess = self._excess() + rows_bytes(self._live[n_shared - 1].n_tokens, self._live[-1].n_tokens)
        used = {id(point) for point in (*self._live, *path)}
        excess = self._give_up([point for point in self._points() if id(point) not in used], excess)
        for point in reversed(self._live[n_shared:]):
            if excess <= 0:
                return
            excess -= point.n_bytes + rows_bytes(point.n_tokens - len(point.ids), point.n_tokens)
            point.tail = None

    def _excess(self, n_tokens: int = 0) -> int:
        """By how much all there is takes more than it may, beside a live state of at least so many positions."""
        live_bytes = max(self.state.n_bytes, self.state.bytes_at(n_tokens))
        room = max(self._state_bytes - live_bytes, LEAST_STATE_BYTES)
        return sum(point.n_bytes for point in self._points()) - room

    def _give_up(self, points: Sequence[Point], excess: int) -> int:
        """Give up tails of these, what was not of use for longest first, until `excess` bytes are free; what is left of
        it.
        """
        for point in sorted(points, key=lambda point: point.used):
            if excess <= 0:
                break
            if point.tail is None:
                continue
            before = point.n_bytes
            point.tail = None
            excess -= before - point.n_bytes
            while point.tail is None and not point.children and point.parent is not None and point not in self._live:
                excess -= point.n_bytes
                point.parent.children.remove(point)
                point = point.parent
        return excess

    def _points(self) -> Iterator[Point]:
        todo = list(self._root.children)
        while todo:
            point = todo.pop()
            yield point
            todo += point.children


def _fits(point: Point, wanted: npt.NDArray[np.int32], as_prompt: npt.NDArray[np.bool_]) -> bool:
    """Whether a conversation that fits up to the point before goes through this one, and on behind it."""
    if point.n_tokens >= len(wanted):
        return False
    part = slice(point.n_tokens - len(point.ids), point.n_tokens)
    decoded = np.frombuffer(point.kinds, np.uint8) == KINDS["decode"]
    return np.array_equal(point.ids, wanted[part]) and not bool((decoded & as_prompt[part]).any())


def _twin(parent: Point, ids: npt.NDArray[np.int32], kinds: bytes) -> Point | None:
    """The child of `parent` that is reached by the same ids and rules."""
    return next((one for one in parent.children if one.kinds == kinds and np.array_equal(one.ids, ids)), None)
