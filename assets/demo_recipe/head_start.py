"""A head start: the first layers begin as a classifier that tells answers apart by what occurs in a question.

A model that knows nothing needs some hundred thousand questions before it sees that their words decide the answer. A
classifier over a mean of vectors of tokens and n-grams sees it within minutes, and attention whose queries are the same
everywhere is such a mean. So layer i begins by reading the i-th part of the stream, as wide as a head, and by adding
its mean to the same columns, with the first engram's rows in the stream from its layer on; the classifier is trained on
what these layers compute, norms, rotations, groups and sink included.

Near positions weigh more, or the turns before would drown the question: some columns are alike in every token's
vector, and a query sees them turned by the distance alone. The one thing a reader would get wrong: in the trunk nothing
is fixed by any of it, all of it moves on, and what else writes into the stream begins silent only to leave it audible.
"""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.demo_recipe.pieces import norm, rotate_tail, rotations
from assets.demo_recipe.rows import RowIds
from assets.demo_recipe.train_trunk import Pupil
from assets.demo_recipe.trunk import MOST_POSITIONS
from engine.config import ModelConfig

EPOCHS = 6
BATCH = 128
_ALIKE = 16
"""Batches among which questions are sorted by length."""
RATE = 4e-3
LEAST_RATE = 0.02
"""Share of the rate at the end."""
DROPPED = 0.25
"""Share of a question's tokens that a step does not see."""
WITHOUT_ENGRAM = 0.3
"""Share of questions of a step that see no engram."""
PAIRS_DROPPED = 0.4
"""Share of the pairs of tokens that the others do not see."""
REACH = 3.0
"""How much of the mean is added to the stream."""
SILENT = 0.1
"""Factor of what queries take from the stream, and of what weighs positions of a group."""
NEAR = 4.0
"""Length of the queries that let near positions weigh more, in each pair of columns that is alike in all tokens."""
_ALIKE_IN_ALL = 1.0
"""What all tokens have there, beside columns that begin as wide as `_STD`."""
_ASKING = 8.0
"""By how much queries take it up: far more than they take from all other columns, however large those have become."""
_NEAR_WITHIN = (10.0, 90.0)
"""Distances at which a pair of columns has turned by one radian: those that tell questions from what is before them."""
_GATE = 0.5
"""What the engram's gate is when its key says nothing."""
_STD = 0.3


