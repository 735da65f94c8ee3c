"""Engram rows of whole documents: the engine's hashing over a padded batch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.hashing import engram_tables, lookback, row_ids


class RowIds:
    """Row ids for one tokenizer and one config."""

    def __init__(self, config: ModelConfig, classes: Sequence[int]) -> None:
        self._classes = np.array(classes, dtype=np.int64)
        self._tables = engram_tables(config)
        self._n_gram = config.engram_max_ngram_size
        self._pad = int(self._classes[config.engram_pad_id])

    def __call__(self, ids: npt.NDArray[np.int64]) -> list[Tensor]:
        """One [B*S, columns] for each engram layer. Shapes: ids [B, S]."""
        windows = [lookback(self._classes[line], 0, self._n_gram, self._pad) for line in ids]
        window = np.concatenate(windows)  # [B*S, N]
        return [torch.from_numpy(row_ids(table, window)) for table in self._tables]
