"""The draft head: a few window-only stages over the model's own stream, then a bigram correction token by token.

The one thing a reader would get wrong: rows of a block see each other both ways, later ones too, so a round always runs
a whole block, however few drafts are wanted; and their keys never enter the rings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from engine.attention import heads, low_rank_query, project_out, sparse_attention, window_keys
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
from engine.transfer import MEMORY, bring, fetch_rows
from engine.weights import AttentionWeights, stored_bytes

T = TypeVar("T")


class WithRoom(Protocol):
    """Work that may be done again, by less and less of a card."""

    def __call__(self, work: Callable[[], T]) -> T:
        """What `work` gives."""
        ...


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
        freq: Callable[[torch.device], Tensor],
        *,
        embed: Callable[[Sequence[int]], Tensor],
        waves: WavesOf,
        output: Matrix,
        clock: PhaseClock,
        with_room: WithRoom,
    ) -> None:
        """`freq` gives the window layers' rotations on a device; `embed` rows [n, D]; `output` is the model's head
        [V, D]. `with_room` does work that a card may have no memory for.
        """
        self._config = config
        self._numerics = numerics
        self.weights = weights
        self._freq = freq
        self._embed = embed
        self._waves = waves
        self._output = output
        self._clock = clock
        self._with_room = with_room
        parts = (*weights.stages, weights.markov_head, output)
        self._bytes = sum(map(stored_bytes, parts))
        projected = (weights.main_proj, *(stage.attention.wkv for stage in weights.stages))
        self._project_bytes = sum(map(stored_bytes, projected))
        self._ones: dict[int, Tensor] = {}
        """[n, m] by n."""

    @property
    def device(self) -> torch.device:
        """Where the stages are computed, and so where their keys lie."""
        return self.weights.main_norm.device

    def replace(self, weights: HeadWeights, output: Matrix) -> None:
        """Go on with the same weights, and the same output matrix, elsewhere."""
        self.weights, self._output = weights, output

    @property
    def block_size(self) -> int:
        """The most tokens of a round."""
        return self._config.dspark_block_size

    def summed(self, h: Tensor) -> Tensor:
        """The stream as it enters a target layer, its copies added up one after another: [n, m, D] -> [n, D].

        All that a token costs while nothing is drafted: with cold weights around it, a call of torch takes tens of
        microseconds, so it is one, and the mean is taken by `project`.
        """
        kernels = self._numerics.at(h.device).native()
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
        """The window keys of main positions [n], one for every stage: [n, S, hd], where the stages are.

        Shapes: positions in memory; targets [n, n_targets*D], what `summed` gave of each target layer.
        Source: spec/architecture section 13.1. The keys are made from the projection directly: no attention norm.
        """
        return self._with_room(lambda: self._project(positions, targets))

    def _project(self, positions: Tensor, targets: Tensor) -> Tensor:
        self._clock.begin()
        config, weights, device = self._config, self.weights, self.device
        numerics, freq, positions = self._numerics.at(device), self._freq(device), bring(positions, device)
        mean = numerics.value(bring(targets, device) / config.hc_mult)
        main = numerics.value(numerics.product(numerics.operand(mean), weights.main_proj))
        main = normed(main, weights.main_norm, config.norm_eps, numerics)  # [n, D]
        keys = [window_keys(main, s.attention, positions, config, freq, numerics) for s in weights.stages]
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
        return self._with_room(lambda: self._propose(state, token, n, choose, should_stop, trace))

    def _propose(
        self, state: State, token: int, n: int, choose: Choose, should_stop: Callable[[], bool],
        trace: DraftTrace | None,
    ) -> Proposal:  # fmt: skip
        assert state.draft is not None, "the state was made without a draft head"
        kept = state.draft.keys()  # making them may take the head off its card
        device = self.device
        rings = bring(kept, device)  # [S, <=W, hd]
        self._clock.begin()
        config, numerics, n = self._config, self._numerics.at(device), min(n, self.block_size)
        positions = bring(state.n_tokens + torch.arange(self.block_size), device)
        ids = [token] + [config.dspark_noise_token_id] * (self.block_size - 1)
        h = bring(self._embed(ids), device).unsqueeze(1).repeat(1, config.hc_mult, 1)  # [B, m, D]
        pre = torch.zeros(self.block_size, config.hc_mult, device=device)
        pre[:, 0] = 1.0
        for stage, block in enumerate(self.weights.stages):
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
                trace.routing[stage] = Routing(*(bring(part, MEMORY) for part in routing))
        proposal = self._correct(collapse(h[:n], pre[:n], numerics), token, state.n_tokens + 1, choose, trace)
        self._clock.lap("draft", self._bytes)
        return proposal

    def _attention(self, x: Tensor, weights: AttentionWeights, ring: Tensor, positions: Tensor) -> Tensor:
        """Every row sees the ring and all rows of the block. Shapes: x [B, D]; ring [<=W, hd]; result [B, D]."""
        config, numerics, freq = self._config, self._numerics.at(x.device), self._freq(x.device)
        query = heads(low_rank_query(x, weights, config, numerics), weights, positions, config, freq, numerics)
        keys = torch.cat((ring, window_keys(x, weights, positions, config, freq, numerics)))  # [J, hd]
        keys = keys.expand(x.shape[0], -1, -1)
        seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=x.device)
        out = sparse_attention(query, keys, seen, weights.sink, numerics)
        return project_out(out, weights, positions, config, freq, numerics)

    def _correct(self, collapsed: Tensor, token: int, first: int, choose: Choose, trace: DraftTrace | None) -> Proposal:
        """Logits of every row, corrected by the token actually chosen before it. Shapes: collapsed [n, D].

        `first` is the position of the first draft. Source: spec/architecture section 13.2; the confidence reads the
        stream before the norm.
        """
        weights, numerics = self.weights, self._numerics.at(collapsed.device)
        x = normed(collapsed, weights.norm, self._config.norm_eps, numerics)
        logits = bring(numerics.product(bring(x, self._output.weight.device), self._output), x.device)  # [n, V]
        chosen, confidence = [token], list[float]()
        for row in range(collapsed.shape[0]):
            before = weights.markov_embed.weight[chosen[-1]].to(torch.float32).unsqueeze(0)  # [1, rank]
            corrected = logits[row : row + 1] + numerics.product(before, weights.markov_head)
            joined = torch.cat((collapsed[row : row + 1], before), dim=1)
            sure, corrected = fetch_rows(numerics.product(joined, weights.confidence), corrected)()  # one wait for both
            corrected = corrected[0]
            confidence.append(float(sure))
            chosen.append(choose(corrected, first + row))
            if trace is not None:
                trace.top_logits.append(float(corrected.max()))
        return Proposal(ids=tuple(chosen[1:]), confidence=tuple(confidence))
