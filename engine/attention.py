"""Attention of one block: window ring and compressed positions under one softmax with a sink.

One KV vector per position (or group), shared by all heads, is key and value at once; so the output comes out in the
rotated frame and is rotated back with the query's position before the output projection.
"""

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.hyper import normed
from engine.indexer import index_keys, select
from engine.kernels import FRESH, Workspace
from engine.kernels.card_path import pieces
from engine.numerics import Numerics
from engine.phases import PhaseClock
from engine.rotary import rotated
from engine.state import State, Step
from engine.transfer import bring
from engine.weights import AttentionWeights, CompressorWeights, stored_bytes

_GATHER_BYTES = 16 << 20
"""Scratch for the keys of the rows attended together."""

_PROBABILITY_BLOCK = 64
"""Keys per running maximum in the released kernel, where `reference` rounds probabilities."""


def attention(
    x: Tensor, weights: AttentionWeights, layer: int, state: State, step: Step, config: ModelConfig, freq: Tensor,
    numerics: Numerics, clock: PhaseClock, work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """The attention half of block `layer`, stage and publish included. What choosing groups takes is the "indexer"'s.

    Shapes: x [T, D] after the attention norm; freq [rd/2]; result [T, D]. Everything lies on the layer's device.
    Source: spec/architecture section 9.
    """
    positions, some = step.positions_on(x.device), pieces(x)
    low_rank = low_rank_query(x, weights, config, numerics, work)
    keys = window_keys(x, weights, positions, config, freq, numerics, work)
    window = state.stage_window(step, layer, keys)  # [<W + T, hd] by position
    ratio = config.ratio(layer)
    if ratio:
        if weights.compressor is not None:
            _compress(x, weights.compressor, layer, state, step, config, freq, numerics, work)
            step.kv_source = layer
        if weights.indexer is not None:
            clock.lap("attention")
            parts = [
                select(x, low_rank, weights.indexer, layer, state, step, rows, config, freq, numerics, work)
                for rows in some
            ]
            step.selection = parts[0] if len(parts) == 1 else torch.cat(parts)
            clock.lap("indexer", stored_bytes(weights.indexer))
    latents, selection = None, None
    if ratio:
        assert step.selection is not None, "verified configs put an index source before every reader"
        selection = step.selection = bring(step.selection, x.device)
        latents = state.sources[step.kv_source].latents.upto((step.start + step.n_rows) // ratio, x.device)
    kernels = numerics.native()
    if kernels is not None:
        query = heads(low_rank, weights, positions, config, freq, numerics, work)
        out = kernels.attend(query, window, config.window_size, latents, selection, weights.sink, work)
        return project_out(out, weights, positions, config, freq, numerics, work)
    halves = [
        _attended(low_rank, window, latents, selection, rows, weights, step, positions, config, freq, numerics)
        for rows in some
    ]
    return halves[0] if len(halves) == 1 else torch.cat(halves)


def _attended(
    low_rank: Tensor, window: Tensor, latents: Tensor | None, selection: Tensor | None, rows: slice,
    weights: AttentionWeights, step: Step, positions: Tensor, config: ModelConfig, freq: Tensor, numerics: Numerics,
) -> Tensor:  # fmt: skip
    """What torch makes of some rows of a step, from their low-rank queries on: [R, D]."""
    mine = positions if rows.stop - rows.start == step.n_rows else positions[rows]
    query = heads(low_rank[rows], weights, mine, config, freq, numerics)
    out = torch.empty_like(query)
    n_keys = config.window_size + (selection.shape[1] if selection is not None else 0)
    block = max(1, _GATHER_BYTES // (4 * n_keys * config.head_dim))
    for row in range(rows.start, rows.stop, block):
        part = slice(row, min(row + block, rows.stop))
        gathered, valid = _gather(window, latents, selection, part, step, positions, config)
        here = slice(part.start - rows.start, part.stop - rows.start)
        out[here] = sparse_attention(query[here], gathered, valid, weights.sink, numerics)
    return project_out(out, weights, mine, config, freq, numerics)


def low_rank_query(
    x: Tensor, weights: AttentionWeights, config: ModelConfig, numerics: Numerics, work: Workspace = FRESH
) -> Tensor:
    """What heads are made of, and the indexer's: [T, D] -> [T, Rq]."""
    low_rank = numerics.value(numerics.product(numerics.operand(x), weights.wq_a, work))
    return normed(low_rank, weights.q_norm, config.norm_eps, numerics, work)


def heads(
    low_rank: Tensor, weights: AttentionWeights, positions: Tensor, config: ModelConfig, freq: Tensor,
    numerics: Numerics, work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """The rotated queries of all heads: [T, Rq] -> [T, H, hd]."""
    made = numerics.value(numerics.product(numerics.operand(low_rank), weights.wq_b, work))
    made = work.reshaped(made, made.shape[0], config.n_heads, config.head_dim)
    return rotated(made, positions, freq, numerics)


def window_keys(
    x: Tensor, weights: AttentionWeights, positions: Tensor, config: ModelConfig, freq: Tensor, numerics: Numerics,
    work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """One rotated key (and value) per position: [T, hd]."""
    keys = numerics.value(numerics.product(numerics.operand(x), weights.wkv, work))
    keys = normed(keys, weights.kv_norm, config.norm_eps, numerics, work)
    return numerics.window_kv(rotated(keys, positions, freq, numerics))


def _compress(
    x: Tensor, weights: CompressorWeights, layer: int, state: State, step: Step, config: ModelConfig, freq: Tensor,
    numerics: Numerics, work: Workspace,
) -> None:  # fmt: skip
    """Latents and index keys of the groups these rows complete, written behind the committed ones."""
    cache, ratio = state.sources[layer], config.ratio(layer)
    values = numerics.product(x, weights.wkv, work)  # [T, hd]
    if weights.wgate is None:
        latents = numerics.value(values)
    else:
        gates = numerics.product(x, weights.wgate, work)  # [T, hd]
        state.stage_open(step, layer, values, gates)
        waiting = step.start % ratio
        n_groups = (waiting + step.n_rows) // ratio
        if n_groups == 0:
            return
        values = torch.cat((cache.open_values[:waiting], values))[: n_groups * ratio]
        gates = torch.cat((cache.open_gates[:waiting], gates))[: n_groups * ratio]
        values = values.view(n_groups, ratio, -1)  # [G, r, hd]
        latents = numerics.value((values * _softmax(gates.view(n_groups, ratio, -1))).sum(1))  # [G, hd]
    latents = normed(latents, weights.norm, config.norm_eps, numerics, work)
    first = step.start // ratio
    positions = (first + torch.arange(latents.shape[0], device=x.device)) * ratio  # of each group's first token
    cache.keys.write(first, index_keys(latents, positions, weights, config, freq, numerics, work))
    cache.latents.write(first, numerics.compressed_kv(rotated(latents, positions, freq, numerics)))


def _softmax(gates: Tensor) -> Tensor:
    """Softmax over the middle axis of [G, r, hd], step by step: bits of torch's own depend on the number of rows."""
    weight = torch.exp(gates - gates.amax(1, keepdim=True))
    return weight / weight.sum(1, keepdim=True)


def _gather(
    window: Tensor, latents: Tensor | None, selection: Tensor | None, rows: slice, step: Step, positions: Tensor,
    config: ModelConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Keys of some rows side by side: [R, J, hd], and which of them are visible: [R, J] bool."""
    base = step.start - (window.shape[0] - step.n_rows)  # position of the first window key
    back = torch.arange(min(config.window_size, step.start + rows.stop) - 1, -1, -1, device=window.device)
    index = (positions[rows] - base).unsqueeze(1) - back  # [R, W] the oldest first
    keys, valid = window[index.clamp_min(0)], index >= 0
    if latents is not None and selection is not None and selection.shape[1]:
        chosen = selection[rows]
        keys = torch.cat((keys, latents[chosen.clamp_min(0)].to(keys.dtype)), dim=1)
        valid = torch.cat((valid, chosen >= 0), dim=1)
    return keys, valid


def sparse_attention(query: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, numerics: Numerics) -> Tensor:
    """Softmax over each row's own keys, with a per-head sink in the denominator only.

    Shapes: query [R, H, hd]; keys [R, J, hd], also the values; valid [R, J] bool; sink [H], unscaled; result [R, H,
    hd].
    Source: spec/architecture section 9.7, rounding of section 15 in `reference`.
    """
    scores = torch.matmul(query, keys.transpose(1, 2)) * keys.shape[-1] ** -0.5  # [R, H, J]
    scores = scores.masked_fill(~valid.unsqueeze(1), -torch.inf)
    top = torch.maximum(scores.amax(-1), sink)  # [R, H] finite: the sink is
    if numerics.name == "exact":
        weight = torch.exp(scores - top.unsqueeze(-1))
        total = weight.sum(-1) + torch.exp(sink - top)
        return torch.matmul(weight, keys) / total.unsqueeze(-1)
    out = torch.zeros_like(query)
    total = torch.zeros_like(top)
    running = torch.full_like(top, -torch.inf)
    for start in range(0, scores.shape[-1], _PROBABILITY_BLOCK):
        block = scores[..., start : start + _PROBABILITY_BLOCK]
        new = torch.maximum(running, block.amax(-1)).clamp_min(-1e30)  # finite also where nothing is visible
        decay = torch.exp(running - new)
        weight = torch.exp(block - new.unsqueeze(-1))
        total = total * decay + weight.sum(-1)
        mixed = torch.matmul(numerics.value(weight), keys[:, start : start + _PROBABILITY_BLOCK])
        out = out * decay.unsqueeze(-1) + mixed
        running = new
    total = total + torch.exp(sink - running)
    return numerics.value(out / total.unsqueeze(-1))


def project_out(
    out: Tensor, weights: AttentionWeights, positions: Tensor, config: ModelConfig, freq: Tensor, numerics: Numerics,
    work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """Rotate the heads back and project: [T, H, hd] -> [T, D].

    `wo_a` is block diagonal: group g of consecutive heads meets rows g*Ro .. g*Ro+Ro-1.
    """
    out = rotated(out, positions, freq, numerics, back=True)
    out = work.reshaped(out, out.shape[0], config.n_heads * config.head_dim)
    middle = numerics.value(numerics.grouped(out, weights.wo_a, config.o_groups, work))
    return numerics.value(numerics.product(numerics.operand(middle), weights.wo_b, work))
