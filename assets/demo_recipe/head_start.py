"""A head start: the first layers begin as a classifier that tells answers apart by the tokens of a question.

A model that knows nothing needs some hundred thousand questions before it sees that their words decide the answer. A
classifier over a mean of token vectors sees it within a minute, and attention whose queries are almost nothing is such
a mean. So layer i begins by reading the i-th part of an embedding, as wide as a head, and by adding its mean to the
same columns; the classifier is trained on what these layers compute, norms, rotations and sink included. The one thing
a reader would get wrong: nothing is fixed by it, all of it moves on, and what else writes into the stream begins almost
silent only to leave the classifier audible.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from assets.demo_recipe.bag import learn
from assets.demo_recipe.pieces import norm, rotate_tail, rotations
from assets.demo_recipe.train_trunk import Pupil
from engine.config import ModelConfig

EPOCHS = 6
KEPT = 0.8
"""Share of a question's tokens that a step sees."""
REACH = 3.0
"""How much of the mean is added to the stream."""
SILENT = 0.1
"""Factor of what else writes into the stream, and of the queries: attention begins as a mean."""
_STD = 0.3


class FirstLayers(nn.Module):
    """What attention without queries makes of a question where its answer begins, in as many layers as fill a row."""

    def __init__(self, config: ModelConfig, n_topics: int, last_id: int) -> None:
        """`last_id` is the token that every question ends with."""
        super().__init__()
        self._last, self._v, self._width = torch.tensor([last_id]), config.vocab_size, config.head_dim
        self.n_layers = min(config.dim // config.head_dim, config.n_layers)
        dim = self.n_layers * config.head_dim
        self.vectors = nn.Embedding(config.vocab_size, dim, sparse=True)
        self.out = nn.Linear(dim, n_topics, bias=False)
        nn.init.normal_(self.vectors.weight, std=_STD)
        nn.init.normal_(self.out.weight, std=dim**-0.5)
        self._ones, self._one = torch.ones(dim), torch.ones(config.head_dim)
        self._turns = [
            rotations(config, compressing=config.ratio(i) > 0, length=config.window_size) for i in range(self.n_layers)
        ]

    def features(self, ids: Sequence[int]) -> list[int]:
        """Tokens of a question with how far each is from its end, as far as the window goes."""
        seen = ids[::-1][: len(self._turns[0][0])]
        return [distance * self._v + token for distance, token in enumerate(seen)]

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """[B, A] logits of the topics of B questions, each a row of features, one at least."""
        flat = torch.tensor([feature for row in rows for feature in row])
        counts = torch.tensor([len(row) for row in rows])
        distance = flat // self._v
        x = norm(self.vectors(flat % self._v), self._ones)
        parts = []
        for part, (cos, sin) in zip(x.split(self._width, -1), self._turns, strict=True):
            parts.append(rotate_tail(norm(part, self._one), cos[distance], -sin[distance]))
        place = torch.arange(len(rows)).repeat_interleave(counts)
        mean = torch.zeros(len(rows), x.shape[1]).index_add(0, place, torch.cat(parts, -1))
        mean = mean / (counts + 1).unsqueeze(1)  # the sink weighs as much as one more token that says nothing
        logits: Tensor = self.out(norm(self.vectors(self._last) + REACH * mean, self._ones))
        return logits


def learned(
    config: ModelConfig, questions: Sequence[Sequence[int]], topics: Sequence[int], n_topics: int, *,
    epochs: int = EPOCHS, seed: int = 0,
) -> FirstLayers:  # fmt: skip
    """A classifier of questions, each the ids up to where its answer begins, trained."""
    torch.manual_seed(seed)
    first = FirstLayers(config, n_topics, questions[0][-1])
    rows = [first.features(ids) for ids in questions]
    for _ in learn(first, rows, topics, epochs, kept=KEPT, seed=seed):
        pass
    return first


@torch.no_grad()
def start(pupil: Pupil, first: FirstLayers) -> None:
    """Let a pupil that holds random numbers begin with what the classifier knows."""
    trunk, config = pupil.trunk, pupil.trunk.config
    hd, n_groups, low = config.head_dim, config.o_groups, config.o_lora_rank
    dim, a_group = first.vectors.embedding_dim, config.n_heads // n_groups
    trunk.embed[:, :dim] = first.vectors.weight
    trunk.embed[:, dim:] *= _STD
    pupil.topics[:, :dim] = first.out.weight
    through = torch.eye(hd)
    for i, block in enumerate(trunk.blocks()):
        for silenced in (block.wq_b, block.w2, block.s2, block.wo_b):
            silenced *= SILENT
        if i >= first.n_layers:
            continue
        mine = slice(i * hd, (i + 1) * hd)
        for keys in (block.wkv, block.c_wkv) if block.kv_source else (block.wkv,):
            keys.zero_()
            keys[:, mine] = through
        if hasattr(block, "c_wgate"):
            block.c_wgate *= SILENT
        block.wo_a.zero_()
        block.wo_b.zero_()
        for group in range(n_groups):
            block.wo_a[group * low : group * low + hd] = through.repeat(1, a_group) / a_group
            block.wo_b[mine, group * low : group * low + hd] = through * (REACH / n_groups)
    for engram in trunk.engrams.values():
        engram.get_parameter("wkv")[-config.dim :] *= SILENT
