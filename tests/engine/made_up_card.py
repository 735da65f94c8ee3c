"""A made-up card: tensors that say they are on another device and refuse to meet the processor's, computed here.

What a real card would refuse is refused: an operation over tensors of two devices, a view of its memory from numpy, a
pointer into it. What it would do is done, by torch on the processor. Memory is counted, and runs out where told to.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
"""A kind of device that torch knows, and has nothing computing on here."""
_PROCESSOR = torch.device("cpu")
_aten = torch.ops.aten
_MAY_MEET = {_aten.copy_.default, _aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}
"""Operations that a card takes a tensor of the processor for: copies, and indices."""


class MadeUpCard(TorchDispatchMode):
    """The card, while it is entered. One at a time.

    Attributes:
        capacity_bytes: Memory it has.
        live_bytes: Memory in use.
        peak_bytes: The most there was.
        n_waits: Times the processor had to wait for a value of it.
    """

    current: "MadeUpCard | None" = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: keeping the compiler away from what never meets it takes three seconds of imports."""
        return False

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity_bytes = capacity_bytes
        self.live_bytes = self.peak_bytes = 0
        self.n_waits = 0
        self._users: dict[int, int] = {}

    def __enter__(self) -> "MadeUpCard":
        MadeUpCard.current = self
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) is made here, then moved
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(False)
        MadeUpCard.current = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return run(func, args, dict(kwargs or {}))

    def took(self, inner: Tensor, tensor: "OnCard") -> None:
        """A tensor was made. Raises: torch.OutOfMemoryError."""
        storage = inner.untyped_storage()
        key, n_bytes = storage.data_ptr(), storage.nbytes()
        if key not in self._users:
            if self.live_bytes + n_bytes > self.capacity_bytes:
                raise torch.OutOfMemoryError(f"made-up card: {n_bytes:,} bytes asked for")
            self._users[key] = 0
            self.live_bytes += n_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._users[key] += 1
        weakref.finalize(tensor, self._gone, key, n_bytes, storage)

    def _gone(self, key: int, n_bytes: int, storage: object) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self.live_bytes -= n_bytes


class OnCard(torch.Tensor):
    """A tensor of the made-up card."""

    on_processor: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnCard":
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip
        assert isinstance(made, OnCard)
        made.on_processor = inner
        if MadeUpCard.current is not None:
            MadeUpCard.current.took(inner, made)
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnCard({self.on_processor!r})"

    def tolist(self) -> Any:
        """As of any tensor: torch itself refuses it for classes it does not know."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return run(func, args, dict(kwargs or {}))


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation: on the card when it has a tensor of it, or when it makes one there."""
    tensors = [item for item in _flat(args, kwargs) if isinstance(item, Tensor)]
    here = [tensor for tensor in tensors if isinstance(tensor, OnCard)]
    target = kwargs.get("device")
    on_card = bool(here)
    if target is not None:
        on_card = torch.device(target).type == DEVICE.type
        kwargs["device"] = _PROCESSOR
    strangers = [tensor for tensor in tensors if not isinstance(tensor, OnCard) and tensor.dim() > 0]
    if here and strangers and func not in _MAY_MEET:
        raise RuntimeError(f"{func}: tensors of two devices, the processor's {[list(t.shape) for t in strangers]}")
    card = MadeUpCard.current
    back = func is _aten._local_scalar_dense.default or (here and target is not None and not on_card)
    back = back or (func is _aten.copy_.default and not isinstance(args[0], OnCard))
    if card is not None and here and back:
        card.n_waits += 1
    if not here and not on_card:
        return func(*args, **kwargs)
    result = func(*map(_plain, args), **{name: _plain(item) for name, item in kwargs.items()})
    if func is _aten._local_scalar_dense.default or not on_card:
        return result
    name = func.__name__.split(".")[0]
    if name.endswith("_") and not name.endswith("__"):  # in place; `__and__` and its like are not
        return args[0]
    if isinstance(result, (tuple, list)):
        return type(result)(OnCard(item) if isinstance(item, Tensor) else item for item in result)
    return OnCard(result) if isinstance(result, Tensor) else result


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments, and those in lists of them."""
    for item in (*args, *kwargs.values()):
        if isinstance(item, (list, tuple)):
            yield from item
        else:
            yield item


def _plain(item: Any) -> Any:
    if isinstance(item, OnCard):
        return item.on_processor
    return type(item)(map(_plain, item)) if isinstance(item, (list, tuple)) else item


@contextmanager
def made_up_card(capacity_bytes: int = 1 << 40) -> Iterator[MadeUpCard]:
    """The card, for as long as it is wanted."""
    with MadeUpCard(capacity_bytes) as card:
        yield card
