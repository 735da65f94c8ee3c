"""Made-up cards: tensors that say they are on another device and refuse to meet the processor's, computed here.

What a real card would refuse is refused: an operation over tensors of two devices, a view of its memory from numpy, a
pointer into it. What it would do is done, by torch on the processor. Memory is counted, of all cards together, and runs
out where told to. Waits are counted: whatever a real card's driver lets nobody go on for before the card has done what
it was told.
"""

import threading
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
_MAY_MEET = {_aten.copy_.default}
"""Operations that tensors of two devices may meet in. A real card takes indices of the processor's too, and has it wait
for their copy.
"""
_ASKS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten.equal.default}
"""Operations whose result, or its size, the processor has to know."""


class MadeUpCard(TorchDispatchMode):
    """The card, while it is entered. One at a time.

    Attributes:
        capacity_bytes: Memory it has.
        live_bytes: Memory in use.
        peak_bytes: The most there was.
        n_calls: Operations it did, those that only look at its memory otherwise aside.
        n_waits: Times the thread that entered it had to wait: for a value of the card, or until it took one.
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
        self.n_calls = self.n_waits = 0
        self._thread = threading.get_ident()
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

    def waited(self) -> None:
        """An operation that is waited for."""
        self.n_waits += threading.get_ident() == self._thread

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
    def __new__(cls, inner: Tensor, device: torch.device = DEVICE) -> "OnCard":
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device,
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
    device = here[0].device if here else _PROCESSOR
    if target is not None:
        device, kwargs["device"] = torch.device(target), _PROCESSOR
        if device.type == DEVICE.type and device.index is None:
            device = DEVICE
    on_card = device.type == DEVICE.type
    strangers = [tensor for tensor in tensors if here and tensor.device != here[0].device and tensor.dim() > 0]
    if strangers and func not in _MAY_MEET:
        raise RuntimeError(f"{func}: tensors of two devices: {[(str(t.device), list(t.shape)) for t in tensors]}")
    if MadeUpCard.current is not None and _waits(func, args, kwargs, here, on_card, target is not None):
        MadeUpCard.current.waited()
    if not here and not on_card:
        return func(*args, **kwargs)
    if MadeUpCard.current is not None and not func.is_view:
        MadeUpCard.current.n_calls += 1
    result = func(*map(_plain, args), **{name: _plain(item) for name, item in kwargs.items()})
    if func in _SCALARS or not on_card:
        return result
    name = func.__name__.split(".")[0]
    if name.endswith("_") and not name.endswith("__"):  # in place; `__and__` and its like are not
        return args[0]
    if isinstance(result, (tuple, list)):
        return type(result)(OnCard(item, device) if isinstance(item, Tensor) else item for item in result)
    return OnCard(result, device) if isinstance(result, Tensor) else result


_SCALARS = {_aten._local_scalar_dense.default, _aten.equal.default}


def _waits(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], here: Sequence[Tensor], on_card: bool, moves: bool
) -> bool:
    """Whether a real card would have the processor wait."""
    if func is _aten.copy_.default:
        blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        down, up = here and not isinstance(args[0], OnCard), not isinstance(args[1], OnCard) and args[1].dim() > 0
        return bool(down or (here and up and blocking))
    if moves and here:
        return not on_card
    if func is _aten._to_copy.default:
        return on_card and not here and not kwargs.get("non_blocking", False)
    chosen = [item for item in _flat(args[1:2], {}) if isinstance(item, Tensor)] if func is _aten.index.Tensor else []
    return bool(here) and (func in _ASKS or any(index.dtype is torch.bool for index in chosen))


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
