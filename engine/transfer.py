"""Tensors on their way between memory and cards.

To a card nothing is waited for: what goes there is copied into pinned memory first, and the card takes it from there
when it comes to it. From a card somebody has to wait, once for each `fetch` that is called: so what is wanted together
comes together. The one thing a reader would get wrong: on a made-up card and on the processor there is no pinned
memory and nothing runs beside; the calls are the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

MEMORY = torch.device("cpu")


def bring(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device: itself where it lies there already. Only from a card to memory this waits.

    Raises: torch.OutOfMemoryError.
    """
    if x.device == device:
        return x
    if device.type == "cpu":
        return fetch(x)()
    if x.is_cpu and device.type == "cuda":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def fetch(x: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to memory; who calls the result waits for it."""
    if x.is_cpu:
        return lambda: x
    if x.device.type != "cuda":
        return lambda: x.to(MEMORY)
    host = torch.empty(x.shape, dtype=x.dtype, device=MEMORY, pin_memory=True)
    host.copy_(x, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(x.device))

    def wait() -> Tensor:
        done.synchronize()
        return host

    return wait


def fetch_rows(*parts: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Begin to copy tensors to memory as one: float32, or whole numbers below 2^24, the same rows of each.

    Shapes: parts [T, ...]; the result of the call is like parts.
    """
    if parts[0].is_cpu:
        return lambda: parts
    arriving = fetch(torch.cat([part.reshape(part.shape[0], -1).to(torch.float32) for part in parts], dim=1))
    widths = [part[0].numel() for part in parts]

    def wait() -> tuple[Tensor, ...]:
        pieces = torch.split(arriving(), widths, dim=1)
        return tuple(
            piece.reshape(part.shape).to(part.dtype).contiguous() for piece, part in zip(pieces, parts, strict=True)
        )

    return wait


def bring_rows(device: torch.device, *parts: Tensor) -> tuple[Tensor, ...]:
    """Float32 tensors [T, ...] on a device, all by one wait where they come from a card to memory."""
    if device.type == "cpu":
        return fetch_rows(*parts)()
    return tuple(bring(part, device) for part in parts)
