"""The differentiable forward of the trunk over whole documents in a padded batch [B, S].

Computes what a prefill computes: window, compressed positions and the indexer's selection are masks over a dense
attention. The one thing a reader would get wrong: the indexer is trained by a loss of its own, the attention's weights
over groups being its target, and nothing of that loss reaches the trunk.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.block import Block, Engram, normal, ones
from assets.demo_recipe.pieces import collapse_norm, linear, norm, rotate_tail, rotations, sink_softmax
from assets.demo_recipe.rounding import Reader
from engine.config import ModelConfig

MOST_POSITIONS = 1024


@dataclass(slots=True)
class _Pass:
    """What layers of one forward hand to later ones."""

    batch: int
    length: int
    window: Tensor
    """[S, S] what the window shows."""
    wants_index_loss: bool
    groups: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[B, n, hd] compressed keys of the nearest source."""
    index_keys: Tensor = field(default_factory=lambda: torch.zeros(0))
    score: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[B, S, n] the indexer's."""
    candidates: Tensor | None = None
    picked: Tensor | None = None
    """[B, S, n] which groups are selected; None: every visible one."""
    index_losses: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Forward:
    """What a forward gives."""

    logits: Tensor
    """[B, S, V]"""
    hidden: Tensor
    """[B, S, n_targets*D] the stream as it enters the draft head's target layers, averaged over the copies."""
    index_loss: Tensor | None


