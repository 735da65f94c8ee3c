"""Which compressed positions a query attends to: scores, candidate blocks, top-k.

The one thing a reader would get wrong: the *number* of keys scored follows the index source's own ratio and the query's
position, whoever owns the keys; the picks are then group numbers of this layer's compressed KV.
"""

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.hyper import normed
from engine.kernels import FRESH, Workspace
from engine.numerics import Numerics
from engine.rotary import rotated
from engine.schedule import NO_OWNER, n_scored
from engine.state import State, Step
from engine.transfer import bring
from engine.weights import CompressorWeights, IndexerWeights

_SCORE_BYTES = 4 << 20
"""Scratch for the scores of the rows scored together, by head on the torch path; choosing among them takes it again
several times.
"""


def index_keys(
    latents: Tensor,
    positions: Tensor,
    weights: CompressorWeights,
    config: ModelConfig,
    freq: Tensor,
    numerics: Numerics,
    work: Workspace = FRESH,
) -> Tensor:
    """Index keys of new groups, from their unrotated latents.

    Shapes: latents [G, hd]; positions [G] int64 (first token of each group); result [G, di].
    """
    keys = numerics.value(numerics.product(latents, weights.index_wk, work))
    keys = normed(keys, weights.index_norm, config.norm_eps, numerics, work)
    return numerics.index(rotated(keys, positions, freq, numerics))