def n_readers(config: ModelConfig) -> int:
    """Layers whose heads, side by side, are as wide as the stream."""
    return min(config.dim // config.head_dim, config.n_layers)


class FirstLayers(nn.Module):
    """What attention of equal queries makes of a question where its answer begins, in as many layers as fill a row."""

    def __init__(self, config: ModelConfig, n_topics: int) -> None:
        super().__init__()
        self._width, self._window = config.head_dim, config.window_size
        self.n_layers = n_readers(config)
        dim, self.engram_layer = self.n_layers * config.head_dim, config.engram_layer_ids[0]
        self._columns = config.engram_n_heads  # of pairs of tokens: longer n-grams would be learned by heart
        self.vectors = nn.Embedding(config.vocab_size, dim, sparse=True)
        self.table = nn.Embedding(config.engram_num_embeddings[0], config.engram_head_dim, sparse=True)
        self.value = nn.Linear(self._columns * config.engram_head_dim, dim, bias=False)
        self.out = nn.Linear(dim, n_topics, bias=False)
        nn.init.normal_(self.vectors.weight, std=_STD)
        nn.init.normal_(self.table.weight, std=_STD)
        nn.init.zeros_(self.value.weight)
        nn.init.normal_(self.out.weight, std=dim**-0.5)
        self._ones, self._one = torch.ones(dim), torch.ones(config.head_dim)
        self._ratios = [config.ratio(i) for i in range(self.n_layers)]
        sources = (config.kv_source_of(i) for i in range(self.n_layers))
        self._sources = [i if source is None else source for i, source in enumerate(sources)]
        self._turns = [rotations(config, compressing=r > 0, length=MOST_POSITIONS) for r in self._ratios]
        self.ask = nn.Parameter(torch.zeros(self.n_layers, config.head_dim))
        near = [_near(cos, sin, config.head_dim) for cos, sin in self._turns]
        with torch.no_grad():
            for i, columns in enumerate(near):
                self.ask[i, columns] = NEAR
        self.alike = [i * self._width + column for i, columns in enumerate(near) for column in columns]
        """Columns of the stream that all tokens are alike in. Nothing is learned there: queries are made of them."""
        self._free = torch.ones(dim)
        self._free[self.alike] = 0.0

    def embedding(self) -> Tensor:
        """[V, D] the vectors of the tokens."""
        return self.vectors.weight * self._free + _ALIKE_IN_ALL * (1 - self._free)

    def pair_values(self) -> Tensor:
        """[D, columns*width] what makes of the rows of a pair what it adds to the stream."""
        return self.value.weight * self._free.unsqueeze(1)

    def forward(self, ids: Tensor, ends: Tensor, rows: Tensor) -> Tensor:
        """[B, A] logits of the topics. Shapes: ids [B, S]; ends [B], the last position of each; rows [B*S, columns]."""
        b, s = ids.shape
        kept, shown = torch.ones(b, s, dtype=torch.bool), torch.ones(b, s)
        if self.training:
            kept = torch.rand(b, s) >= DROPPED
            shown = ((torch.rand(b, 1) >= WITHOUT_ENGRAM) & (torch.rand(b, s) >= PAIRS_DROPPED)).float()
        plain = self.vectors(ids) * self._free + _ALIKE_IN_ALL * (1 - self._free)
        pairs = (self.value(self.table(rows[:, : self._columns]).flatten(-2)) * self._free).view(b, s, -1)
        stream = plain + _GATE * shown.unsqueeze(-1) * pairs
        back = ends.unsqueeze(1) - torch.arange(s)  # [B, S] how far before the end
        seen = (back >= 0) & (back < self._window) & kept
        means = []
        for i in range(self.n_layers):
            keys, weighs = self._keys(i, plain if i < self.engram_layer else stream, back), seen
            if (r := self._ratios[i]) > 0:
                groups = self._groups(self._sources[i], stream, back, r)
                keys, weighs = torch.cat((keys, groups), 1), torch.cat((seen, back[:, r - 1 :: r] >= 0), 1)
            weight = (keys @ self.ask[i] * self._width**-0.5).exp() * weighs
            total = (keys * weight.unsqueeze(-1)).sum(1)
            means.append(total / (weight.sum(1, keepdim=True) + 1))  # the sink's logit is 0
        there = stream[torch.arange(b), ends]
        logits: Tensor = self.out(norm(there + REACH * torch.cat(means, -1), self._ones))
        return logits

    def _part(self, i: int, stream: Tensor) -> Tensor:
        return norm(stream.flatten(0, 1), self._ones)[:, i * self._width : (i + 1) * self._width]

    def _turned(self, i: int, keys: Tensor, back: Tensor) -> Tensor:
        """As they are seen from the end. Shapes: keys [n, hd], back [B, n/B]."""
        cos, sin = self._turns[i]
        away = back.flatten().clamp(0, len(cos) - 1)
        turned: Tensor = rotate_tail(keys, cos[away], -sin[away])
        return turned.view(*back.shape, -1)

    def _keys(self, i: int, stream: Tensor, back: Tensor) -> Tensor:
        return self._turned(i, norm(self._part(i, stream), self._one), back)

    def _groups(self, i: int, stream: Tensor, back: Tensor, r: int) -> Tensor:
        b, s = back.shape
        n = s // r
        mean = self._part(i, stream).view(b, s, -1)[:, : n * r].unflatten(1, (n, r)).mean(2)
        return self._turned(i, norm(mean.flatten(0, 1), self._one), back[:, : n * r : r])


def _near(cos: Tensor, sin: Tensor, width: int) -> list[int]:
    """First columns of those pairs, of a head's columns, that turn by one radian within `_NEAR_WITHIN`."""
    least, most = _NEAR_WITHIN
    radians = torch.atan2(sin[1], cos[1]).tolist()
    return [width - 2 * len(radians) + 2 * j for j, a in enumerate(radians) if 1 / most <= a <= 1 / least]


def learned(
    config: ModelConfig, questions: Sequence[Sequence[int]], topics: Sequence[int], n_topics: int, row_ids: RowIds, *,
    epochs: int = EPOCHS, seed: int = 0,
) -> FirstLayers:  # fmt: skip
    """A classifier of questions, each the ids up to where its answer begins, trained."""
    torch.manual_seed(seed)
    rng, first = random.Random(seed), FirstLayers(config, n_topics)
    sparse = torch.optim.SparseAdam([first.vectors.weight, first.table.weight], lr=RATE)
    dense = torch.optim.Adam([first.value.weight, first.out.weight, first.ask], lr=RATE)
    order, done = [*range(len(questions))], 0
    n_steps = epochs * -(-len(order) // BATCH)
    for _ in range(epochs):
        for some in _batches(questions, order, rng):
            logits = first(*_padded([questions[i] for i in some], row_ids))
            loss = F.cross_entropy(logits, torch.tensor([topics[i] for i in some]))
            loss.backward()  # type: ignore[no-untyped-call]
            for optim in (sparse, dense):
                optim.param_groups[0]["lr"] = RATE * (1 - (1 - LEAST_RATE) * done / n_steps)
                optim.step()
                optim.zero_grad()
            done += 1
    return first.eval()


def told(first: FirstLayers, questions: Sequence[Sequence[int]], row_ids: RowIds) -> list[int]:
    """The topics that the classifier takes questions for."""
    with torch.no_grad():
        best: list[int] = first(*_padded(questions, row_ids)).argmax(-1).tolist()
    return best


def _batches(questions: Sequence[Sequence[int]], order: list[int], rng: random.Random) -> list[list[int]]:
    """All questions in random batches, of about the same length each."""
    rng.shuffle(order)
    made = []
    for at in range(0, len(order), _ALIKE * BATCH):
        alike = sorted(order[at : at + _ALIKE * BATCH], key=lambda i: len(questions[i]))
        made += [alike[first : first + BATCH] for first in range(0, len(alike), BATCH)]
    rng.shuffle(made)
    return made


def _padded(questions: Sequence[Sequence[int]], row_ids: RowIds) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(question) for question in questions], batch_first=True)
    return ids, torch.tensor([len(question) - 1 for question in questions]), row_ids(ids.numpy())[0]


