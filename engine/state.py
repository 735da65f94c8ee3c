"""What a conversation carries between forwards: window rings, compressed KV, index keys, open groups, the slot, the
ids.

No weights. The one thing a reader would get wrong: a forward never overwrites state. It *stages* what it made (window
keys apart from the ring, new groups behind the committed ones, waiting halves of open groups by row) and `commit(n)`
takes the first n rows. A stopped forward is simply not committed, a rejected draft is a smaller n, and nothing has to
be restored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.draft.rings import DraftRings
from engine.schedule import NO_OWNER, IndexOwner, Rule, Schedule, schedule

_FIRST_CAPACITY = 64


class Growing:
    """Rows of one width that are appended to and cut back; amortised growth, float32 [capacity, width]."""

    def __init__(self, width: int) -> None:
        self._rows = torch.empty((_FIRST_CAPACITY, width))

    def write(self, first: int, rows: Tensor) -> None:
        """Put rows [n, width] at index `first`, growing as needed."""
        end = first + rows.shape[0]
        if end > self._rows.shape[0]:
            grown = torch.empty((max(end, self._rows.shape[0] * 3 // 2), self._rows.shape[1]))
            grown[:first] = self._rows[:first]
            self._rows = grown
        self._rows[first:end] = rows

    def upto(self, n: int) -> Tensor:
        """The first n rows, a view [n, width]."""
        return self._rows[:n]


class SourceCache:
    """What one KV source keeps: a latent and an index key per complete group, and the open group's waiting rows."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        self.ratio = config.ratio(layer)
        self.latents = Growing(config.head_dim)
        """Compressed KV, rotated: one row per group."""
        self.keys = Growing(config.index_head_dim)
        """Index keys, rotated: one row per group."""
        self.open_values = torch.empty((self.ratio - 1, config.head_dim))
        """`compressor.wkv x` of the positions waiting in the open group; position p at row p % ratio."""
        self.open_gates = torch.empty((self.ratio - 1, config.head_dim))


@dataclass(slots=True)
class StagedRows:
    """The last rows a forward made of something, from row `first` on."""

    first: int
    values: Tensor  # [n, ...], hd wide
    gates: Tensor | None = None  # [n, hd], open groups only


@dataclass(slots=True)
class Step:
    """One forward in flight: its rows, and everything it made that is not yet part of the state."""

    ids: Sequence[int]
    start: int
    """Position of the first row."""
    rule: Rule
    schedule: Schedule
    positions: Tensor  # [T] int64
    windows: dict[int, StagedRows] = field(default_factory=dict)
    open_groups: dict[int, StagedRows] = field(default_factory=dict)
    draft_keys: StagedRows | None = None  # values [n, S, hd], with a draft head only
    # The slots that layers overwrite in order within a forward:
    kv_source: int = NO_OWNER
    selection: Tensor | None = None  # [T, <=K] int64, ascending, -1 where there is none
    candidates: Tensor | None = None  # [T, blocks] bool

    @property
    def n_rows(self) -> int:
        """Rows of this forward."""
        return len(self.ids)


