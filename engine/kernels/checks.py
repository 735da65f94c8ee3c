"""What is checked before a pointer goes to the native library, which trusts its caller."""

import torch
from torch import Tensor

from engine.errors import KernelError


def require(holds: bool, message: str, *values: object) -> None:
    """Raises: KernelError with the message, `%`-formatted with the values, unless it holds."""
    if not holds:
        raise KernelError("native kernels: " + message % values)


def require_tensor(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Raises: KernelError unless it is contiguous in memory, of this shape and dtype."""
    if tensor.shape == shape and tensor.dtype is dtype and tensor.is_contiguous() and tensor.is_cpu:
        return
    if not tensor.is_cpu:
        raise KernelError(f"native kernels: a tensor lies on {tensor.device}")
    raise KernelError(
        f"native kernels: {tensor.dtype} {list(tensor.shape)} is not contiguous {_name(dtype)} {list(shape)}"
    )


def done(status: int) -> None:
    """Raises: MemoryError when the library says that it had none to work in."""
    if status:
        raise MemoryError("the native kernels got no memory to work in")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
