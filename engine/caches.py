"""Rows of vectors that a conversation keeps: all of a kind by index, or the newest of them by position.

Rows are stored as float32 or, where the numeric mode rounds them to values that it holds, as bfloat16. The one thing a
reader would get wrong: both may hold rows of a forward that is not committed, behind those that are. They count for
nothing until they are, and the next forward writes over them.
"""

import torch
from torch import Tensor

_FIRST_CAPACITY = 64
_GROWTH = 4
"""Room is address space: the system gives a page when it is written. A factor this large makes copies rare."""

SPARE_ROWS = 32
"""Of a window, for the rows of a step; behind so many committed ones the window moves to the front again."""


class Growing:
    """Rows of one width that are appended to and cut back; amortised growth, [capacity, width]."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        self._rows = torch.empty((_FIRST_CAPACITY, width), dtype=dtype)
        self._n_written = 0

    def write(self, first: int, rows: Tensor) -> None:
        """Put rows [n, width] at index `first`, growing as needed."""
        end = first + rows.shape[0]
        if end > self._rows.shape[0]:
            capacity = max(end, self._rows.shape[0] * _GROWTH)
            grown = torch.empty((capacity, self._rows.shape[1]), dtype=self._rows.dtype)
            grown[:first] = self._rows[:first]
            self._rows = grown
        self._rows[first:end] = rows
        self._n_written = max(self._n_written, end)

    def upto(self, n: int) -> Tensor:
        """The first n rows as stored, a view [n, width]."""
        return self._rows[:n]

    @property
    def n_bytes(self) -> int:
        """Memory of the rows that were ever written."""
        return self._n_written * self._rows.shape[1] * self._rows.itemsize


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
        """Memory it takes, rows to come included."""
        return self._rows.nbytes

    def _write(self, rows: Tensor) -> None:
        """Put rows behind the committed ones, which move to the front where there is no room."""
        if self._end + rows.shape[0] > self._rows.shape[0]:
            self._rows[: self._n] = self.kept().clone()  # it overlaps itself
            self._end = self._n
        self._rows[self._end : self._end + rows.shape[0]] = rows
