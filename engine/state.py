"""What a conversation carries between forwards: windows, compressed KV, index keys, open groups, the slot, the ids.

No weights. The one thing a reader would get wrong: a forward never overwrites state. It *stages* what it made (window
keys and new groups behind the committed ones, waiting halves of open groups by row) and `commit(n)` takes the first n
rows. A stopped forward is simply not committed, a rejected draft is a smaller n, and nothing has to be restored. The
next forward stages over the last one, which can then no longer be committed.

A state can be taken back to an earlier position only where a `Tail` was kept: windows and open groups hold no past.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.caches import Growing, Window
from engine.config import ModelConfig
from engine.draft.rings import DraftRings, Project
from engine.schedule import NO_OWNER, IndexOwner, Rule, Schedule, schedule
from engine.transfer import MEMORY, bring

KINDS: Mapping[Rule, int] = {"prefill": 0, "decode": 1}
"""How a position's rule is noted in `State.kinds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Where a model computes, and so where what it keeps of a conversation lies."""

    layers: tuple[torch.device, ...]
    drafts: torch.device = MEMORY
    """Of the draft head."""


class SourceCache:
    """What one KV source keeps: a latent and an index key per complete group, and the open group's waiting rows."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        self.ratio = config.ratio(layer)
        self.latents = Growing(config.head_dim, dtype)
        """Compressed KV, rotated: one row per group."""
        self.keys = Growing(config.index_head_dim, dtype)
        """Index keys, rotated: one row per group."""
        self.open_values = torch.empty((self.ratio - 1, config.head_dim))
        """`compressor.wkv x` of the positions waiting in the open group; position p at row p % ratio."""
        self.open_gates = torch.empty((self.ratio - 1, config.head_dim))

    def place(self, own: torch.device, readers: Collection[torch.device], scorers: Collection[torch.device]) -> None:
        """Lie where its layer is, and where its latents and its keys are read. Raises: torch.OutOfMemoryError."""
        self.latents.place(readers)
        self.keys.place(scorers)
        self.open_values, self.open_gates = bring(self.open_values, own), bring(self.open_gates, own)


@dataclass(slots=True)
class StagedRows:
    """The last rows a forward made of something, from row `first` on."""

    first: int
    values: Tensor  # [n, ...], hd wide
    gates: Tensor | None = None  # [n, hd], open groups only


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What a state at some position has beside its ids and its complete groups: all that later positions overwrite."""

    index_owner: int
    windows: Tensor
    """[L, min(n, W), hd], in order of position."""
    open_groups: Mapping[int, tuple[Tensor, Tensor]]
    """KV source with a ratio above 1 -> values and gates of the positions that wait, [n % ratio, hd] each."""
    draft: Tensor | None
    """[S, <=W, hd] keys of the draft stages, the newest last; None where no draft head was open."""

    @property
    def n_bytes(self) -> int:
        """Memory it takes."""
        parts = [self.windows, *(part for pair in self.open_groups.values() for part in pair)]
        return sum(part.nbytes for part in (*parts, *(() if self.draft is None else (self.draft,))))


Rows = Mapping[int, tuple[Tensor, Tensor]]
"""KV source -> latents [G, hd] and index keys [G, di] of some groups that follow each other."""


@dataclass(slots=True)
class Marked:
    """What a step staged of the rows before a position inside it, so that a `Tail` can be made there."""

    windows: dict[int, Tensor] = field(default_factory=dict)
    """Layer -> [<=W, hd]."""
    open_groups: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    draft: Tensor | None = None  # [<=W, n_targets*D], what the draft stages' keys are made of


@dataclass(slots=True)
class Step:
    """One forward in flight: its rows, and everything it made that is not yet part of the state."""

    ids: Sequence[int]
    start: int
    """Position of the first row."""
    rule: Rule
    schedule: Schedule
    positions: dict[torch.device, Tensor]  # [T] int64, on every device that asked for them
    is_whole: bool = False
    """Whether it is committed as a whole or not at all, so that only what survives it is kept until then."""
    open_groups: dict[int, StagedRows] = field(default_factory=dict)
    draft_rows: StagedRows | None = None  # values [n, n_targets*D], with a draft head only
    marked: dict[int, Marked] = field(default_factory=dict)
    """By position; prefill steps only."""
    # The slots that layers overwrite in order within a forward:
    kv_source: int = NO_OWNER
    selection: Tensor | None = None  # [T, <=K] int64, ascending, -1 where there is none
    candidates: Tensor | None = None  # [T, blocks] bool

    @property
    def n_rows(self) -> int:
        """Rows of this forward."""
        return len(self.ids)

    def positions_on(self, device: torch.device) -> Tensor:
        """Of every row [T] int64; the same tensor for every layer there."""
        if device not in self.positions:
            self.positions[device] = bring(self.positions[MEMORY], device)
        return self.positions[device]


