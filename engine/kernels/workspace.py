"""Memory that a model keeps for what its sub-layers hand to each other, so that a step takes none from the system.

A result of a few rows is quick to allocate, but there are some thirty in a layer; one of a prompt is given back to the
system when it is freed, and each page of the next is a fault. The one thing a reader would get wrong: what was taken is
good until the next `clear`, by whoever calls it. Nothing that outlives its half block may lie in here.
"""

from typing import Final

import torch
from torch import Tensor

_ALIGNMENT = 64
_MOST_VIEWS = 4096
"""A released forward of 40 layers takes some 200 different ones; more come only where shapes change from step to step.
"""


class Workspace:
    """Tensors taken one after another from one piece of memory, and given up together. For one thread."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: dict[tuple[int, tuple[int, ...], torch.dtype], tuple[Tensor, int]] = {}
        """What was taken where, so that a step like the last one makes no tensor."""
        self._reshaped: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        """Likewise, of tensors that were taken: by their ids, which stay theirs as long as they are in here."""
        self._used = self._most = 0

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An empty contiguous tensor, good until `clear`."""
        found = self._views.get((self._used, shape, dtype))
        if found is None:
            return self._make(shape, dtype)
        tensor, self._used = found
        return tensor

    def reshaped(self, tensor: Tensor, *shape: int) -> Tensor:
        """A tensor that was taken here, or any other, in another shape of as many values.

        Between two products of cold weights a view costs 50 to 100 microseconds, most of it to fetch torch's own code
        from memory again.
        """
        found = self._reshaped.get((id(tensor), shape))
        if found is not None:
            return found[1]
        view = tensor.view(shape)
        if tensor.is_cpu and tensor.untyped_storage().data_ptr() == self._memory.data_ptr():
            self._reshaped[id(tensor), shape] = (tensor, view)
        return view

    def clear(self) -> "Workspace":
        """Everything that was taken is given up. What did not fit will fit from now on. Result: itself."""
        self._most = max(self._most, self._used)
        self._used = 0
        if self._most > self._memory.numel():
            self._forget()
            self._memory = torch.empty(0, dtype=torch.uint8)  # first: not both at once
            self._memory = torch.empty(self._most, dtype=torch.uint8)
        return self

    def release(self) -> None:
        """Give the memory back as well."""
        self._forget()
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = self._most = 0

    @property
    def n_bytes(self) -> int:
        """Memory it keeps."""
        return self._memory.numel()

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        start, n_values = self._used, 1
        for size in shape:
            n_values *= size
        n_bytes = n_values * dtype.itemsize
        self._used = start + -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._used > self._memory.numel():
            return torch.empty(shape, dtype=dtype)
        tensor = self._memory[start : start + n_bytes].view(dtype).view(shape)
        if len(self._views) >= _MOST_VIEWS:
            self._forget()
        self._views[start, shape, dtype] = (tensor, self._used)
        return tensor

    def _forget(self) -> None:
        self._views.clear()
        self._reshaped.clear()


class _Fresh(Workspace):
    """Keeps nothing: every tensor is the caller's own."""

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype)


FRESH: Final[Workspace] = _Fresh()
"""For callers that keep what they get."""