def begun(pupil: Pupil) -> frozenset[str]:
    """Names of the parameters that carry what `start` puts there, but for the output matrix."""
    config = pupil.trunk.config
    readers = [f"trunk.layers.{i}." for i in range(n_readers(config))]
    ours = [(reader, ("wkv", "wo_a", "wo_b")) for reader in readers]
    ours += [("trunk.embed", ("",)), (f"trunk.engrams.{config.engram_layer_ids[0]}.", ("table", "wkv"))]
    names = [name for name, _ in pupil.named_parameters()]
    return frozenset(name for name in names for head, tails in ours if name.startswith(head) and name.endswith(tails))


@torch.no_grad()
def start(pupil: Pupil, first: FirstLayers, begins: Sequence[int]) -> None:
    """Let a pupil that holds random numbers begin with what the classifier knows.

    `begins` has the first token of each topic's answer: the output matrix writes it where the classifier has the topic.
    """
    trunk, config = pupil.trunk, pupil.trunk.config
    hd, n_groups, low = config.head_dim, config.o_groups, config.o_lora_rank
    dim, a_group = first.vectors.embedding_dim, config.n_heads // n_groups
    trunk.embed[:, :dim] = first.embedding()
    trunk.embed[:, dim:] *= _STD
    pupil.topics[:, :dim] = first.out.weight
    trunk.head[list(begins)] = 0.0
    trunk.head[:, :dim].index_add_(0, torch.tensor(begins), first.out.weight)
    through = torch.eye(hd)
    last = [column for column in first.alike if column >= (first.n_layers - 1) * hd]  # no reader before writes there
    for i, block in enumerate(trunk.blocks()):
        for silenced in (block.w2, block.s2, block.wo_b):
            silenced.zero_()
        if i >= first.n_layers:
            block.wq_b *= SILENT
            continue
        mine = slice(i * hd, (i + 1) * hd)
        block.wq_a *= SILENT
        block.wq_a[0] = 0.0
        block.wq_a[0, last] = _ASKING
        # Beside it the others are almost nothing, so the norm makes it the root of how many they are.
        block.wq_b[:, 0] = first.ask[i].repeat(config.n_heads) * config.q_lora_rank**-0.5
        for keys in (block.wkv, block.c_wkv) if block.kv_source else (block.wkv,):
            keys.zero_()
            keys[:, mine] = through
        if hasattr(block, "c_wgate"):
            block.c_wgate *= SILENT
        block.wo_a.zero_()
        for group in range(n_groups):
            block.wo_a[group * low : group * low + hd] = through.repeat(1, a_group) / a_group
            block.wo_b[mine, group * low : group * low + hd] = through * (REACH / n_groups)
    for name, engram in trunk.engrams.items():
        values = engram.get_parameter("wkv")[-config.dim :]
        values.zero_()
        if int(name) == first.engram_layer:
            engram.get_parameter("table").copy_(first.table.weight)
            values[:dim, : first.value.in_features] = first.pair_values()
            engram.get_parameter("q_weight").mul_(SILENT**2)