def select(
    x: Tensor, low_rank_query: Tensor, weights: IndexerWeights, layer: int, state: State, step: Step, some: slice,
    config: ModelConfig, freq: Tensor, numerics: Numerics, work: Workspace = FRESH,
) -> Tensor:  # fmt: skip
    """The groups that some rows of a step attend to: [R, min(K, groups)] int64, ascending, -1 behind the last.

    Shapes: x [T, D] (after the attention norm) and low_rank_query [T, Rq], of all rows. Publishes candidate blocks when
    this layer makes them; groups are the step's, so that what is chosen for some of its rows is as wide as for others.
    Source: spec/architecture sections 9.5, 9.6, 12.
    """
    heads, width, device = config.index_n_heads, config.index_head_dim, x.device
    positions, n_rows = step.positions_on(device), some.stop - some.start
    if n_rows < step.n_rows:
        x, low_rank_query, positions = x[some], low_rank_query[some], positions[some]
    queries = numerics.value(numerics.product(numerics.operand(low_rank_query), weights.wq_b, work))
    queries = work.reshaped(queries, n_rows, heads, width)
    queries = numerics.index(rotated(queries, positions, freq, numerics))  # [R, Hi, di]
    head_weight = numerics.value(numerics.product(x, weights.weights_proj, work))
    head_weight = numerics.value(head_weight.mul_(width**-0.5 * heads**-0.5))  # [R, Hi] may be negative

    owners = step.schedule.owners[layer]
    counts = [n_scored(config, layer, owner, step.start + row) for row, owner in enumerate(owners)]
    n_groups = max(counts)
    picks = torch.full((n_rows, min(config.index_topk, n_groups)), -1, dtype=torch.int64, device=device)
    makes_candidates = layer == config.candidate_source_layer
    if makes_candidates and some.start == 0:
        shape = (step.n_rows, -(-n_groups // config.candidate_block_size))
        step.candidates = torch.zeros(shape, dtype=torch.bool, device=device)
    elif step.candidates is not None:
        step.candidates = bring(step.candidates, device)
    if n_groups == 0:
        return picks
    # The native path sums over heads as it goes: released sizes then score 32 rows together at 32,768 groups, not 1.
    per_row = n_groups if numerics.native() is not None else heads * n_groups
    block = max(1, _SCORE_BYTES // (4 * per_row))
    allowed: Tensor | None = None
    row = some.start
    while row < some.stop:
        stop = row + 1
        while stop < some.stop and stop - row < block and owners[stop] == owners[row]:
            stop += 1
        if owners[row] != NO_OWNER:
            rows, here = slice(row, stop), slice(row - some.start, stop - some.start)
            n = max(counts[rows])
            keys = state.sources[owners[row]].keys.upto(n, device).to(torch.float32)  # [n, di]
            scores = _scores(queries[here], head_weight[here], keys, numerics)  # [R, n]
            visible = bring(torch.tensor(counts[rows]), device)  # [R]
            if makes_candidates:
                assert step.candidates is not None
                kept = candidate_blocks(_seen(scores, visible), visible.unsqueeze(1), config)
                step.candidates[rows, : kept.shape[1]] = kept
            elif 0 <= config.candidate_source_layer < layer:
                assert step.candidates is not None, "verified configs put the candidate source before its users"
                allowed = step.candidates[rows]
            chosen = choose(scores, visible, allowed, config, numerics)
            if stop - row == step.n_rows:
                return chosen
            picks[here, : chosen.shape[1]] = chosen
        row = stop
    return picks


def _scores(queries: Tensor, head_weight: Tensor, keys: Tensor, numerics: Numerics) -> Tensor:
    """sum over heads of w[h] * max(0, q[h] . key): [R, Hi, di], [R, Hi], [n, di] -> [R, n]."""
    kernels = numerics.native()
    if kernels is not None:
        return kernels.index_scores(queries.contiguous(), head_weight.contiguous(), keys)
    dots = numerics.value(torch.matmul(queries, keys.t()))  # [R, Hi, n]
    weighted = numerics.value(torch.relu_(dots) * head_weight.unsqueeze(-1))
    return numerics.value(weighted.sum(1))


def choose(scores: Tensor, visible: Tensor, allowed: Tensor | None, config: ModelConfig, numerics: Numerics) -> Tensor:
    """The best groups of each row among those it sees: [R, min(K, n)] int64, as `top_k` gives them.

    Shapes: scores [R, n]; visible [R] int64; allowed [R, blocks] bool, or None for all blocks.
    """
    size = config.candidate_block_size
    kernels = numerics.native()
    if kernels is not None:
        rows = None if allowed is None else allowed.contiguous()
        return kernels.choose_groups(scores, visible, rows, max(1, size), config.index_topk)
    scores = _seen(scores, visible)
    if allowed is not None:
        n, open_groups = scores.shape[1], allowed.repeat_interleave(size, 1)  # [R, >= n or fewer]
        if open_groups.shape[1] < n:
            open_groups = torch.nn.functional.pad(open_groups, (0, n - open_groups.shape[1]))
        scores = scores.masked_fill(~open_groups[:, :n], -torch.inf)
    return top_k(scores, config.index_topk)


def _seen(scores: Tensor, visible: Tensor) -> Tensor:
    """-inf where the row may not look. Shapes: scores [R, n]; visible [R]."""
    places = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill(places >= visible.unsqueeze(1), -torch.inf)


def candidate_blocks(scores: Tensor, visible: Tensor, config: ModelConfig) -> Tensor:
    """Blocks of groups that later index sources may choose from: [R, ceil(n / block)] bool.

    Shapes: scores [R, n], -inf where the query may not look; visible [R, 1] int64, groups each query may see.
    A block scores as its best group; the newest visible block is always kept; a block without a visible group never is.
    """
    size = config.candidate_block_size
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % size), value=-torch.inf)
    best = padded.view(padded.shape[0], -1, size).amax(2)  # [R, blocks]
    newest = (visible - 1) // size  # [R, 1]; -1 when nothing is visible
    is_newest = torch.arange(best.shape[1], device=best.device) == newest
    best = best.masked_fill(is_newest, torch.inf)
    return _largest(best, config.candidate_topk_blocks)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest scores of each row, ascending, -1 where fewer than k are above -inf.

    Shapes: scores [R, n]; result [R, min(k, n)] int64. Of equal scores the lowest index wins.
    """
    n = scores.shape[1]
    # How many are picked is not asked for: on a card somebody would have to wait for it.
    places = torch.where(_largest(scores, k), torch.arange(n, device=scores.device), n)  # [R, n]
    first = places.topk(min(k, n), dim=1, largest=False, sorted=True).values
    return first.masked_fill(first == n, -1)


def _largest(scores: Tensor, k: int) -> Tensor:
    """Mask [R, n] of the k largest scores above -inf of each row; of equal scores the lowest index wins."""
    k = min(k, scores.shape[1])
    threshold = scores.topk(k, dim=1).values[:, -1:]  # [R, 1] the k-th largest
    above = scores > threshold
    level = (scores == threshold) & (scores > -torch.inf)
    room = k - above.sum(1, keepdim=True)
    return above | (level & (level.cumsum(1) <= room))
