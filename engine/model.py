"""The forward of the text model, readable from top to bottom in the order it runs.

Letters of shapes, here and in every sub-layer: `T` positions (rows) of a forward, `D` model width, `m` residual
copies, `H` heads of `hd`, `K` selected groups, `E` experts with `k` chosen, `F` expert width, `V` vocabulary, `R`
rows of a block.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention import attention
from engine.config import ModelConfig
from engine.draft.head import DraftHead
from engine.draft.weights import HeadWeights, open_head
from engine.engram import EngramFront, engram, expand_collected
from engine.errors import CardFull, PromptError, Stopped
from engine.events import LoadProgress, PrefillProgress
from engine.experts import ExpertWeights, expert_bytes
from engine.hashing import compressed_map, engram_tables, require_declared_rows
from engine.hyper import collapse_normed, mix, update
from engine.kernels import FRESH, Matrix, Workspace
from engine.kernels.card_path import FULL_HINT
from engine.moe import ExpertWaves, Routing, moe, route
from engine.numerics import NUMERICS, NumericsName
from engine.phases import PhaseClock
from engine.rotary import frequencies
from engine.schedule import IndexOwner, Rule
from engine.state import Devices, State, Step
from engine.streams import Streams, StreamSettings
from engine.tiers.trunk import TrunkPlaces, brought_home, is_on_card, moved
from engine.transfer import MEMORY, bring, bring_rows, fetch
from engine.weights import BlockWeights, TrunkWeights, WeightLoader, load_trunk, stored_bytes
from storage.checkpoint import Checkpoint
from storage.expert_cache import Observer
from storage.rows import RowTicket
from storage.stoppable import StoppableReads
from storage.waves import Phase

ShouldStop = Callable[[], bool]


T = TypeVar("T")
_FULL = "The card has no memory left"


def never() -> bool:
    """Nobody asks to stop."""
    return False


@dataclass(slots=True)
class Trace:
    """What a forward chose, layer by layer, for comparison with golden data. Filled only when asked for."""

    rows: dict[int, Tensor] = field(default_factory=dict)
    """Engram layer -> [T, (N-1)*He] table rows."""
    routing: dict[int, Routing] = field(default_factory=dict)
    selections: dict[int, Tensor] = field(default_factory=dict)
    """Index source -> [T, <=K] groups."""
    owners: dict[int, Sequence[int]] = field(default_factory=dict)
    """Index source -> whose keys each row scored."""
    streams: list[Tensor] = field(default_factory=list)
    """The residual stream [m, D] of the last row after every block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a forward gives, before anything is committed."""

    step: Step
    logits: Tensor
    """[n, V] float32 of the last n rows asked for."""


class Model:
    """A checkpoint opened for running: resident weights packed as stored, experts and rows read as needed."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, trunk: TrunkWeights, streams: Streams, front: EngramFront,
        notices: deque[str], *, numerics: NumericsName, index_owner: IndexOwner,
        head: HeadWeights | str = "drafting is off",
    ) -> None:  # fmt: skip
        self.checkpoint = checkpoint
        self.config = config
        self.numerics = NUMERICS[numerics]
        self.index_owner: IndexOwner = index_owner
        self._trunk = trunk
        self.streams = streams
        self.clock = PhaseClock()
        """Where the time of forwards goes."""
        self._memory = _Memory()
        self.layers_done = 0
        """Of the forward under way: how many layers are computed. May be read from any thread."""
        self._bytes = {block.layer: _BlockBytes.of(block) for block in trunk.blocks}
        self._head_bytes = stored_bytes(trunk.head)
        self._expert_bytes = expert_bytes(config)
        self.notices = notices
        """What the user should know of the reading, oldest first; whoever shows one takes it out. Appended to from any
        thread.
        """
        self._front = front
        self._freq = {plain: {MEMORY: frequencies(config, compressing=not plain)} for plain in (True, False)}
        """Of plain layers and others, on every device that asked for them."""
        self.no_drafts = head if isinstance(head, str) else ""
        """Why there is no draft head; empty when there is one."""
        self.head = None if isinstance(head, str) else self._draft_head(head, trunk.head)
        """The draft head, if it was asked for and could be opened."""
        self._devices = self._places()
        self.reading: Callable[[], PrefillProgress] | None = None
        """How far the prompt of the turn under way is read, layer by layer; None while none is. From any thread."""

    @classmethod
    def open(
        cls,
        checkpoint: Checkpoint,
        config: ModelConfig,
        *,
        streams: StreamSettings,
        numerics: NumericsName = "exact",
        index_owner: IndexOwner = "published",
        drafts: bool = False,
        observers: Sequence[Observer] = (),
        notices: deque[str] | None = None,
        token_map_cache: Path | None = None,
        trunk_places: TrunkPlaces | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        should_stop: ShouldStop = never,
    ) -> "Model":
        """Read the resident weights and open the streams.

        With `drafts` the draft head is opened too; if it cannot be, the model runs without, and `no_drafts` says why.
        `observers` are told of every request for experts. What the user should know of the reading is appended to
        `notices`; whoever opened the checkpoint may put drive failures there too.
        `token_map_cache` is a file that may hold, and then will, the folded token map of this tokenizer; `trunk_places`
        says which cards take what of the resident weights.
        Raises: FormatError, ConfigError, TokenizerError when the checkpoint cannot be run; StorageError on a failed
        read; Stopped when `should_stop` says so, at once: a read under way ends by itself.
        """
        started = time.monotonic()
        total = sum(entry.extent.length for name, entry in checkpoint.tensors.items() if is_resident(name, drafts))
        done = 0

        def on_bytes(n: int) -> None:
            nonlocal done
            done += n
            if on_progress is not None:
                elapsed = time.monotonic() - started
                on_progress(LoadProgress(done_bytes=done, total_bytes=total, elapsed_s=elapsed))
            if should_stop():
                raise Stopped("loading was stopped")

        tables = engram_tables(config)
        require_declared_rows(config, tables)
        token_map = None
        if tables:
            tokenizer = checkpoint.folder / "tokenizer.json"
            token_map = compressed_map(tokenizer, n_classes=config.engram_compressed_vocab_size, cache=token_map_cache)
        front = EngramFront(config, tables, token_map)
        queue: deque[str] = deque() if notices is None else notices
        with ExitStack() as undo, StoppableReads(checkpoint.read_into) as reads:
            check = _checking(should_stop)
            load = WeightLoader(checkpoint, on_bytes, lambda extent, target: reads.read_into(extent, target, check))
            head = open_head(load, checkpoint, config) if drafts else "drafting is off"
            opened = Streams.open(
                checkpoint, config, streams, drafts=not isinstance(head, str), observers=observers,
                on_notice=queue.append,
            )  # fmt: skip
            undo.callback(opened.close)
            trunk = load_trunk(load, config, trunk_places)
            if trunk_places is not None and not isinstance(head, str):
                head = trunk_places.drafts(head)
            model = cls(
                checkpoint, config, trunk, opened, front, queue, numerics=numerics, index_owner=index_owner, head=head
            )
            undo.pop_all()
        if trunk_places is not None and trunk_places.left_out:
            some = ", ".join(trunk_places.left_out[:3]) + (" and more" if len(trunk_places.left_out) > 3 else "")
            queue.append(f"There was no room on the card for {some}: the processor computes them.")
        return model

    def close(self) -> None:
        """Close the streams; the checkpoint stays open, its owner closes it."""
        self.streams.close()

    @property
    def computes_on_card(self) -> bool:
        """Whether any of it is computed by torch on a card, and not by the processor's kernels."""
        return is_on_card(self._trunk) or (self.streams.cards is not None and self.streams.cards.computes_elsewhere)

    def new_state(self) -> State:
        """An empty conversation."""
        return State(
            self.config, self.index_owner, drafts=None if self.head is None else self.head.project,
            dtype=self.numerics.cached,
        )  # fmt: skip

    def forward(
        self,
        state: State,
        ids: Sequence[int],
        rule: Rule,
        *,
        n_logits: int = 1,
        is_whole: bool = False,
        should_stop: ShouldStop = never,
        trace: Trace | None = None,
    ) -> Result:
        """Run `ids` at the positions that follow the state's, without changing it; `state.commit(result.step)` does
        that.

        `rule` "prefill" reads prompt text, in any number of chunks. "decode" gives every row what one-token calls would
        have given it; how many rows that may be says `engine.schedule.max_decode_rows`. Logits are made for the last
        `n_logits` rows. What `is_whole` may not be committed in part, and takes less memory until it is.

        Raises: PromptError on an id outside the vocabulary; Stopped within one layer's work when `should_stop` says so;
        StorageError on a failed read; FormatError on a NaN code in an expert or an engram row. The state is untouched.
        """
        for token in ids:
            if not 0 <= token < self.config.vocab_size:
                raise PromptError(f"token id {token} is outside the vocabulary of {self.config.vocab_size:,}")
        result = self._with_room(lambda: self._attempt(state, ids, rule, n_logits, is_whole, should_stop, trace))
        self.streams.end_step()
        return result

    def _with_room(self, work: Callable[[], T]) -> T:
        """What `work` gives, tried again with less on the cards as long as they have no memory for it."""
        while True:
            try:
                return work()
            except (CardFull, torch.OutOfMemoryError) as error:
                if not self._make_room():
                    raise CardFull(_FULL, hint=FULL_HINT) from error

    def _attempt(
        self, state: State, ids: Sequence[int], rule: Rule, n_logits: int, is_whole: bool, should_stop: ShouldStop,
        trace: Trace | None,
    ) -> Result:  # fmt: skip
        self.clock.begin()
        self.layers_done = 0
        state.place(self._devices)
        step = state.begin(ids, rule, is_whole=is_whole)
        rows = self._front.rows(state.tokens, ids)
        with ExitStack() as undo:
            # Row ids follow from the tokens alone, so the drives fetch rows while the first layers are computed.
            tickets = {layer: self.streams.engram[layer].issue(wanted) for layer, wanted in rows.items()}
            for ticket in tickets.values():
                undo.callback(ticket.cancel)
            return self._run(state, step, rows, tickets, n_logits, should_stop, trace)

    def _make_room(self) -> bool:
        """A card had no memory for something: experts leave it, or else the trunk does, with the draft head and what is
        kept of conversations. False when nothing of the model is on a card.
        """
        if self.streams.cards is not None and self.streams.cards.make_room():
            return True
        on_card = is_on_card(self._trunk) or (self.head is not None and self.head.device != MEMORY)
        if not on_card:
            return False
        self._trunk = brought_home(self._trunk)
        if self.head is not None:
            self.head.replace(moved(self.head.weights, MEMORY), self._trunk.head)
        self._devices = self._places()
        self.notices.append(f"{_FULL}: the processor computes the whole model from now on.")
        return True

    def _places(self) -> Devices:
        return Devices(
            layers=tuple(block.device for block in self._trunk.blocks),
            drafts=MEMORY if self.head is None else self.head.device,
        )

    def _freq_of(self, plain: bool, device: torch.device) -> Tensor:
        """Rotation frequencies [rd/2] of a kind of layers; the same tensor for all of them on a device."""
        kept = self._freq[plain]
        if device not in kept:
            kept[device] = bring(kept[MEMORY], device)
        return kept[device]

    def _run(
        self,
        state: State,
        step: Step,
        rows: Mapping[int, npt.NDArray[np.int64]],
        tickets: Mapping[int, RowTicket],
        n_logits: int,
        should_stop: ShouldStop,
        trace: Trace | None,
    ) -> Result:
        config, ids, clock = self.config, step.ids, self.clock
        # Torch makes results of its own, and the stream is not kept twice for it.
        memory = self._memory.begin(len(ids)) if self.numerics.native() is not None else _Memory(FRESH)
        work = memory.half
        h = memory.stream.take(len(ids), config.hc_mult, config.dim)  # [T, m, D]
        h.copy_(self._embed(ids, should_stop).unsqueeze(1))
        spare: Tensor | None = None
        pre = torch.zeros(len(ids), config.hc_mult)
        pre[:, 0] = 1.0
        targets: list[Callable[[], Tensor]] = []
        for block in self._trunk.blocks:
            if should_stop():
                raise Stopped("the forward was stopped")
            layer, device = block.layer, block.device
            freq, numerics = self._freq_of(config.ratio(layer) == 0, device), self.numerics.at(device)
            if h.device != device:
                h, pre = bring_rows(device, h, pre)
                spare = None
            if spare is None and numerics.native() is not None:
                spare = memory.stream.take(*h.shape)
            self.layers_done = layer
            n_bytes = self._bytes[layer]
            clock.lap("other")
            if block.engram is not None:
                weight, scale = tickets[layer].collect(_checking(should_stop))
                looked_up = expand_collected(weight, scale, layer, rows[layer])  # [T, C*de]
                h = engram(h, looked_up, block.engram, config, numerics, work, out=h)
                del weight, scale, looked_up  # of a prompt a quarter of a GB, which the layers behind need not carry
                work.clear()
                clock.lap("engram", n_bytes.engram)
            if self.head is not None and layer in config.dspark_target_layer_ids:
                n = _draft_rows(step, config.window_size)
                summed = self.head.summed(h[-n:] if n < len(ids) else h)  # [n, D]
                there = self.head.device  # to memory it is on its way while other layers are computed
                targets.append(fetch(summed) if there == MEMORY else partial(bring, summed, there))
            # Attention half: collapsed with the mix handed in, scattered with its own.
            coefficients = mix(h, block.mix_attention, config, numerics, memory.first.clear())
            x = collapse_normed(h, pre, block.attention.norm, config.norm_eps, numerics, work)
            clock.lap("dense")
            y = attention(x, block.attention, layer, state, step, config, freq, numerics, clock, work)
            clock.lap("attention", n_bytes.attention)
            h, spare = update(h, y, coefficients, numerics, spare), h if spare is not None else None
            pre = coefficients.pre
            work.clear()
            # FFN half: collapsed with the mix of the attention half.
            coefficients = mix(h, block.mix_ffn, config, numerics, memory.second.clear())
            x = collapse_normed(h, pre, block.ffn.norm, config.norm_eps, numerics, work)
            routing = route(x, block.ffn, config.n_activated_experts, config, numerics, work)
            y = moe(x, routing, self._waves(layer, _phase(step), should_stop), block.ffn, config, numerics, work)
            h, spare = update(h, y, coefficients, numerics, spare), h if spare is not None else None
            pre = coefficients.pre
            work.clear()
            clock.lap("dense", n_bytes.dense)
            if trace is not None:
                self._record(trace, step, layer, routing, h)
        if self.head is not None:
            state.stage_draft(step, torch.cat([given() for given in targets], 1))
        if trace is not None:
            trace.rows = {layer: torch.from_numpy(ids) for layer, ids in rows.items()}
        clock.lap("other")
        device = self._trunk.norm.device
        numerics = self.numerics.at(device)
        h, pre = bring_rows(device, h[-n_logits:], pre[-n_logits:])
        x = collapse_normed(h, pre, self._trunk.norm, config.norm_eps, numerics, work)
        result = Result(step=step, logits=bring(numerics.product(x, self._trunk.head), MEMORY))
        clock.lap("head", self._head_bytes)
        return result

    def _embed(self, ids: Sequence[int], should_stop: ShouldStop = never) -> Tensor:
        """Embedding rows [T, D]: a row read, the table is not resident."""
        (raw,) = self.streams.embedding.issue(ids).collect(_checking(should_stop))  # [T, row bytes]
        dtype = _FLOAT[self.checkpoint.tensors["embed.weight"].dtype]
        return torch.from_numpy(raw).view(dtype).to(torch.float32)

    def _waves(self, layer: int, phase: Phase, should_stop: ShouldStop) -> ExpertWaves:
        clock = self.clock

        def waves(experts: Sequence[int]) -> Iterator[Sequence[tuple[int, ExpertWeights]]]:
            clock.lap("dense")
            check = _checking(should_stop)
            with closing(self.streams.waves(layer, experts, phase=phase, check=check)) as coming:
                for wave in coming:
                    if should_stop():
                        raise Stopped("the forward was stopped")
                    clock.waited(wave.wait_s, wave.read_bytes)
                    yield wave.experts
                    clock.lap("experts", len(wave.experts) * self._expert_bytes)
                clock.lap("other")

        return waves

    def _draft_head(self, weights: HeadWeights, output: Matrix) -> DraftHead:
        def waves_of(layer: int, should_stop: ShouldStop) -> ExpertWaves:
            def waves(experts: Sequence[int]) -> Iterator[Sequence[tuple[int, ExpertWeights]]]:
                check = _checking(should_stop)
                with closing(self.streams.waves(layer, experts, phase="decode", check=check)) as coming:
                    for wave in coming:
                        if should_stop():
                            raise Stopped("the draft was stopped")
                        yield wave.experts

            return waves

        return DraftHead(
            self.config,
            self.numerics,
            weights,
            partial(self._freq_of, True),
            embed=self._embed,
            waves=waves_of,
            output=output,
            clock=self.clock,
            with_room=self._with_room,
        )

    @staticmethod
    def _record(trace: Trace, step: Step, layer: int, routing: Routing, h: Tensor) -> None:
        trace.routing[layer] = Routing(*(part.to(MEMORY, copy=True) for part in routing))
        trace.streams.append(h[-1].to(MEMORY, copy=True))
        if layer in step.schedule.owners:
            assert step.selection is not None
            trace.selections[layer] = bring(step.selection, MEMORY)
            trace.owners[layer] = step.schedule.owners[layer]


