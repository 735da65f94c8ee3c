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
from engine.transfer import bring, fetch


class Pending:
    """What a card is computing: contributions, each for one place."""

    def __init__(self, pieces: Sequence[tuple[Tensor, Callable[[], Tensor]]]) -> None:
        """Of each piece its places, and what gives its contributions [n, D], after a wait where they go to memory."""
        self._pieces = pieces

    def finish(self, parts: Tensor) -> None:
        """Put them at their places of parts [T, k, D], where they were said to be wanted."""
        for places, given in self._pieces:
            put_rows(parts, places, given())


def put_rows(parts: Tensor, places: Tensor, values: Tensor) -> None:
    """Put values [n, D] at places [n] of parts [T, k, D], which may lie on a card."""
    flat = parts.view(-1, parts.shape[2])
    flat.index_copy_(0, bring(places, parts.device), bring(values, parts.device))


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

    def begin(
        self,
        operand: Tensor,
        weights: Tensor,
        experts: Sequence[ExpertWeights],
        uses: Sequence[Sequence[int]],
        limit: float,
        numerics: Numerics,
        home: torch.device,
    ) -> Pending:
        """Begin to compute the contributions of experts that lie here, which are wanted on the device `home`.

        Shapes: operand [T, D] and weights [T, k], here or in memory; only the rows that these experts use are copied.
        Raises: CardFull when there is no memory for it; nothing has been begun then.
        """
        begun = []
        with self.guarded():
            for some, places in _pieces(uses, MOST_ROWS):
                at = bring(places, operand.device)
                rows = bring(operand[at // weights.shape[1]], self.device)  # [n, D], each for one place
                share = bring(weights.reshape(-1)[at].unsqueeze(1), self.device)  # [n, 1]
                parts = torch.empty((len(places), 1, operand.shape[1]), device=self.device)
                used = [experts[index] for index in some]
                contribute(rows, used, list(some.values()), share, limit, numerics.at(self.device), parts)
                begun.append((places, _wanted(parts[:, 0], home)))
        return Pending(begun)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Work on the card, whose lack of memory becomes CardFull once `on_full` was told."""
        try:
            yield
        except (torch.OutOfMemoryError, CardFull) as error:
            self.on_full()
            raise CardFull(f"{self.name} has no memory left", hint=FULL_HINT) from error


def _wanted(values: Tensor, home: torch.device) -> Callable[[], Tensor]:
    """Values on their way to where they are wanted; from one card to another nobody waits."""
    return fetch(values) if home.type == "cpu" else lambda: bring(values, home)


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