class State:
    """A conversation's state at a token boundary.

    Attributes:
        tokens: Ids of every committed position.
        index_owner: The layer whose index keys were published last, or -1.
        draft: What the draft head reads of the committed positions; None where no draft head is open.
    """

    def __init__(self, config: ModelConfig, reading: IndexOwner = "published", *, drafts: bool = False) -> None:
        self.config = config
        self.reading: IndexOwner = reading
        self.tokens: list[int] = []
        self.index_owner = NO_OWNER
        self.windows = [torch.zeros((config.window_size, config.head_dim)) for _ in range(config.n_layers)]
        self.sources = {layer: SourceCache(config, layer) for layer in config.kv_source_layers}
        self.draft = DraftRings(config) if drafts else None

    @property
    def n_tokens(self) -> int:
        """Committed positions."""
        return len(self.tokens)

    def begin(self, ids: Sequence[int], rule: Rule) -> Step:
        """A forward over `ids` at the positions that follow the committed ones. Changes nothing."""
        start = self.n_tokens
        plan = schedule(self.config, start, len(ids), rule, self.index_owner, self.reading)
        positions = torch.arange(start, start + len(ids), dtype=torch.int64)
        return Step(ids=list(ids), start=start, rule=rule, schedule=plan, positions=positions)

    def window_before(self, step: Step, layer: int) -> Tensor:
        """Window keys of the positions before the step that any of its rows may see, in order: [<W, hd]."""
        size = self.config.window_size
        positions = torch.arange(max(0, step.start - size + 1), step.start)
        return self.windows[layer][positions % size]

    def stage_window(self, step: Step, layer: int, keys: Tensor) -> None:
        """Keep the rows' window keys [T, hd] until commit; of a prefill only those that can survive it."""
        first = max(0, step.n_rows - self.config.window_size) if step.rule == "prefill" else 0
        step.windows[layer] = StagedRows(first, keys[first:].clone())

    def stage_open(self, step: Step, layer: int, values: Tensor, gates: Tensor) -> None:
        """Keep the rows' uncompressed values and gates [T, hd] until commit; of a prefill only the last group's."""
        first = max(0, step.n_rows - self.sources[layer].ratio + 1) if step.rule == "prefill" else 0
        step.open_groups[layer] = StagedRows(first, values[first:].clone(), gates[first:].clone())

    def stage_draft(self, step: Step, keys: Tensor) -> None:
        """Keep the draft stages' keys of the step's last rows, [n, S, hd], until commit."""
        step.draft_keys = StagedRows(step.n_rows - keys.shape[0], keys)

    def commit(self, step: Step, n_rows: int | None = None) -> None:
        """Make the first `n_rows` rows of the step (default all) part of the state and forget the others.

        A prefill step can only be committed whole: its early window keys are gone.
        """
        n = step.n_rows if n_rows is None else n_rows
        assert step.start == self.n_tokens, "the step belongs to another position"
        assert 1 <= n <= step.n_rows and (step.rule == "decode" or n == step.n_rows)
        size = self.config.window_size
        for layer, staged in step.windows.items():
            rows = torch.arange(max(staged.first, n - size), n)
            self.windows[layer][(step.start + rows) % size] = staged.values[rows - staged.first]
        for layer, staged in step.open_groups.items():
            self._commit_open(self.sources[layer], step.start, n, staged)
        if self.draft is not None and step.draft_keys is not None:
            rows = torch.arange(max(step.draft_keys.first, n - size), n)
            self.draft.write(step.start + rows, step.draft_keys.values[rows - step.draft_keys.first])
        self.tokens.extend(step.ids[:n])
        self.index_owner = step.schedule.slot_after[n - 1]

    @staticmethod
    def _commit_open(cache: SourceCache, start: int, n: int, staged: StagedRows) -> None:
        end = start + n
        for position in range(max(start, end // cache.ratio * cache.ratio), end):
            row = position - start - staged.first
            assert staged.gates is not None
            cache.open_values[position % cache.ratio] = staged.values[row]
            cache.open_gates[position % cache.ratio] = staged.gates[row]

    def contents(self) -> Mapping[str, Tensor]:
        """Every value that later forwards can depend on, by name; what was never written or was cut is left out.

        Two states with equal contents behave alike. Window keys are in position order; lengths follow from `tokens`.
        """
        n, size = self.n_tokens, self.config.window_size
        seen = torch.arange(max(0, n - size), n)
        parts = {"tokens": torch.tensor(self.tokens, dtype=torch.int64), "index_owner": torch.tensor(self.index_owner)}
        for layer, ring in enumerate(self.windows):
            parts[f"window.{layer}"] = ring[seen % size].clone()
        for layer, cache in self.sources.items():
            parts[f"latents.{layer}"] = cache.latents.upto(n // cache.ratio).clone()
            parts[f"keys.{layer}"] = cache.keys.upto(n // cache.ratio).clone()
            if cache.ratio > 1:
                parts[f"open_values.{layer}"] = cache.open_values[: n % cache.ratio].clone()
                parts[f"open_gates.{layer}"] = cache.open_gates[: n % cache.ratio].clone()
        if self.draft is not None:
            for stage, keys in enumerate(self.draft.before(n)):
                parts[f"draft.{stage}"] = keys.clone()
        return parts