class _Memory:
    """What a model keeps for the results inside its forwards.

    Attributes:
        stream: The residual stream, for a whole forward.
        half: Everything else, until a half block ends.
        first, second: Coefficients of the attention half and of the FFN half, each until its next one.
    """

    def __init__(self, one: Workspace | None = None) -> None:
        """With `one`, that is all of them."""
        self.stream, self.half, self.first, self.second = (one or Workspace() for _ in range(4))
        self._n_rows = 0

    def begin(self, n_rows: int) -> "_Memory":
        """Everything is free again; after a prompt, a step gives back what only a prompt needs."""
        for one in (self.stream, self.half, self.first, self.second):
            if n_rows <= _MOST_STEP_ROWS < self._n_rows:
                one.release()
            one.clear()
        self._n_rows = n_rows
        return self


class _BlockBytes(NamedTuple):
    """Stored weights a forward goes through in one block, by phase; its routed experts aside."""

    engram: int
    attention: int
    dense: int

    @classmethod
    def of(cls, block: BlockWeights) -> "_BlockBytes":
        parts = (block.mix_attention, block.mix_ffn, block.ffn)
        attention = stored_bytes(block.attention) - stored_bytes(block.attention.indexer)
        return cls(stored_bytes(block.engram), attention, sum(map(stored_bytes, parts)))


