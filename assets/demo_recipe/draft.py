"""The differentiable draft head: window-only stages over a block of rows, fed by the trunk's stream.

The one thing a reader would get wrong: rows of a block see each other both ways, and their keys never join the main
stream's; the bigram term is fed with the tokens that really followed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.block import Block, normal, ones
from assets.demo_recipe.pieces import Rotation, linear, norm, rotations, sink_softmax
from assets.demo_recipe.rounding import Reader
from assets.demo_recipe.trunk import MOST_POSITIONS
from engine.config import ModelConfig


class Draft(nn.Module):
    """The DSpark head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, v, rank, n = config.dim, config.vocab_size, config.dspark_markov_rank, len(config.dspark_target_layer_ids)
        self.main_proj = normal(d, d * n, std=(n * d) ** -0.5)
        self.main_norm, self.norm = ones(d), ones(d)
        self.markov_embed, self.markov_head = normal(v, rank, std=1.0), normal(v, rank, std=0.1 * rank**-0.5)
        self.confidence = normal(1, d + rank, std=0.01)
        self.stages = nn.ModuleList(
            Block(config, config.dspark_n_routed_experts, config.dspark_n_activated_experts)
            for _ in range(config.n_mtp_layers)
        )
        self._turn = rotations(config, compressing=False, length=MOST_POSITIONS)

    def blocks(self) -> list[Block]:
        """The stages, with their type."""
        return [stage for stage in self.stages if isinstance(stage, Block)]

    def forward(
        self, hidden: Tensor, anchors: Tensor, tokens: Tensor, embed: Tensor, head: Tensor, read: Reader
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, A, n, V] and confidence [B, A, n] of the n drafts behind each anchor.

        Shapes: hidden [B, S, n_targets*D]; anchors [B, A], positions p; tokens [B, A, n+1], the token at p+1 and those
        that follow it; embed, head [V, D], the trunk's.
        """
        config, n = self.config, self.config.dspark_block_size
        (b, s, _), na = hidden.shape, anchors.shape[1]
        main = norm(linear(hidden.flatten(0, 1), read(self.main_proj, "fp8")), read(self.main_norm, "bf16"))
        ids = torch.full((b, na, n), config.dspark_noise_token_id)
        ids[..., 0] = tokens[..., 0]
        h = F.embedding(ids.flatten(), embed).unsqueeze(-2).repeat(1, config.hc_mult, 1)
        pre = torch.zeros(b * na * n, config.hc_mult)
        pre[:, 0] = 1
        at = (anchors.unsqueeze(-1) + 1 + torch.arange(n)).flatten()
        turn: Rotation = (self._turn[0][at], self._turn[1][at])
        main_turn: Rotation = (self._turn[0][:s].repeat(b, 1), self._turn[1][:s].repeat(b, 1))
        k = torch.arange(s)
        live = (k <= anchors.unsqueeze(-1)) & (k > anchors.unsqueeze(-1) - config.window_size)
        bias = torch.zeros(live.shape).masked_fill(~live, -torch.inf).view(b, na, 1, 1, s)

        def attention(x: Tensor, stage: Block) -> Tensor:
            heads, hd = config.n_heads, config.head_dim
            ring = stage.window_kv(main, read, main_turn).view(b, s, hd)
            _, q = stage.queries(x, read, turn)
            own = stage.window_kv(x, read, turn).reshape(b * na, n, hd)
            far = (q.reshape(b, -1, hd) @ ring.transpose(1, 2)).view(b, na, n, heads, s) * hd**-0.5 + bias
            near = (q.reshape(b * na, n * heads, hd) @ own.transpose(1, 2)).view(b, na, n, heads, n) * hd**-0.5
            p = sink_softmax(torch.cat((far, near), -1), stage.attn_sink.view(heads, 1))
            o = (p[..., :s].reshape(b, -1, s) @ ring).view(b, na, n, heads, hd)
            o = o + (p[..., s:].reshape(b * na, n * heads, n) @ own).view(b, na, n, heads, hd)
            return stage.output(o.flatten(0, 2), read, turn)

        for stage in self.blocks():
            h, pre = stage.run(h, pre, lambda x, stage=stage: attention(x, stage), read)
        c = (pre.unsqueeze(-1) * h).sum(-2)  # [B*A*n, D]
        before = F.embedding(tokens[..., :n].flatten(), read(self.markov_embed, "bf16"))
        logits = F.linear(norm(c, read(self.norm, "bf16")), head) + F.linear(before, read(self.markov_head, "bf16"))
        joined = torch.cat((c.detach(), before.detach()), -1)
        confidence = F.linear(joined, read(self.confidence, "bf16")).squeeze(-1)
        return logits.view(b, na, n, -1), confidence.view(b, na, n)
