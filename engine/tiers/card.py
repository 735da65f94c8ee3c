"""A device that experts are multiplied on: memory, copies to and from it, and work begun there.

Device-only code is what stands behind `self._cuda`, and no card has run it in this version's tests: those run the same
class on the processor, and on a made-up device whose tensors refuse to meet the processor's. On the processor the
arithmetic is the native kernels', to the last bit; on a card it is torch's, to tolerance.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.contribute import contribute
from engine.errors import CardFull
from engine.experts import ExpertWeights
from engine.kernels.card_path import FULL_HINT, MOST_ROWS
from engine.numerics import Numerics


class Pending:
    """What a card is computing: contributions, each for one place."""

    def __init__(self, pieces: Sequence[tuple[Tensor, Callable[[], Tensor]]]) -> None:
        """Of each piece its places, and what waits for its contributions [n, D]."""
        self._pieces = pieces

    def finish(self, parts: Tensor) -> None:
        """Wait for them and put them at their places of parts [T, k, D], in memory."""
        for places, fetch in self._pieces:
            parts.view(-1, parts.shape[2])[places] = fetch()


class Card:
    """One device. For the thread that runs the model, but for `copy_in`.

    Attributes:
        device: Where its tensors are.
        name: For people.
        on_full: Told when there was no memory for a computation, before `CardFull` is raised: gives experts up, and
            serves none from here until the step has ended.
    """

    def __init__(self, device: torch.device, name: str = "") -> None:
        self.device = device
        self.name = name or str(device)
        self.on_full: Callable[[], None] = lambda: None
        self._cuda = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._staging: Tensor | None = None

    def empty(self, n_bytes: int) -> Tensor:
        """Memory [n_bytes] uint8. Raises: torch.OutOfMemoryError."""
        memory = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
        if self._copies is not None:
            memory.record_stream(self._copies)
        return memory

    def order_copies(self) -> None:
        """Have the next copy come after what was begun so far: the last user of its target may still be at work."""
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream(self.device))

    def trim(self) -> None:
        """Give back to the system what nobody uses."""
        if self._cuda:
            torch.cuda.empty_cache()

    def copy_in(self, parts: Sequence[Tensor], starts: Sequence[int], target: Tensor) -> None:
        """Copy tensors in memory to their starts in `target` on the card, and wait. For the copying thread.

        They are packed into pinned memory first: a copy from elsewhere would keep the card waiting.
        """
        if self._staging is None or self._staging.numel() < target.numel():
            self._staging = torch.empty(target.numel(), dtype=torch.uint8, device="cpu", pin_memory=self._cuda)
        for part, start in zip(parts, starts, strict=True):
            self._staging[start : start + part.numel()] = part.view(-1)
        staged = self._staging[: target.numel()]
        if self._copies is None:
            target.copy_(staged)
            return
        with torch.cuda.stream(self._copies):
            target.copy_(staged, non_blocking=True)
        self._copies.synchronize()

    def put(self, x: Tensor) -> Tensor:
        """A tensor that is in memory, here."""
        return (x.pin_memory() if self._cuda else x).to(self.device, non_blocking=True)

    def fetch(self, values: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to memory; who calls the result waits for it."""
        if not self._cuda:
            return lambda: values.to("cpu")
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        host.copy_(values, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> Tensor:
            done.synchronize()
            return host

        return wait

    def begin(
        self,
        operand: Tensor,
        weights: Tensor,
        experts: Sequence[ExpertWeights],
        uses: Sequence[Sequence[int]],
        limit: float,
        numerics: Numerics,
    ) -> Pending:
        """Begin to compute the contributions of experts that lie here.

        Shapes: operand [T, D] and weights [T, k], in memory; only the rows that these experts use are copied.
        Raises: CardFull when there is no memory for it; nothing has been begun then.
        """
        begun = []
        with self.guarded():
            for some, places in _pieces(uses, MOST_ROWS):
                rows = self.put(operand[places // weights.shape[1]])  # [n, D], each for one place
                share = self.put(weights.reshape(-1)[places].unsqueeze(1))  # [n, 1]
                parts = torch.empty((len(places), 1, operand.shape[1]), device=self.device)
                used = [experts[index] for index in some]
                contribute(rows, used, list(some.values()), share, limit, numerics.at(self.device), parts)
                begun.append((places, self.fetch(parts[:, 0])))
        return Pending(begun)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Work on the card, whose lack of memory becomes CardFull once `on_full` was told."""
        try:
            yield
        except (torch.OutOfMemoryError, CardFull) as error:
            self.on_full()
            raise CardFull(f"{self.name} has no memory left", hint=FULL_HINT) from error


def _pieces(uses: Sequence[Sequence[int]], most: int) -> Iterator[tuple[dict[int, range], Tensor]]:
    """The places of all uses in pieces of at most `most`: which of a piece's rows are whose, and its places [n]."""
    some: dict[int, range] = {}
    places: list[int] = []
    for index, mine in enumerate(uses):
        for first in range(0, len(mine), most):
            cut = list(mine[first : first + most])
            if len(places) + len(cut) > most:
                yield some, torch.tensor(places)
                some, places = {}, []
            some[index] = range(len(places), len(places) + len(cut))
            places += cut
    if places:
        yield some, torch.tensor(places)