_MOST_STEP_ROWS = 8
"""Beyond a token and its drafts. A forward of more goes through most of a layer's experts, whatever its rule."""


def _phase(step: Step) -> Phase:
    """How a forward goes through the slots: as a token does, or as a prompt does; so does a reply that is run again."""
    return "prefill" if step.n_rows > _MOST_STEP_ROWS else step.rule


_MARKED_WINDOWS = 4


def _draft_rows(step: Step, window: int) -> int:
    """Of how many of a step's last rows the draft head's keys are made: those that can survive a prompt, and those that
    a state needs which is taken back to a mark near its end. Further back it drafts less well for a while: rows of all
    of a long prompt would take as much memory as everything else in its forward.
    """
    if not step.is_whole:
        return step.n_rows
    end = step.start + step.n_rows
    near = [mark for mark in step.marked if end - mark <= (_MARKED_WINDOWS - 1) * window]
    return min(step.n_rows, window + end - min(near, default=end))


def _checking(should_stop: ShouldStop) -> Callable[[], None]:
    """Raises Stopped when asked to: for whoever waits for a drive, which may take its time."""

    def check() -> None:
        if should_stop():
            raise Stopped("the forward was stopped")

    return check


_FLOAT = {"BF16": torch.bfloat16, "F32": torch.float32}


def is_resident(name: str, drafts: bool = False) -> bool:
    """Whether a tensor of the text model, or of the draft head with `drafts`, stays in memory while it runs."""
    if name.startswith("layers.") or (drafts and name.startswith("mtp.")):
        return ".ffn.experts." not in name and ".engram.embed." not in name and not name.endswith("gate.bias_vl")
    return name in ("norm.weight", "head.weight")
