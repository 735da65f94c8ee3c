"""What the draft stages remember of a conversation: one ring of window keys each, made from main positions only.

Part of a conversation's state. Keys are made when somebody asks for them: what a committed position hands over is put
beside the rings as it is, and the window's worth of it that is still of use is projected in one go, by the next draft
round or by whoever keeps or compares the state. So a position costs one copied row while drafting is paused, and the
rings are current for every committed position all the same.

The one thing a reader would get wrong: whether that gives the bits of projecting each position by itself is a matter of
the path. With the native kernels in `exact` a row's result does not depend on the rows beside it, and it does. Torch
adds up in an order that hangs on the number of rows, so there the last bits of a key hang on when it was asked for, and
in `reference` some of its roundings; then a draft may be another one, never what is said.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.transfer import bring

Project = Callable[[Tensor, Tensor], Tensor]
"""Positions [n] and what the model handed over there, [n, n_targets*D] -> keys [n, S, hd]."""


class DraftRings:
    """Window keys of every draft stage. A draft round reads them and never writes any of its own."""

    def __init__(self, config: ModelConfig, project: Project) -> None:
        self._size = config.window_size
        self._project = project
        self._keys = torch.zeros((config.n_mtp_layers, config.window_size, config.head_dim))
        """[S, W, hd]; the key of position p stands at p % W."""
        self._rows = torch.zeros((config.window_size, len(config.dspark_target_layer_ids) * config.dim))
        """[W, n_targets*D]; likewise, for the positions from `_made` on."""
        self._first = self._made = self._end = 0
        """The first position of which anything is here, the first without a key, and the one behind the last. The first
        is not 0 in a state that was taken over from a run without drafts: such rings fill as positions are committed.
        """

    @property
    def n_waiting(self) -> int:
        """Positions whose keys are still to be made: a window at most."""
        return self._end - self._made

    def place(self, device: torch.device) -> None:
        """Lie there from now on. Raises: torch.OutOfMemoryError; it is then as before."""
        keys, rows = bring(self._keys, device), bring(self._rows, device)
        self._keys, self._rows = keys, rows

    @property
    def n_bytes(self) -> int:
        """Memory it takes; nothing on a card."""
        return self._keys.nbytes + self._rows.nbytes if self._keys.is_cpu else 0

    def commit(self, first: int, rows: Tensor) -> None:
        """What the model handed over at the positions from `first` on, [n, n_targets*D], a window of them at most."""
        end, at = first + rows.shape[0], first % self._size
        rows = bring(rows, self._rows.device)
        until = self._size - at  # rows to the end of the ring
        self._rows[at : at + rows.shape[0]] = rows[:until]
        if rows.shape[0] > until:
            self._rows[: rows.shape[0] - until] = rows[until:]
        self._made, self._end = max(self._made, end - self._size), end

    def reset(self, end: int, keys: Tensor | None) -> None:
        """Hold the keys [S, <=W, hd] of the positions before `end`, as `keys` gave them, and nothing else."""
        self._first = end - (0 if keys is None else keys.shape[1])
        self._made = self._end = end
        if keys is not None:
            self._keys[:, self._places(self._first, end)] = bring(keys, self._keys.device)

    def catch_up(self) -> None:
        """Make the keys that are waited for."""
        if self._made < self._end:
            places = self._places(self._made, self._end)
            made = self._project(torch.arange(self._made, self._end), self._rows[places])
            self._keys[:, places] = bring(made, self._keys.device).transpose(0, 1)
            self._made = self._end

    def keys(self) -> Tensor:
        """What a draft round behind the committed positions sees, in order of position: [S, <=W, hd], a copy."""
        self.catch_up()
        return self._keys[:, self._places(max(self._first, self._end - self._size), self._end)]

    def keys_at(self, end: int, rows: Tensor) -> Tensor:
        """`keys` as they will be at position `end` of a step that is not committed.

        `rows` [n, n_targets*D] are the step's before `end`, a window of them at most. Keys of earlier positions are
        left out where `rows` does not reach back to them.
        """
        n = rows.shape[0]
        if n == 0:
            return self._keys[:, :0]
        new = self._project(torch.arange(end - n, end), rows).transpose(0, 1)  # [S, n, hd]
        new = bring(new, self._keys.device)
        if n == self._size or end - n > self._end:
            return new
        old = self.keys()
        return torch.cat((old[:, max(0, old.shape[1] + n - self._size) :], new), dim=1)

    def _places(self, first: int, end: int) -> Tensor:
        """Where positions stand in the rings: [n] int64."""
        return torch.arange(first, end, device=self._keys.device) % self._size