class State:
    """A conversation's state at a token boundary.

    Attributes:
        tokens: Ids of every committed position.
        kinds: For every committed position 0 when it was read by the prefill rule, 1 by the decode rule.
        index_owner: The layer whose index keys were published last, or -1.
        draft: What the draft head reads of the committed positions; None where no draft head is open.
        marks: Positions at which tails are wanted of the prefills to come, although the steps go past them.
        tails: The tails of the marks that were passed, by position; whoever wants one takes it out.
    """

    def __init__(
        self, config: ModelConfig, reading: IndexOwner = "published", *, drafts: Project | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        """An empty one; `drafts` is how an open draft head makes its keys, `dtype` what keys are stored as."""
        self.config = config
        self.reading: IndexOwner = reading
        self.tokens: list[int] = []
        self.kinds = bytearray()
        self.index_owner = NO_OWNER
        self.windows = [Window(config.window_size, config.head_dim, dtype) for _ in range(config.n_layers)]
        self.sources = {layer: SourceCache(config, layer, dtype) for layer in config.kv_source_layers}
        self.draft = None if drafts is None else DraftRings(config, drafts)
        self.marks: frozenset[int] = frozenset()
        self.tails: dict[int, Tail] = {}
        self._dtype = dtype
        self._latest: Step | None = None
        self._devices = Devices(layers=(MEMORY,) * config.n_layers)

    def place(self, devices: Devices) -> None:
        """Lie where a model computes from now on; done by every forward, and cheap where nothing has changed.

        Raises: torch.OutOfMemoryError; some of it may lie there by then, and it can be placed elsewhere.
        """
        if devices == self._devices:
            return
        config, places = self.config, devices.layers
        for layer, window in enumerate(self.windows):
            window.place(places[layer])
        scorers = {places[layer] for layer in config.index_source_layers}
        for source, cache in self.sources.items():
            readers = {places[layer] for layer in range(config.n_layers) if _source_of(config, layer) == source}
            cache.place(places[source], readers, scorers)
        if self.draft is not None:
            self.draft.place(devices.drafts)
        self._latest = None
        self._devices = devices

    @property
    def n_tokens(self) -> int:
        """Committed positions."""
        return len(self.tokens)

    def begin(self, ids: Sequence[int], rule: Rule, *, is_whole: bool = False) -> Step:
        """A forward over `ids` at the positions that follow the committed ones. Changes nothing.

        `is_whole` says that it will be committed as a whole; a prefill always is.
        """
        start = self.n_tokens
        plan = schedule(self.config, start, len(ids), rule, self.index_owner, self.reading)
        positions = {MEMORY: torch.arange(start, start + len(ids), dtype=torch.int64)}
        is_whole = is_whole or rule == "prefill"
        step = Step(ids=list(ids), start=start, rule=rule, schedule=plan, positions=positions, is_whole=is_whole)
        if rule == "prefill":
            step.marked = {mark: Marked() for mark in sorted(self.marks) if start < mark < start + len(ids)}
        self._latest = step
        return step

    def stage_window(self, step: Step, layer: int, keys: Tensor) -> Tensor:
        """Keep the rows' window keys [T, hd] until commit; of a whole step only those that can survive it.

        Result: the keys before the step that any of its rows may see, and then its own, [<W + T, hd] float32.
        """
        size = self.config.window_size
        for mark, marked in step.marked.items():
            row = mark - step.start
            marked.windows[layer] = keys[max(0, row - size) : row].to(self._dtype, copy=True)
        return self.windows[layer].stage(keys, max(0, step.n_rows - size) if step.is_whole else 0)

    def stage_open(self, step: Step, layer: int, values: Tensor, gates: Tensor) -> None:
        """Keep the rows' uncompressed values and gates [T, hd] until commit; of a whole step only the last group's."""
        ratio = self.sources[layer].ratio
        first = max(0, step.n_rows - ratio + 1) if step.is_whole else 0
        step.open_groups[layer] = StagedRows(first, values[first:].clone(), gates[first:].clone())
        for mark, marked in step.marked.items():
            row = mark - step.start
            waiting = slice(max(0, row - mark % ratio), row)
            marked.open_groups[layer] = (values[waiting].clone(), gates[waiting].clone())

    def stage_draft(self, step: Step, rows: Tensor) -> None:
        """Keep what the draft stages' keys are made of, of the step's last rows, [n, n_targets*D], until commit."""
        first = step.n_rows - rows.shape[0]
        step.draft_rows = StagedRows(first, rows)
        for mark, marked in step.marked.items():
            row = mark - step.start - first
            marked.draft = rows[max(0, row - self.config.window_size) : max(0, row)].clone()

    def commit(self, step: Step, n_rows: int | None = None) -> None:
        """Make the first `n_rows` rows of the step (default all) part of the state and forget the others.

        A whole step can only be committed so: its early window keys are gone.
        """
        n = step.n_rows if n_rows is None else n_rows
        assert step.start == self.n_tokens, "the step belongs to another position"
        assert step is self._latest, "another step was staged over it"
        self._latest = None
        assert 1 <= n <= step.n_rows and (not step.is_whole or n == step.n_rows)
        size = self.config.window_size
        for mark, marked in step.marked.items():  # before the windows lose what those tails begin with
            self.tails[mark] = self._tail_at(mark, step, marked)
        for window in self.windows:
            window.commit(n)
        for layer, staged in step.open_groups.items():
            self._commit_open(self.sources[layer], step.start, n, staged)
        if self.draft is not None and step.draft_rows is not None:
            first = max(step.draft_rows.first, n - size)
            kept = slice(first - step.draft_rows.first, n - step.draft_rows.first)
            values = step.draft_rows.values
            self.draft.commit(step.start + first, values[kept] if kept.stop - kept.start < len(values) else values)
        self.tokens.extend(step.ids[:n])
        self.kinds.extend(bytes((KINDS[step.rule],)) * n)
        self.index_owner = step.schedule.slot_after[n - 1]
        if step.rule == "prefill" and self.n_tokens in self.marks:
            self.tails[self.n_tokens] = self.tail()

    def tail(self) -> Tail:
        """Copies of everything that what comes next overwrites."""
        n = self.n_tokens
        waiting = {
            layer: (_copy(cache.open_values[: n % cache.ratio]), _copy(cache.open_gates[: n % cache.ratio]))
            for layer, cache in self.sources.items()
            if cache.ratio > 1
        }
        return Tail(
            index_owner=self.index_owner,
            windows=torch.stack([bring(window.kept(), MEMORY) for window in self.windows]),
            open_groups=waiting,
            draft=None if self.draft is None else bring(self.draft.keys(), MEMORY),
        )

    def _tail_at(self, mark: int, step: Step, marked: Marked) -> Tail:
        """The tail at a position inside a step, of which nothing is committed yet."""
        size, start = self.config.window_size, step.start
        n_before = start - min(start, max(0, mark - size))
        waiting = {}
        for layer, (values, gates) in marked.open_groups.items():
            cache = self.sources[layer]
            n_old = mark % cache.ratio - values.shape[0]  # all of it from before the step, if any is
            waiting[layer] = (
                bring(torch.cat((cache.open_values[:n_old], values)), MEMORY),
                bring(torch.cat((cache.open_gates[:n_old], gates)), MEMORY),
            )
        draft = None
        if self.draft is not None and marked.draft is not None:
            draft = bring(self.draft.keys_at(mark, marked.draft), MEMORY)
        return Tail(
            index_owner=step.schedule.slot_after[mark - start - 1],
            windows=torch.stack(
                [
                    bring(torch.cat((kept[kept.shape[0] - n_before :], marked.windows[layer])), MEMORY)
                    for layer, kept in enumerate(window.kept() for window in self.windows)
                ]
            ),
            open_groups=waiting,
            draft=draft,
        )

    def rows(self, first: int, end: int) -> Rows:
        """Copies of the groups that positions `first .. end - 1` completed."""
        return {
            layer: (
                cache.latents.upto(end // cache.ratio)[first // cache.ratio :].clone(),
                cache.keys.upto(end // cache.ratio)[first // cache.ratio :].clone(),
            )
            for layer, cache in self.sources.items()
        }

    def put_rows(self, first: int, rows: Rows) -> None:
        """Put back the groups that the positions from `first` on completed. Part of taking a state back or forth."""
        for layer, (latents, keys) in rows.items():
            cache = self.sources[layer]
            cache.latents.write(first // cache.ratio, latents)
            cache.keys.write(first // cache.ratio, keys)

    def move_to(self, tokens: Sequence[int], kinds: bytes, tail: Tail) -> None:
        """Become the state behind `tokens`, whose complete groups are here already: left over, or by `put_rows`."""
        n = len(tokens)
        self.tokens, self.kinds, self.index_owner = list(tokens), bytearray(kinds), tail.index_owner
        self._latest = None
        for window, keys in zip(self.windows, tail.windows, strict=True):
            window.replace(keys)
        for layer, (values, gates) in tail.open_groups.items():
            cache = self.sources[layer]
            cache.open_values[: len(values)] = bring(values, cache.open_values.device)
            cache.open_gates[: len(gates)] = bring(gates, cache.open_gates.device)
        if self.draft is not None:
            self.draft.reset(n, tail.draft)
        self.tails.clear()

    def bytes_at(self, n_tokens: int) -> int:
        """Memory of its buffers with so many positions; what lies on cards not counted, here and in `n_bytes`."""
        values = sum(
            n_tokens // cache.ratio * width
            for cache in self.sources.values()
            for rows, width in ((cache.latents, self.config.head_dim), (cache.keys, self.config.index_head_dim))
            if rows.in_memory
        )
        return values * self._dtype.itemsize + self._window_bytes

    def rows_bytes(self, first: int, end: int) -> int:
        """Memory that `rows` of these positions take, wherever they lie now."""
        width = (self.config.head_dim + self.config.index_head_dim) * self._dtype.itemsize
        return sum((end // cache.ratio - first // cache.ratio) * width for cache in self.sources.values())

    @property
    def n_bytes(self) -> int:
        """Memory of its buffers."""
        return sum(cache.latents.n_bytes + cache.keys.n_bytes for cache in self.sources.values()) + self._window_bytes

    @property
    def _window_bytes(self) -> int:
        draft_bytes = 0 if self.draft is None else self.draft.n_bytes
        return sum(window.n_bytes for window in self.windows) + draft_bytes

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

        Two states with equal contents behave alike. Keys are float32 whatever they are stored as, those of windows in
        position order; lengths follow from `tokens`.
        """
        n = self.n_tokens
        parts = {"tokens": torch.tensor(self.tokens, dtype=torch.int64), "index_owner": torch.tensor(self.index_owner)}
        for layer, window in enumerate(self.windows):
            parts[f"window.{layer}"] = bring(window.kept(), MEMORY).to(torch.float32, copy=True)
        for layer, cache in self.sources.items():
            parts[f"latents.{layer}"] = cache.latents.upto(n // cache.ratio).to(torch.float32, copy=True)
            parts[f"keys.{layer}"] = cache.keys.upto(n // cache.ratio).to(torch.float32, copy=True)
            if cache.ratio > 1:
                parts[f"open_values.{layer}"] = _copy(cache.open_values[: n % cache.ratio])
                parts[f"open_gates.{layer}"] = _copy(cache.open_gates[: n % cache.ratio])
        if self.draft is not None:
            for stage, keys in enumerate(self.draft.keys()):
                parts[f"draft.{stage}"] = bring(keys, MEMORY)
        return parts


def _source_of(config: ModelConfig, layer: int) -> int:
    """The layer whose latents a layer reads, or -1."""
    if not config.ratio(layer):
        return -1
    return max(source for source in config.kv_source_layers if source <= layer)


def _copy(rows: Tensor) -> Tensor:
    """In memory, and nobody else's."""
    return rows.clone() if rows.is_cpu else bring(rows, MEMORY)
