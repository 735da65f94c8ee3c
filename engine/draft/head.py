"""The draft head: a few window-only stages over the model's own stream, then a bigram correction token by token.

The one thing a reader would get wrong: rows of a block see each other both ways, later ones too, so a round always runs
a whole block, however few drafts are wanted; and their keys never enter the rings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.attention import project_out, queries, sparse_attention, window_keys
from engine.config import ModelConfig
from engine.draft.source import Choose, Proposal
from engine.draft.weights import HeadWeights
from engine.errors import Stopped
from engine.hyper import collapse, collapse_normed, mix, normed, update
from engine.kernels import Matrix
from engine.moe import ExpertWaves, Routing, moe, route
from engine.numerics import Numerics
from engine.phases import PhaseClock
from engine.state import State
from engine.weights import AttentionWeights, stored_bytes

WavesOf = Callable[[int, Callable[[], bool]], ExpertWaves]
"""Layer and whether to stop -> its experts, in waves."""


@dataclass(slots=True)
class DraftTrace:
    """What a round chose, for comparison with golden data. Filled only when asked for."""

    routing: dict[int, Routing] = field(default_factory=dict)
    """By stage."""
    top_logits: list[float] = field(default_factory=list)
    """The largest of each row, bigram term included."""


class DraftHead:
    """The head of an open model. Implements `DraftSource`."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        weights: HeadWeights,
        freq: Tensor,
        *,
        embed: Callable[[Sequence[int]], Tensor],
        waves: WavesOf,
        output: Matrix,
        clock: PhaseClock,
    ) -> None:
        """`freq` are the window layers' rotations; `embed` gives rows [n, D]; `output` is the model's head [V, D]."""
        self._config = config
        self._numerics = numerics
        self._weights = weights
        self._freq = freq
        self._embed = embed
        self._waves = waves
        self._output = output
        self._clock = clock
        parts = (*weights.stages, weights.markov_head, output)
        self._bytes = sum(map(stored_bytes, parts))
        projected = (weights.main_proj, *(stage.attention.wkv for stage in weights.stages))
        self._project_bytes = sum(map(stored_bytes, projected))
        self._ones: dict[int, Tensor] = {}
        """[n, m] by n."""

    @property
    def block_size(self) -> int:
        """The most tokens of a round."""
        return self._config.dspark_block_size

    def summed(self, h: Tensor) -> Tensor:
        """The stream as it enters a target layer, its copies added up one after another: [n, m, D] -> [n, D].

        All that a token costs while nothing is drafted: with cold weights around it, a call of torch takes tens of
        microseconds, so it is one, and the mean is taken by `project`.
        """
        kernels = self._numerics.native()
        if kernels is not None:
            n, m, _ = h.shape
            if n not in self._ones:
                self._ones[n] = torch.ones(n, m)
            return kernels.collapse(h, self._ones[n], None, 0.0)
        total = h[:, 0].clone()
        for copy in range(1, h.shape[1]):
            total += h[:, copy]
        return total

    def project(self, positions: Tensor, targets: Tensor) -> Tensor:
        """The window keys of main positions [n], one for every stage: [n, S, hd].

        Shapes: targets [n, n_targets*D], what `summed` gave of each target layer.
        Source: spec/architecture section 13.1. The keys are made from the projection directly: no attention norm.
        """
        self._clock.begin()
        config, numerics, weights = self._config, self._numerics, self._weights
        mean = numerics.value(targets / config.hc_mult)
        main = numerics.value(numerics.product(numerics.operand(mean), weights.main_proj))
        main = normed(main, weights.main_norm, config.norm_eps, numerics)  # [n, D]
        keys = [window_keys(main, s.attention, positions, config, self._freq, numerics) for s in weights.stages]
        self._clock.lap("draft", self._project_bytes)
        return torch.stack(keys, 1)

    def propose(
        self,
        state: State,
        token: int,
        n: int,
        choose: Choose,
        should_stop: Callable[[], bool],
        trace: DraftTrace | None = None,
    ) -> Proposal:
        """See `DraftSource`. A token whose logits hold no distribution raises LogitsError."""
        assert state.draft is not None, "the state was made without a draft head"
        rings = state.draft.keys()  # [S, <=W, hd]
        self._clock.begin()
        config, numerics, n = self._config, self._numerics, min(n, self.block_size)
        positions = state.n_tokens + torch.arange(self.block_size)
        ids = [token] + [config.dspark_noise_token_id] * (self.block_size - 1)
        h = self._embed(ids).unsqueeze(1).repeat(1, config.hc_mult, 1)  # [B, m, D]
        pre = torch.zeros(self.block_size, config.hc_mult)
        pre[:, 0] = 1.0
        for stage, block in enumerate(self._weights.stages):
            if should_stop():
                raise Stopped("the draft was stopped")
            coefficients = mix(h, block.mix_attention, config, numerics)
            x = collapse_normed(h, pre, block.attention.norm, config.norm_eps, numerics)
            h = update(h, self._attention(x, block.attention, rings[stage], positions), coefficients, numerics)
            pre = coefficients.pre
            coefficients = mix(h, block.mix_ffn, config, numerics)
            x = collapse_normed(h, pre, block.ffn.norm, config.norm_eps, numerics)
            routing = route(x, block.ffn, config.dspark_n_activated_experts, config, numerics)
            y = moe(x, routing, self._waves(block.layer, should_stop), block.ffn, config, numerics)
            h = update(h, y, coefficients, numerics)
            pre = coefficients.pre
            if trace is not None:
                trace.routing[stage] = routing
        proposal = self._correct(collapse(h[:n], pre[:n], numerics), token, state.n_tokens + 1, choose, trace)
        self._clock.lap("draft", self._bytes)
        return proposal

    def _attention(self, x: Tensor, weights: AttentionWeights, ring: Tensor, positions: Tensor) -> Tensor:
        """Every row sees the ring and all rows of the block. Shapes: x [B, D]; ring [<=W, hd]; result [B, D]."""
        config, numerics, freq = self._config, self._numerics, self._freq
        _, query = queries(x, weights, positions, config, freq, numerics)
        keys = torch.cat((ring, window_keys(x, weights, positions, config, freq, numerics)))  # [J, hd]
        keys = keys.expand(x.shape[0], -1, -1)
        out = sparse_attention(query, keys, torch.ones(keys.shape[:2], dtype=torch.bool), weights.sink, numerics)
        return project_out(out, weights, positions, config, freq, numerics)

    def _correct(self, collapsed: Tensor, token: int, first: int, choose: Choose, trace: DraftTrace | None) -> Proposal:
        """Logits of every row, corrected by the token actually chosen before it. Shapes: collapsed [n, D].

        `first` is the position of the first draft. Source: spec/architecture section 13.2; the confidence reads the
        stream before the norm.
        """
        weights, numerics = self._weights, self._numerics
        x = normed(collapsed, weights.norm, self._config.norm_eps, numerics)
        logits = numerics.product(x, self._output)  # [n, V]
        chosen, confidence = [token], list[float]()
        for row in range(collapsed.shape[0]):
            before = weights.markov_embed.weight[chosen[-1]].to(torch.float32).unsqueeze(0)  # [1, rank]
            corrected = (logits[row : row + 1] + numerics.product(before, weights.markov_head))[0]
            joined = torch.cat((collapsed[row : row + 1], before), dim=1)
            confidence.append(float(numerics.product(joined, weights.confidence)))
            chosen.append(choose(corrected, first + row))
            if trace is not None:
                trace.top_logits.append(float(corrected.max()))
        return Proposal(ids=tuple(chosen[1:]), confidence=tuple(confidence))
