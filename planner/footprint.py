"""Bytes of each part of a model in memory, from its config and its shards' headers alone.

The one thing a reader would get wrong: these are the engine's bytes, not the checkpoint's. Norms become float32, KV is
kept as the numeric mode has it, a slot has room for whole blocks around an expert. `tests/planner/test_footprint.py`
holds every figure against what the engine takes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.config import ModelConfig
from planner.errors import MissingParts
from storage.arena import stride_for
from storage.headers import TensorEntry

BLOCK_BYTES = 4096
"""Largest block of direct reads that is planned for."""
KV_BYTES: Mapping[str, int] = {"exact": 4, "reference": 2}
"""Of one stored value of a key, by numeric mode: `reference` rounds keys to values that bfloat16 holds."""
WINDOW_SPARE_ROWS = 32
"""Of each layer's window, for the rows of a step."""
FLOAT_BYTES = 4
BASE_BYTES = 330_000_000
"""A process with the engine, its libraries' code included, before any model: 250 MB measured, threads and heaps."""
TENSOR_BYTES = 1_000
"""Objects that stand for one tensor of the headers; 880 measured over the release's 96,085."""
TOKEN_BYTES = 1_500
"""Of the tokenizer, its strings and maps, for each id of the vocabulary."""
SLOT_OBJECT_BYTES = 12_000
"""Views and tensors of one slot's expert: nine objects with their storages."""
ROW_OBJECT_BYTES = 400
"""Books of one cached row: a place in a dict and one in a policy."""
READING_BYTES = 64_000_000
"""What rows are read into on their way, and the reading threads' stacks."""

_LAYER = re.compile(r"(layers|mtp)\.(\d+)\.(.+)")


