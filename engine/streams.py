"""What a running model reads as it goes: experts through slots, engram and embedding rows through row caches.

Owns the opening and closing of all of it, and the figures; what the bytes mean is `experts` and `engram`.
"""

import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self

from engine.config import ModelConfig
from engine.errors import FormatError
from engine.experts import ExpertWeights, attach_expert, check_experts, expert_bytes, expert_prefixes
from engine.tiers.card import Card
from engine.tiers.tiers import STEP_BYTES, CardTiers
from storage.batch import BatchReader, DriveStats
from storage.checkpoint import Checkpoint
from storage.defaults import DEFAULT_CACHE_ROWS, DEFAULT_DEPTH
from storage.direct import IoMode, IoPath
from storage.expert_cache import ExpertCache, Observer, Resident, Wave, by_rank
from storage.expert_layout import ExpertLayout, expert_layouts
from storage.ids import ExpertId
from storage.policy import DEFAULT_POLICY
from storage.read_rate import read_rate
from storage.replica_files import ReplicaFiles
from storage.rows import RowTable
from storage.ticket import Check, no_check
from storage.waves import WAVE_EXPERTS, Phase

SPARE_SLOTS = 2 * WAVE_EXPERTS
"""Lent to a prefill, so that a long prompt leaves the experts that decoding uses alone."""


DEFAULT_EMBEDDING_ROWS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How much is kept in memory and how the drives are read."""

    slots_per_layer: int | Mapping[int, int]
    """Experts kept, for every layer or by layer; no layer gets more than it has experts."""
    spare_slots: int = SPARE_SLOTS
    cache_rows: int = DEFAULT_CACHE_ROWS
    """Rows kept of each engram table."""
    embedding_rows: int = DEFAULT_EMBEDDING_ROWS
    """Rows kept of the embedding; each is forty times an engram row."""
    waves_ahead: int = 1
    """Waves of experts whose reads are in flight while one is multiplied; 0 reads and multiplies in turn.

    96 tokens through 4 released layers from cold slots, two busy cores, 17.7 GB read: 23.2, 21.0 and 17.2 s with one
    ahead, 31.9 and 31.3 s in turn, interleaved. `artesian bench decode --compare` measures both.
    """
    policy: str = DEFAULT_POLICY
    io: IoMode = "auto"
    depth: int | Mapping[str, int] = DEFAULT_DEPTH
    """Reads in flight, for every drive or by drive name."""
    cards: Sequence[tuple[Card, Mapping[int, int]]] = ()
    """Cards that hold experts, and how many of each layer."""
    step_bytes: int = STEP_BYTES
    """Of experts copied to cards beside one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """Counters of the streams since they were opened."""

    read_bytes: int
    """Payload bytes the drives have delivered."""
    hits: int
    """Experts asked for that were in memory, or on a card."""
    misses: int
    """Experts asked for that had to be read."""
    wait_s: float
    """Time the forward waited for experts and rows."""
    card_hits: int = 0
    """Of the hits, those that cards multiplied."""