class Trunk(nn.Module):
    """All that every token runs through."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, v = config.dim, config.vocab_size
        self.embed = normal(v, d, std=1.0)
        self.head = normal(v, d, std=d**-0.5)
        self.norm = ones(d)
        self.layers = nn.ModuleList(
            Block(
                config, config.n_routed_experts, config.n_activated_experts, ratio=config.ratio(i),
                kv_source=i in config.kv_source_layers, index_source=i in config.index_source_layers,
            )
            for i in range(config.n_layers)
        )  # fmt: skip
        sizes = zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True)
        self.engrams = nn.ModuleDict({str(i): Engram(config, n) for i, n in sizes})
        self._turns = {c: rotations(config, compressing=c, length=MOST_POSITIONS) for c in (False, True)}

    def blocks(self) -> list[Block]:
        """The layers, with their type."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def forward(
        self, ids: Tensor, rows: list[Tensor], read: Reader, *, keep: Tensor | None = None, index_loss: bool = False
    ) -> Forward:
        """Run a batch.

        Shapes: ids [B, S]; rows [B*S, columns] for each engram layer; keep [B, S], 0 where a position sees no engram.
        """
        config = self.config
        b, s = ids.shape
        h = F.embedding(ids.flatten(), read(self.embed, "bf16")).unsqueeze(-2).repeat(1, config.hc_mult, 1)
        pre = torch.zeros(b * s, config.hc_mult)
        pre[:, 0] = 1
        q, k = torch.arange(s).unsqueeze(1), torch.arange(s)
        window = (k <= q) & (k > q - config.window_size)
        run = _Pass(batch=b, length=s, window=window, wants_index_loss=index_loss)
        seen = torch.ones(b * s) if keep is None else keep.flatten()
        targets = []
        for i, layer in enumerate(self.blocks()):
            if i in config.engram_layer_ids:
                h = self.engrams[str(i)](h, rows[config.engram_layer_ids.index(i)], seen, read)
            if i in config.dspark_target_layer_ids:
                targets.append(h.mean(-2))
            h, pre = layer.run(h, pre, lambda x, layer=layer, i=i: self._attention(i, layer, x, read, run), read)
        logits = F.linear(collapse_norm(h, pre, read(self.norm, "bf16")), read(self.head, "bf16"))
        losses = run.index_losses
        return Forward(
            logits=logits.view(b, s, -1),
            hidden=torch.cat(targets, -1).view(b, s, -1),
            index_loss=torch.stack(losses).mean() if losses else None,
        )

    def _turn(self, run: _Pass, *, compressing: bool) -> tuple[Tensor, Tensor]:
        cos, sin = self._turns[compressing]
        return cos[: run.length].repeat(run.batch, 1), sin[: run.length].repeat(run.batch, 1)

    def _group_turn(self, run: _Pass, r: int) -> tuple[Tensor, Tensor]:
        """Rotations of groups: a group stands at the place of its first position."""
        cos, sin = (turn[: run.length // r * r : r].repeat(run.batch, 1) for turn in self._turns[True])
        return cos, sin

    def _attention(self, i: int, layer: Block, x: Tensor, read: Reader, run: _Pass) -> Tensor:
        config, b, s, r = self.config, run.batch, run.length, layer.ratio
        heads, hd = config.n_heads, config.head_dim
        turn = self._turn(run, compressing=r > 0)
        qr, q = layer.queries(x, read, turn)
        keys, mask = layer.window_kv(x, read, turn).view(b, s, hd), run.window
        visible = torch.zeros(s, 0, dtype=torch.bool)
        if r > 0:
            visible = torch.arange(s // r) < ((torch.arange(s) + 1) // r).unsqueeze(1)  # [S, n]
            self._publish(i, layer, x, qr, read, run, visible)
            picked = visible if run.picked is None else run.picked & visible
            keys = torch.cat((keys, run.groups), 1)
            mask = torch.cat((run.window.expand(picked.shape[:-2] + run.window.shape), picked), -1)
        bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        bias = bias.unsqueeze(-2) if mask.dim() == 2 else bias.view(b, s, 1, -1)
        logits = (q.reshape(b, s * heads, hd) @ keys.transpose(1, 2)).view(b, s, heads, -1) * hd**-0.5 + bias
        p = sink_softmax(logits, layer.attn_sink.view(heads, 1))
        if layer.index_source and run.wants_index_loss and s // r > 1:
            run.index_losses.append(_ranking_loss(p.detach()[..., s:].sum(2), run.score, visible))
        o = (p.view(b, s * heads, -1) @ keys).view(b * s, heads, hd)
        return layer.output(o, read, turn)

    def _publish(self, i: int, layer: Block, x: Tensor, qr: Tensor, read: Reader, run: _Pass, visible: Tensor) -> None:
        """Compressed keys, index keys and the selection, where this layer is their source."""
        config, b, s, r = self.config, run.batch, run.length, layer.ratio
        n = s // r
        latent = None
        if layer.kv_source:
            latent = self._latent(layer, x, read, run)
            run.groups = rotate_tail(latent, *self._group_turn(run, r)).view(b, n, -1)
        if not layer.index_source:
            return
        selects = n > config.index_topk
        run.picked = None
        if not selects and not run.wants_index_loss:
            return
        if latent is not None:
            k = norm(F.linear(latent.detach(), read(layer.i_wk, "bf16")), read(layer.i_norm, "bf16"))
            run.index_keys = rotate_tail(k, *self._group_turn(run, r)).view(b, n, -1)
        hi, di = config.index_n_heads, config.index_head_dim
        qi = linear(qr.detach(), read(layer.i_wq_b, "fp8")).unflatten(-1, (hi, di))
        qi = rotate_tail(qi, *self._turn(run, compressing=True))
        w = F.linear(x.detach(), read(layer.i_weights, "bf16")) * (di**-0.5 * hi**-0.5)
        dots = (qi.reshape(b, s * hi, di) @ run.index_keys.transpose(1, 2)).view(b, s, hi, n)
        run.score = (dots.relu() * w.view(b, s, hi, 1)).sum(2)
        if selects:
            run.picked = self._select(i, run, visible, (torch.arange(s) + 1) // r)

    def _latent(self, layer: Block, x: Tensor, read: Reader, run: _Pass) -> Tensor:
        """The compressed positions [B*n, hd], before they are turned."""
        r = layer.ratio
        n = run.length // r
        a = F.linear(x, read(layer.c_wkv, "bf16"))
        if r > 1:
            w = F.linear(x, read(layer.c_wgate, "bf16"))
            a, w = (t.view(run.batch, run.length, -1)[:, : n * r].unflatten(1, (n, r)) for t in (a, w))
            a = (a * w.softmax(2)).sum(2).flatten(0, 1)
        latent: Tensor = norm(a, read(layer.c_norm, "bf16"))
        return latent

    def _select(self, i: int, run: _Pass, visible: Tensor, n_visible: Tensor) -> Tensor:
        config = self.config
        score = run.score.detach().masked_fill(~visible, -torch.inf)
        if i == config.candidate_source_layer:
            run.candidates = self._candidates(score, n_visible)
        elif 0 <= config.candidate_source_layer < i:
            assert run.candidates is not None
            score = score.masked_fill(~run.candidates, -torch.inf)
        top = torch.sort(score, dim=-1, descending=True, stable=True).indices[..., : config.index_topk]
        return torch.zeros(score.shape, dtype=torch.bool).scatter_(-1, top, True)

    def _candidates(self, score: Tensor, n_visible: Tensor) -> Tensor:
        """Positions in the best blocks; the newest visible block is always among them."""
        size, n = self.config.candidate_block_size, score.shape[-1]
        best = F.pad(score, (0, -n % size), value=-torch.inf).unflatten(-1, (-1, size)).amax(-1)
        newest = torch.arange(best.shape[-1]) == ((n_visible - 1) // size).unsqueeze(1)
        best = best.masked_fill(newest, torch.inf)
        k = min(self.config.candidate_topk_blocks, best.shape[-1])
        top = torch.sort(best, dim=-1, descending=True, stable=True).indices[..., :k]
        kept = torch.zeros(best.shape, dtype=torch.bool).scatter_(-1, top, best.gather(-1, top) > -torch.inf)
        return kept.repeat_interleave(size, -1)[..., :n]


def _ranking_loss(attended: Tensor, score: Tensor, visible: Tensor) -> Tensor:
    """Cross entropy of the indexer's ranking against what attention weighs. Shapes: attended, score [B, S, n]."""
    live = visible & (visible.sum(-1, keepdim=True) > 1)
    log_p = score.masked_fill(~live, -1e4).log_softmax(-1)
    target = attended.masked_fill(~live, 0)
    target = target / (target.sum(-1, keepdim=True) + 1e-9)
    return -(target * log_p).sum(-1).mean()