TensorPlace = tuple[str, str, int, str, int, int]
"""One tensor of a header: name, dtype, dimensions, shard, first byte and end, offsets that tell what lies next to what.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Resident weights of one part, by how fast they are consumed."""

    fp8_bytes: int = 0
    plain_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """Both."""
        return self.fp8_bytes + self.plain_bytes

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(fp8_bytes=self.fp8_bytes + other.fp8_bytes, plain_bytes=self.plain_bytes + other.plain_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a model takes, part by part."""

    config: ModelConfig
    layers: tuple[Weights, ...]
    """Resident weights of each backbone layer."""
    head: Weights
    """Output head and last norm."""
    draft: Weights
    """Resident weights of the draft head; nothing when it is incomplete."""
    expert_bytes: int
    """Payload of the largest routed expert."""
    stride_bytes: int
    """Of one slot."""
    experts_bytes: int
    """Payload of all backbone experts, as they lie on the drives."""
    tables_bytes: int
    """Engram tables and the embedding, which stay on the drives."""
    row_bytes: int
    """One engram row, its scales included; 0 without engram layers."""
    embedding_row_bytes: int
    n_tensors: int
    has_draft: bool
    """Whether the draft head is there in full."""
    numerics: str = "exact"
    """The mode it is to be run in."""

    @property
    def kv_value_bytes(self) -> int:
        """One stored value of a key."""
        return KV_BYTES[self.numerics]

    @property
    def trunk(self) -> Weights:
        """Resident weights of all backbone layers."""
        return sum(self.layers, Weights())

    @property
    def runtime_bytes(self) -> int:
        """The program itself: libraries, the headers' objects, the tokenizer, reading buffers."""
        return (
            BASE_BYTES + TENSOR_BYTES * self.n_tensors + TOKEN_BYTES * self.config.vocab_size + READING_BYTES
        )  # fmt: skip

    def n_experts(self, *, drafting: bool) -> dict[int, int]:
        """Experts of each layer; a draft stage is the layer behind the last, `n_layers + stage`."""
        config = self.config
        counts = dict.fromkeys(range(config.n_layers), config.n_routed_experts)
        if drafting:
            for stage in range(config.n_mtp_layers):
                counts[config.n_layers + stage] = config.dspark_n_routed_experts
        return counts

    def n_used(self, layer: int) -> int:
        """Experts that one row uses in a layer or stage."""
        config = self.config
        return config.n_activated_experts if layer < config.n_layers else config.dspark_n_activated_experts

    def kv_bytes(self, context_tokens: int, *, drafting: bool = False) -> int:
        """The state of a conversation of so many positions.

        Latents and index keys of each source, a row for each complete group; the largest counts twice, for it is copied
        when it grows. A window of every layer, twice while a prompt's is staged; of every draft stage a window of keys,
        and one of what they are made of.
        """
        config = self.config
        width = (config.head_dim + config.index_head_dim) * self.kv_value_bytes
        rows = [context_tokens // config.ratio(source) for source in config.kv_source_layers]
        largest = max(rows, default=0) * config.head_dim * self.kv_value_bytes
        window_rows = 2 * config.window_size + WINDOW_SPARE_ROWS
        windows = config.n_layers * window_rows * config.head_dim * self.kv_value_bytes
        return sum(rows) * width + largest + windows + (self.draft_ring_bytes() if drafting else 0)

    def scratch_bytes(self, rows: int, context_tokens: int) -> int:
        """The most that a forward over so many rows holds at once, beside the state.

        The widest moment of a layer: the stream with its copies, twice, as a half block writes the next from the last,
        and the larger of what the attention half (three arrays of all heads) and the expert half (every expert's
        contribution) hold beside it; or the stream once and what the engram lookup or torch's own results hold. The
        selected groups, and the candidate blocks of a long context.
        """
        config = self.config
        stream = config.hc_mult * config.dim
        attention = 3 * config.n_heads * config.head_dim + config.q_lora_rank + config.o_groups * config.o_lora_rank
        experts = (config.n_activated_experts + 3) * config.dim + 3 * config.moe_inter_dim
        looked_up = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
        engram = 2 * looked_up + 4 * stream + config.dim if config.engram_layer_ids else 0
        widest = stream + 3 * config.dim + max(stream + attention, stream + experts, engram, 3 * stream)
        chosen = 0
        if config.index_source_layers:
            chosen = 2 * 8 * config.index_topk + context_tokens // max(1, config.candidate_block_size)
        return rows * (widest * FLOAT_BYTES + chosen) + config.vocab_size * FLOAT_BYTES

    def card_kv_bytes(self, layers: Collection[int], context_tokens: int) -> int:
        """What these layers on a card keep of a conversation of so many positions.

        The latents that they read, and every source's index keys where one of them selects, whoever makes them; a
        quarter is room to grow, and the largest counts twice, for it is copied when it grows. Their windows, twice
        while a prompt's is staged.
        """
        config = self.config
        n_groups = {source: context_tokens // config.ratio(source) for source in config.kv_source_layers}
        read = {max(s for s in n_groups if s <= layer) for layer in layers if config.ratio(layer)}
        values = sum(n_groups[source] for source in read) * config.head_dim
        if any(layer in config.index_source_layers for layer in layers):
            values += sum(n_groups.values()) * config.index_head_dim
        largest = max((n_groups[source] for source in read), default=0) * config.head_dim
        windows = len(layers) * (2 * config.window_size + WINDOW_SPARE_ROWS) * config.head_dim
        return (values + values // 4 + largest + windows) * self.kv_value_bytes

    def card_stream_bytes(self, rows: int) -> int:
        """What of a forward over so many rows lies on a card whole: all that is wider is gone through in pieces.

        The stream with its copies, seven vectors of its width, low-rank queries twice, keys and what latents are made
        of, the groups chosen.
        """
        config = self.config
        width = (config.hc_mult + 7) * config.dim + 2 * config.q_lora_rank + 10 * config.head_dim
        return rows * (width * FLOAT_BYTES + 2 * 8 * config.index_topk)

    def draft_ring_bytes(self) -> int:
        """A window of keys of every draft stage, and one of what they are made of."""
        config = self.config
        width = config.n_mtp_layers * config.head_dim + len(config.dspark_target_layer_ids) * config.dim
        return config.window_size * width * FLOAT_BYTES

    def rows_bytes(self, cache_rows: int, embedding_rows: int) -> int:
        """Row caches of all engram tables and of the embedding, when full."""
        config = self.config
        engram = sum(min(cache_rows, n_rows) for n_rows in config.engram_num_embeddings)
        embedding = min(embedding_rows, config.vocab_size)
        return engram * (self.row_bytes + ROW_OBJECT_BYTES) + embedding * (self.embedding_row_bytes + ROW_OBJECT_BYTES)

    def slot_bytes(self, n_slots: int) -> int:
        """So many slots, when full."""
        return n_slots * (self.stride_bytes + SLOT_OBJECT_BYTES)


def places(tensors: Mapping[str, TensorEntry]) -> Iterable[TensorPlace]:
    """The tensors of an opened checkpoint."""
    for entry in tensors.values():
        extent = entry.extent
        yield entry.name, entry.dtype, len(entry.shape), extent.shard, extent.offset, extent.end


_Extents = list[tuple[str, int, int]]
_Layout = tuple[tuple[str, int, int], ...]
"""Extents in order, counted from where the first begins; "" for the first one's shard."""


def footprint(config: ModelConfig, tensors: Iterable[TensorPlace], *, numerics: str = "exact") -> Footprint:
    """The footprint of a checkpoint of this config with these tensors, run in this numeric mode.

    Raises: MissingParts when experts, a layer, the head or the embedding are missing, so that no sum can be made.
    """
    layers = [Weights()] * config.n_layers
    head = draft = Weights()
    experts: defaultdict[str, _Extents] = defaultdict(list)
    tables_bytes = n_tensors = embedding_row_bytes = row_bytes = 0
    draft_roles: set[str] = set()
    last, extents = "\0", _Extents()  # an expert's tensors follow one another, and most tensors are experts'
    for name, dtype, n_dims, shard, begin, end in tensors:
        n_tensors += 1
        if name.startswith(last):
            extents.append((shard, begin, end))
            continue
        if ".ffn.experts." in name:
            key = name.rsplit(".", 2)[0]
            last, extents = f"{key}.", experts[key]
            extents.append((shard, begin, end))
            continue
        if name == "embed.weight":
            tables_bytes += end - begin
            embedding_row_bytes = (end - begin) // config.vocab_size
        elif name in ("head.weight", "norm.weight"):
            head += _weights(name, dtype, n_dims, end - begin)
        elif (match := _LAYER.fullmatch(name)) is not None and not name.endswith("gate.bias_vl"):
            kind, number, role = match.groups()
            layer = int(number)
            if role.startswith("engram.embed."):
                tables_bytes += end - begin
                if layer in config.engram_layer_ids:
                    row_bytes += (end - begin) // config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
            elif kind == "mtp":
                draft += _weights(name, dtype, n_dims, end - begin)
                draft_roles.add(f"{number}.{role}")
            elif layer < config.n_layers:
                layers[layer] += _weights(name, dtype, n_dims, end - begin)
    _require(config, layers, head, experts, embedding_row_bytes)
    # Experts lie alike, and there are thousands: each way of lying is looked at once.
    backbone = Counter(_lie(some) for key, some in experts.items() if key.startswith("layers."))
    layouts = {*backbone, *(_lie(some) for key, some in experts.items() if not key.startswith("layers."))}
    return Footprint(
        config=config,
        layers=tuple(layers),
        head=head,
        draft=draft,
        expert_bytes=max(_payload(layout) for layout in backbone),
        stride_bytes=max(stride_for(_runs(layout), BLOCK_BYTES) for layout in layouts),
        experts_bytes=sum(n * _payload(layout) for layout, n in backbone.items()),
        tables_bytes=tables_bytes,
        row_bytes=row_bytes // max(1, len(config.engram_layer_ids)),
        embedding_row_bytes=embedding_row_bytes,
        n_tensors=n_tensors,
        has_draft=_has_draft(config, draft_roles, experts),
        numerics=numerics,
    )


def _weights(name: str, dtype: str, n_dims: int, n_bytes: int) -> Weights:
    """A resident tensor: norms stored as bf16 are kept as float32, everything else as stored."""
    if dtype in ("F8_E4M3", "F8_E8M0"):
        return Weights(fp8_bytes=n_bytes)
    widened = dtype == "BF16" and (n_dims == 1 or name.endswith((".q_weight", ".k_weight")))
    return Weights(plain_bytes=2 * n_bytes if widened else n_bytes)


def _lie(extents: _Extents) -> _Layout:
    """How an expert's tensors lie to one another."""
    extents.sort()
    first, base, _ = extents[0]
    return tuple([("" if shard == first else shard, begin - base, end - base) for shard, begin, end in extents])


def _runs(layout: _Layout) -> list[int]:
    """Lengths of the fewest runs that cover an expert's tensors."""
    lengths: list[int] = []
    last: tuple[str, int] | None = None
    for shard, begin, end in layout:
        if last == (shard, begin):
            lengths[-1] += end - begin
        else:
            lengths.append(end - begin)
        last = (shard, end)
    return lengths


def _payload(layout: _Layout) -> int:
    return sum(end - begin for _, begin, end in layout)


def _require(
    config: ModelConfig, layers: list[Weights], head: Weights, experts: Mapping[str, _Extents], embedding_row_bytes: int
) -> None:
    missing = [f"layers.{layer}" for layer, weights in enumerate(layers) if not weights.n_bytes]
    missing += [
        name
        for name, there in (("head", head.n_bytes >= config.vocab_size * config.dim), ("embed", embedding_row_bytes))
        if not there
    ]
    missing += [
        key
        for layer in range(config.n_layers)
        for expert in range(config.n_routed_experts)
        if len(experts.get(key := f"layers.{layer}.ffn.experts.{expert}", ())) < _EXPERT_TENSORS
    ]
    if missing:
        raise MissingParts(
            f"the headers lack {len(missing):,} parts of the model, {missing[0]} first",
            hint="Fetch the first MB of every shard, or the config alone.",
        )


_EXPERT_TENSORS = 6


def _has_draft(config: ModelConfig, roles: set[str], experts: Mapping[str, _Extents]) -> bool:
    last = config.n_mtp_layers - 1
    marks = {"0.main_proj.weight", f"{last}.markov_head.embed.weight", f"{last}.confidence_head.proj.weight"}
    whole = all(
        len(experts.get(f"mtp.{stage}.ffn.experts.{expert}", ())) == _EXPERT_TENSORS
        for stage in range(config.n_mtp_layers)
        for expert in range(config.dspark_n_routed_experts)
    )
    return config.n_mtp_layers > 0 and marks <= roles and whole