class Streams:
    """The open streams of a model. For one thread, the one that runs it; figures may be asked for from any.

    Attributes:
        experts: The routed experts in memory; what a forward uses comes by `waves`.
        cards: Those on cards; None without one.
        engram: Row table of each engram layer: weight and scale of a row.
        embedding: Row table of the token embedding.
    """

    def __init__(
        self,
        files: ReplicaFiles,
        reader: BatchReader,
        experts: ExpertCache[ExpertWeights],
        engram: Mapping[int, RowTable],
        embedding: RowTable,
        layouts: Sequence[ExpertLayout],
        cards: CardTiers | None = None,
    ) -> None:
        self.experts = experts
        self.cards = cards
        self.engram = engram
        self.embedding = embedding
        self._files = files
        self._reader = reader
        self._layouts = layouts

    @classmethod
    def open(
        cls,
        checkpoint: Checkpoint,
        config: ModelConfig,
        settings: StreamSettings,
        *,
        drafts: bool = False,
        observers: Sequence[Observer] = (),
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Open the files, start the readers and take the slots' memory.

        With `drafts` the draft stages' experts have slots too. `observers` are told of every request for experts;
        `on_notice` of a file that can no longer be read directly,
        and once of a decode step that does not fit into the slots.
        Raises: FormatError when experts or row tables are missing or misshapen; StorageError.
        """
        tables = _row_tensors(checkpoint, config)
        check_experts(checkpoint, config, drafts=drafts)
        layouts = expert_layouts(checkpoint.tensors, expert_prefixes(config, drafts=drafts))
        extents = [extent for layout in layouts.values() for extent in layout.extents]
        extents += [checkpoint.tensors[name].extent for names in tables.values() for name in names]
        with ExitStack() as undo:
            shards = list(dict.fromkeys(extent.shard for extent in extents))
            files = undo.enter_context(
                ReplicaFiles.open(
                    checkpoint.replicas,
                    shards,
                    settings.io,
                    on_fallback=lambda path: on_notice(
                        f"{path.file.name} is read through the page cache: {path.reason}."
                    ),
                )
            )
            reader = undo.enter_context(BatchReader(files, block_bytes=files.block_bytes, depth=settings.depth))
            cache = ExpertCache(
                layouts,
                reader,
                settings.slots_per_layer,
                attach=attach_expert(config),
                policy=settings.policy,
                spare_slots=settings.spare_slots,
                waves_ahead=settings.waves_ahead,
                observers=observers,
                on_notice=on_notice,
            )
            undo.callback(cache.close)
            cards = None
            if settings.cards:
                n_experts = {layer: n for layer, (_, n) in expert_prefixes(config, drafts=drafts).items()}
                cards = CardTiers(
                    settings.cards, cache, n_experts, expert_bytes(config), step_bytes=settings.step_bytes,
                    on_notice=on_notice,
                )  # fmt: skip
                undo.callback(cards.close)
            rows = {
                layer: RowTable(
                    [checkpoint.tensors[n] for n in names],
                    reader,
                    cache_rows=settings.embedding_rows if layer == _EMBEDDING else settings.cache_rows,
                )
                for layer, names in tables.items()
            }
            undo.pop_all()
            of_engram = {layer: table for layer, table in rows.items() if layer != _EMBEDDING}
            return cls(files, reader, cache, of_engram, rows[_EMBEDDING], tuple(layouts.values()), cards)

    def waves(
        self, layer: int, experts: Sequence[int], *, phase: Phase, check: Check = no_check
    ) -> Generator[Wave[ExpertWeights], None, None]:
        """The experts a step of `layer` needs, each once: first those on cards, then those in memory or read, as
        `ExpertCache.waves` gives them.
        """
        served, rest = ([], experts) if self.cards is None else self.cards.split(layer, experts)
        most = WAVE_EXPERTS if phase == "prefill" else max(1, len(served))  # scratch on the card goes with the rows
        for first in range(0, len(served), most):
            yield Wave(tuple(Resident(expert, weights) for expert, weights in served[first : first + most]), 0.0, 0)
        with closing(self.experts.waves(layer, rest, phase=phase, check=check, asked=experts)) as coming:
            yield from coming

    def warm(self, wanted: Mapping[int, Sequence[int]], should_stop: Callable[[], bool]) -> int:
        """Read experts ahead while nobody waits, as `ExpertCache.warm` does: the hottest onto cards, the next into
        memory; how many were read.
        """
        n_read = 0
        rest = {layer: list(experts) for layer, experts in wanted.items()}
        if self.cards is not None:
            n_read = self._warm_cards(self.cards, wanted, should_stop)
            rest = {
                layer: [expert for expert in experts if not self.cards.holds(ExpertId(layer, expert))]
                for layer, experts in wanted.items()
            }
        return n_read + self.experts.warm(rest, should_stop)

    def _warm_cards(
        self, cards: CardTiers, wanted: Mapping[int, Sequence[int]], should_stop: Callable[[], bool]
    ) -> int:
        """Fill free slots of cards through those in memory, a few experts at a time."""
        n_read = 0
        hottest = by_rank({layer: experts[: cards.room(layer)] for layer, experts in wanted.items()})
        missing = [key for key in hottest if not cards.holds(key)]
        for first in range(0, len(missing), WAVE_EXPERTS):
            # A card that runs full meanwhile has no room for the others after all.
            some = [key for key in missing[first : first + WAVE_EXPERTS] if cards.room(key.layer) > 0]
            unread: dict[int, list[int]] = {}
            for key in some:
                if key not in self.experts:
                    unread.setdefault(key.layer, []).append(key.expert)
            n_read += self.experts.warm(unread, should_stop)
            for key in some:
                if not cards.place(key) and cards.room(key.layer) > 0 and not should_stop():
                    cards.settle()  # the layer's few slots in memory may all be lent
                    n_read += self.experts.warm({key.layer: [key.expert]}, should_stop)
                    cards.place(key)
            cards.settle()
            if should_stop():
                break
        return n_read

    def end_step(self) -> None:
        """A forward has ended: the moment to copy experts to cards."""
        if self.cards is not None:
            self.cards.end_step()

    @property
    def files(self) -> ReplicaFiles:
        """The open files; for whoever looks after drives that come back."""
        return self._files

    @property
    def read_bytes(self) -> int:
        """Payload bytes the drives have delivered so far."""
        return sum(drive.payload_bytes for drive in self._reader.stats())

    def figures(self) -> "StreamFigures":
        """Counters so far; the difference of two is what happened between them."""
        cache = self.experts.stats().total
        row_wait_s = sum(table.stats().wait_s for table in (*self.engram.values(), self.embedding))
        card_hits = 0 if self.cards is None else sum(card.n_served for card in self.cards.figures())
        return StreamFigures(
            read_bytes=self.read_bytes,
            hits=cache.n_hits + card_hits,
            misses=cache.n_misses,
            wait_s=cache.wait_s + row_wait_s,
            card_hits=card_hits,
        )

    def drives(self) -> tuple[DriveStats, ...]:
        """What each drive has done."""
        return self._reader.stats()

    def io_paths(self) -> Mapping[str, Collection[IoPath]]:
        """How each drive's files are read, by drive name."""
        return self._files.io_paths()

    def read_rate(self, n_experts: int, draw: random.Random) -> float:
        """Payload bytes a second of reading `n_experts` drawn at random past the slots, with nothing beside it.

        Raises: StorageError.
        """
        chosen = draw.sample(range(len(self._layouts)), min(n_experts, len(self._layouts)))
        return read_rate(self._reader, [(index, self._layouts[index].extents) for index in chosen])

    def close(self) -> None:
        """Wait for what is in flight and give everything back. A second call does nothing."""
        with ExitStack() as undo:  # the last first, and each of them whatever the others raise
            undo.callback(self._files.close)
            undo.callback(self._reader.close)
            undo.callback(self.experts.close)
            if self.cards is not None:
                undo.callback(self.cards.close)


_EMBEDDING = -1
"""Stands for the embedding among the engram layers' tables."""


def _row_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[int, tuple[str, ...]]:
    """Names of the tensors rows are read from, by engram layer; refuses tables that rows could not be read from."""
    wanted: dict[int, dict[str, tuple[tuple[str, ...], tuple[int, int]]]] = {
        _EMBEDDING: {"embed.weight": (("BF16", "F32"), (config.vocab_size, config.dim))}
    }
    width = config.engram_head_dim
    for layer, n_rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
        wanted[layer] = {
            f"layers.{layer}.engram.embed.weight": (("F8_E4M3",), (n_rows, width)),
            f"layers.{layer}.engram.embed.scale": (("F8_E8M0",), (n_rows, -(-width // 32))),
        }
    for tensors in wanted.values():
        for name, (dtypes, shape) in tensors.items():
            entry = checkpoint.tensors.get(name)
            if entry is None or entry.dtype not in dtypes or entry.shape != shape:
                found = "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
                raise FormatError(
                    f"tensor {name!r} is {found}, expected {' or '.join(dtypes)} {list(shape)}",
                    hint="The config and the shards do not belong together. Run `artesian audit` on the folder.",
                )
    return {layer: tuple(tensors) for layer, tensors in wanted.items()}
