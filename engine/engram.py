"""Engram layers: rows looked up by the hash of the last tokens, gated into every residual copy.

Owns which rows a forward needs and what they do to the stream; the tables stay on the drives and only rows are read.
The one thing a reader would get wrong: every copy of the stream is normalised by itself, and the value is not
normalised at all.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import TokenizerError
from engine.formats import check_codes, expand_rows
from engine.hashing import EngramTable, lookback, row_ids
from engine.hyper import rms
from engine.kernels import FRESH, Workspace
from engine.kernels.card_path import pieces
from engine.numerics import Numerics, sigmoid
from engine.transfer import bring
from engine.weights import EngramWeights


class EngramFront:
    """From token ids to table rows: the compressed map and the hash of every engram layer.

    `token_map` [tokenizer size] int64 gives each token's class; ids beyond it (the config's vocabulary may be padded)
    fold to the class of the pad token.
    """

    def __init__(
        self, config: ModelConfig, tables: Sequence[EngramTable], token_map: npt.NDArray[np.int64] | None
    ) -> None:
        self._tables = tables
        self._n_gram = config.engram_max_ngram_size
        self._map: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._pad = 0
        if token_map is not None:
            if config.engram_pad_id >= len(token_map):
                raise TokenizerError(
                    f"engram_pad_id {config.engram_pad_id:,} is none of the tokenizer's {len(token_map):,} tokens",
                    hint="config.json or tokenizer.json does not belong to this checkpoint.",
                )
            self._pad = int(token_map[config.engram_pad_id])
            self._map = np.full(max(config.vocab_size, len(token_map)), self._pad, dtype=np.int64)
            self._map[: len(token_map)] = token_map

    def rows(self, before: Sequence[int], ids: Sequence[int]) -> Mapping[int, npt.NDArray[np.int64]]:
        """Row ids of each position of `ids`, per engram layer: [T, (N-1)*He] int64.

        `before` are the tokens already committed; only the last N-1 matter.
        """
        if not self._tables:
            return {}
        tail = list(before[len(before) - min(len(before), self._n_gram - 1) :])
        classes = self._map[np.asarray([*tail, *ids], dtype=np.int64)]
        window = lookback(classes, len(tail), self._n_gram, self._pad)
        return {table.layer: row_ids(table, window) for table in self._tables}


def expand_collected(
    weight: npt.NDArray[np.uint8], scale: npt.NDArray[np.uint8], layer: int, rows: npt.NDArray[np.int64]
) -> Tensor:
    """Collected table rows of each position, dequantised and concatenated in column order.

    Shapes: weight [T*C, de] and scale [T*C, ceil(de/32)] as collected; rows [T, C] their ids; result [T, C*de] float32.
    Raises: FormatError naming a row that holds a NaN code.
    """
    raw, factor = torch.from_numpy(weight), torch.from_numpy(scale)
    values = expand_rows(raw, factor)
    if bool(values.isnan().any()):
        bad = int(values.isnan().any(1).nonzero()[0, 0])
        row = int(rows.reshape(-1)[bad])
        name = f"layers.{layer}.engram.embed: row {row:,} of"
        check_codes(name, raw[bad : bad + 1], factor[bad : bad + 1], fp8=True)
    return values.view(rows.shape[0], -1)


def engram(
    h: Tensor, rows: Tensor, weights: EngramWeights, config: ModelConfig, numerics: Numerics, work: Workspace = FRESH,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The stream with the gated lookup added to every copy.

    Shapes: h [T, m, D]; rows [T, (N-1)*He*de], in memory; result like h. The native kernels put it in `out` if given,
    which may be h; many rows on a card are updated where they are.
    Source: spec/architecture section 6.5.
    """
    m, d = config.hc_mult, config.dim
    some = pieces(h)
    if len(some) > 1:
        for part in some:
            h[part] = engram(h[part], rows[part], weights, config, numerics)
        return h
    rows = bring(rows, h.device)
    projected = numerics.value(numerics.product(numerics.operand(rows), weights.wkv, work))  # [T, (m+1)*D]
    kernels = numerics.native()
    if kernels is not None:
        weight = torch.mul(weights.q_weight, weights.k_weight, out=work.take(m, d))
        return kernels.engram(h.contiguous(), projected, weight, config.norm_eps, out)
    key, value = projected[:, : m * d].view(-1, m, d), projected[:, m * d :]
    dot = (h * weights.q_weight * weights.k_weight * key).sum(-1, keepdim=True)
    dot = dot * rms(h, config.norm_eps) * rms(key, config.norm_eps) * d**-0.5  # [T, m, 1]
    gate = sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp_min(1e-6)), dot))
    return numerics.value(h + gate * value.unsqueeze(1))
