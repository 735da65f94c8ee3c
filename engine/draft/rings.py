"""What the draft stages remember of a conversation: one ring of window keys each, made from main positions only.

Part of a conversation's state. The one thing a reader would get wrong: the rings are kept current for every committed
position, also while drafting is paused; a draft round reads them and never writes them.
"""

import torch
from torch import Tensor

from engine.config import ModelConfig


class DraftRings:
    """Window keys of every draft stage.

    Attributes:
        keys: [S, W, hd] float32; the key of position p stands at p % W.
        first: The first position whose keys are here. Not 0 in a state that was taken over from a run without drafts;
            such rings fill as positions are committed.
    """

    def __init__(self, config: ModelConfig, first: int = 0) -> None:
        self.keys = torch.zeros((config.n_mtp_layers, config.window_size, config.head_dim))
        self.first = first

    def write(self, positions: Tensor, keys: Tensor) -> None:
        """Put keys [n, S, hd] at positions [n], at most a window of them."""
        self.keys[:, positions % self.keys.shape[1]] = keys.transpose(0, 1)

    def before(self, n_tokens: int) -> Tensor:
        """The keys a draft round after `n_tokens` positions sees, in order of position: [S, <=W, hd]."""
        positions = torch.arange(max(self.first, n_tokens - self.keys.shape[1]), n_tokens)
        return self.keys[:, positions % self.keys.shape[1]]
