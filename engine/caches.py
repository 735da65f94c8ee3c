"""Rows of vectors that a conversation keeps: all of a kind by index, or the newest of them by position.

Rows are stored as float32 or, where the numeric mode rounds them to values that it holds, as bfloat16. The one thing a
reader would get wrong: both may hold rows of a forward that is not committed, behind those that are. They count for
nothing until they are, and the next forward writes over them.

Rows lie where the layers are that read them: those of a window on one device, those that grow on each device with a
reader, so that no layer waits for another device's copy.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from engine.transfer import MEMORY, bring, fetch

_FIRST_CAPACITY = 64
_GROWTH = 4
"""Room is address space: the system gives a page when it is written. A factor this large makes copies rare."""
_CARD_GROWTH = 1.25
"""On a card room is memory, and a copy takes little time there. `planner.cards` counts on it."""

SPARE_ROWS = 32
"""Of a window, for the rows of a step; behind so many committed ones the window moves to the front again."""
_MOST_COMING = 64
"""Copies to memory that are not taken in before somebody reads them."""


class Growing:
    """Rows of one width that are appended to and cut back; amortised growth, [capacity, width] on each device."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        self._width, self._dtype = width, dtype
        self._rows = {MEMORY: torch.empty((_FIRST_CAPACITY, width), dtype=dtype)}
        self._coming: list[tuple[int, Callable[[], Tensor]]] = []
        """Rows on their way from a card to memory, by their first index: who reads them there waits."""
        self._n_written = 0

    def place(self, devices: Collection[torch.device]) -> None:
        """Lie on these devices from now on, one at least. Raises: torch.OutOfMemoryError; it is then as before."""
        if self._rows.keys() == set(devices):
            return
        source = self.upto(self._n_written, next(iter(self._rows)))
        new = {device: self._moved(source, device) for device in devices if device not in self._rows}
        self._settle()
        self._rows = {device: rows for device, rows in (self._rows | new).items() if device in devices}

    def write(self, first: int, rows: Tensor) -> None:
        """Put rows [n, width] at index `first` of every device, growing as needed."""
        self._n_written = max(self._n_written, first + rows.shape[0])
        for device in self._rows:
            if device == MEMORY and not rows.is_cpu:
                self._coming.append((first, fetch(rows)))
                if len(self._coming) > _MOST_COMING:  # nobody reads them; they have long been there
                    self._settle()
                continue
            if device == MEMORY:
                self._settle()
            self._put(device, first, bring(rows, device))

    def upto(self, n: int, device: torch.device = MEMORY) -> Tensor:
        """The first n rows as stored, a view [n, width]; for memory a copy where they lie on cards only."""
        if device == MEMORY:
            self._settle()
            if MEMORY not in self._rows:
                return bring(next(iter(self._rows.values()))[:n], MEMORY)
        return self._rows[device][:n]

    @property
    def in_memory(self) -> bool:
        """Whether they lie in memory, whatever lies on cards."""
        return MEMORY in self._rows

    @property
    def n_bytes(self) -> int:
        """Memory of the rows that were ever written; what lies on cards is not counted."""
        return self._n_written * self._width * self._dtype.itemsize if self.in_memory else 0

    def _settle(self) -> None:
        """Take in what is on its way to memory, in the order it was written."""
        coming, self._coming = self._coming, []
        for first, arriving in coming:
            self._put(MEMORY, first, arriving())

    def _moved(self, source: Tensor, device: torch.device) -> Tensor:
        room = max(_FIRST_CAPACITY, source.shape[0])
        rows = torch.empty((room, self._width), dtype=self._dtype, device=device)
        rows[: source.shape[0]] = bring(source, device)
        return rows

    def _put(self, device: torch.device, first: int, rows: Tensor) -> None:
        kept, end = self._rows[device], first + rows.shape[0]
        if end > kept.shape[0]:
            growth = _GROWTH if device == MEMORY else _CARD_GROWTH
            grown = torch.empty((max(end, int(kept.shape[0] * growth)), self._width), dtype=self._dtype, device=device)
            grown[:first] = kept[:first]
            kept = self._rows[device] = grown
        kept[first:end] = rows


class Window:
    """The newest rows of one width, `size` at most, in order of position.

    Not a ring: they lie one behind the other, with room for a step's rows behind them, so that what a step sees is one
    view and committing it moves an index.
    """

    def __init__(self, size: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        self._size = size
        self._rows = torch.zeros((size + SPARE_ROWS, width), dtype=dtype)
        self._n = self._end = 0
        """Committed rows: how many, and the index behind them."""
        self._apart: tuple[int, Tensor] | None = None
        """Staged rows that do not fit behind the committed ones, from row `first` of their forward on."""

    def place(self, device: torch.device) -> None:
        """Lie there from now on; whatever was staged is forgotten. Raises: torch.OutOfMemoryError."""
        if self._rows.device != device:
            self._rows, self._apart = bring(self._rows, device), None

    def stage(self, rows: Tensor, first: int) -> Tensor:
        """Keep a forward's rows [T, width] until `commit`: all that fit, else those from `first` on.

        Result: the committed rows that any of them may see, and then they: [<size + T, width] float32; a view, good
        until the window is next written to.
        """
        n_rows, n_before = rows.shape[0], min(self._n, self._size - 1)
        if n_rows > SPARE_ROWS:
            self._apart = (first, rows[first:].to(self._rows.dtype, copy=True))
            return torch.cat((self._rows[self._end - n_before : self._end].to(rows.dtype), rows))
        self._apart = None
        self._write(rows)
        return self._rows[self._end - n_before : self._end + n_rows].to(torch.float32)

    def commit(self, n: int) -> None:
        """Take the first n of the staged rows; forget the others."""
        if self._apart is None:
            self._end += n
            self._n = min(self._n + n, self._size)
            return
        first, rows = self._apart
        self._apart = None
        self.append(rows[max(0, n - self._size - first) : n - first])

    def append(self, rows: Tensor) -> None:
        """Take rows [n, width], n at most `size`. Whatever was staged is forgotten."""
        n_rows = rows.shape[0]
        if n_rows > SPARE_ROWS:
            kept = self._rows[self._end - min(self._n, self._size - n_rows) : self._end].clone()
            self._n = self._end = kept.shape[0] + n_rows
            self._rows[: kept.shape[0]] = kept
            self._rows[kept.shape[0] : self._end] = rows
        else:
            self._write(rows)
            self._end += n_rows
            self._n = min(self._n + n_rows, self._size)
        self._apart = None

    def replace(self, rows: Tensor) -> None:
        """Hold rows [<=size, width] and nothing else."""
        self._n = self._end = 0
        self.append(rows)

    def kept(self) -> Tensor:
        """The committed rows as stored, in order of position, a view [<=size, width]."""
        return self._rows[self._end - self._n : self._end]

    @property
    def n_bytes(self) -> int:
        """Memory it takes, rows to come included; nothing on a card."""
        return self._rows.nbytes if self._rows.is_cpu else 0

    def _write(self, rows: Tensor) -> None:
        """Put rows behind the committed ones, which move to the front where there is no room."""
        if self._end + rows.shape[0] > self._rows.shape[0]:
            self._rows[: self._n] = self.kept().clone()  # it overlaps itself
            self._end = self._n
        self._rows[self._end : self._end + rows.shape[0]] = rows
