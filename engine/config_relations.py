"""What must hold between the fields of a config, relation by relation.

Owns the rules, not what happens when one is broken: the loader refuses to run on the needed ones, the audit reports
all. The one thing a reader would get wrong: some only describe the release, and a model that breaks them still runs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import ModelConfig

MAX_ROUTED_EXPERTS = 1 << 17
"""Over all layers and draft stages; the release has 15,744. More would take minutes to merely list."""
MAX_ENGRAM_COLUMNS = 4096
"""Over all engram layers; the release has 48. Each costs a search for a prime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken relation."""

    relation: str
    """Its name, such as "config.kv-subset"; the audit's check of that name reports it."""
    message: str
    """The fields and values that disagree."""
    values: Mapping[str, object]
    """Those fields and values, for a program."""
    needed: bool
    """Whether the model cannot be run like this; otherwise it only differs from the release."""


Rule = Callable[["ModelConfig"], Iterator[Violation]]


def check_relations(config: "ModelConfig") -> tuple[Violation, ...]:
    """Every violated relation, in the order of `RELATIONS`; empty for a sound config. Never raises."""
    return tuple(violation for rule in RELATIONS.values() for violation in rule(config))


def _broken(
    config: "ModelConfig", relation: str, why: str, *fields: str, needed: bool = True, **more: object
) -> Violation:
    values = {**{field: getattr(config, field) for field in fields}, **more}
    said = ", ".join(f"{name} {_shown(value)}" for name, value in values.items())
    return Violation(relation=relation, message=f"{why}: {said}", values=values, needed=needed)


def _shown(value: object) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _ratio(config: "ModelConfig", layer: int) -> int:
    """The layer's ratio, 0 where the list is too short to say: another relation reports that."""
    return config.compress_ratios[layer] if layer < min(len(config.compress_ratios), config.n_layers) else 0


def _ratios_length(config: "ModelConfig") -> Iterator[Violation]:
    n_entries = len(config.compress_ratios)
    if n_entries != config.n_layers + config.n_mtp_layers:
        why = f"{n_entries} compression ratios, one per layer and draft stage are needed"
        yield _broken(config, "config.ratios-length", why, "n_layers", "n_mtp_layers", "compress_ratios")


def _draft_ratios(config: "ModelConfig") -> Iterator[Violation]:
    if any(config.compress_ratios[config.n_layers :]):
        why = "a draft stage compresses nothing, its ratio is 0"
        yield _broken(config, "config.draft-ratios", why, "n_layers", "compress_ratios")


def _source_order(config: "ModelConfig") -> Iterator[Violation]:
    for field in ("kv_source_layers", "index_source_layers"):
        layers: tuple[int, ...] = getattr(config, field)
        if list(layers) != sorted(set(layers)) or any(layer >= config.n_layers for layer in layers):
            yield _broken(
                config, "config.source-order", "sources are distinct backbone layers, ascending", field, "n_layers"
            )


def _kv_subset(config: "ModelConfig") -> Iterator[Violation]:
    if not set(config.kv_source_layers) <= set(config.index_source_layers):
        why = "every KV source is an index source"
        yield _broken(config, "config.kv-subset", why, "kv_source_layers", "index_source_layers")


def _source_ratios(config: "ModelConfig") -> Iterator[Violation]:
    for layer in sorted({*config.kv_source_layers, *config.index_source_layers}):
        if layer < config.n_layers and _ratio(config, layer) == 0:
            yield _broken(
                config, "config.source-ratios", f"source layer {layer} compresses nothing", layer=layer, ratio=0
            )


def _index_over_kv(config: "ModelConfig") -> Iterator[Violation]:
    for layer in config.index_source_layers:
        if not any(source <= layer for source in config.kv_source_layers):
            why = f"index source {layer} has no KV source at or below it"
            yield _broken(config, "config.index-over-kv", why, "kv_source_layers", layer=layer)


def _readers(config: "ModelConfig") -> Iterator[Violation]:
    for layer in range(config.n_layers):
        ratio = _ratio(config, layer)
        if ratio == 0:
            continue
        for field in ("kv_source_layers", "index_source_layers"):
            source = max((item for item in getattr(config, field) if item <= layer), default=None)
            if source is None:
                why = f"layer {layer} reads compressed positions, and nothing at or below it makes them"
                yield _broken(config, "config.readers", why, field, layer=layer, ratio=ratio)
            elif _ratio(config, source) != ratio:
                why = f"layer {layer} has ratio {ratio}, its source {source} has {_ratio(config, source)}"
                yield _broken(
                    config,
                    "config.readers",
                    why,
                    field,
                    layer=layer,
                    ratio=ratio,
                    source_ratio=_ratio(config, source),
                )


def _candidates(config: "ModelConfig") -> Iterator[Violation]:
    source = config.candidate_source_layer
    if source < 0:
        return
    if source not in config.index_source_layers:
        why = "the candidate source is an index source"
        yield _broken(config, "config.candidate-source", why, "candidate_source_layer", "index_source_layers")
        return
    for layer in config.index_source_layers:
        if layer > source and _ratio(config, layer) != _ratio(config, source):
            why = f"index source {layer} counts groups of {_ratio(config, layer)} positions, its candidates others"
            yield _broken(
                config,
                "config.candidate-source",
                why,
                "candidate_source_layer",
                layer=layer,
                ratio=_ratio(config, layer),
                source_ratio=_ratio(config, source),
            )
    last = max(config.kv_source_layers, default=0)
    first = min((layer for layer in config.index_source_layers if layer >= last), default=None)
    if source != first:
        why = f"the candidate source is the first index source from the last KV source on, {first}, in the release"
        yield _broken(
            config,
            "config.candidate-source",
            why,
            "candidate_source_layer",
            "index_source_layers",
            "kv_source_layers",
            needed=False,
        )


def _candidate_reach(config: "ModelConfig") -> Iterator[Violation]:
    # With fewer candidates than the selection wants, the reference fills up with masked positions in no defined order.
    if config.candidate_source_layer < 0 or config.candidate_source_layer == max(
        config.index_source_layers, default=-1
    ):
        return
    reach = (config.candidate_topk_blocks - 1) * config.candidate_block_size + 1
    if reach < config.index_topk:
        why = f"the candidate blocks may leave only {reach} positions to select from"
        yield _broken(
            config,
            "config.candidate-reach",
            why,
            "candidate_topk_blocks",
            "candidate_block_size",
            "index_topk",
        )


def _draft_targets(config: "ModelConfig") -> Iterator[Violation]:
    targets, n_layers = config.dspark_target_layer_ids, config.n_layers
    if config.n_mtp_layers == 0:
        return
    if not targets or list(targets) != sorted(set(targets)) or targets[-1] >= n_layers:
        why = "draft targets are distinct backbone layers, ascending"
        yield _broken(config, "config.draft-targets", why, "dspark_target_layer_ids", "n_layers")
    elif targets != tuple(range(n_layers - config.n_mtp_layers, n_layers)):
        why = "draft targets are the last backbone layers, as many as draft stages, in the release"
        yield _broken(
            config,
            "config.draft-targets",
            why,
            "dspark_target_layer_ids",
            "n_layers",
            "n_mtp_layers",
            needed=False,
        )


def _engram_sizes(config: "ModelConfig") -> Iterator[Violation]:
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        why = "one table size per engram layer is needed"
        yield _broken(config, "config.engram-sizes", why, "engram_num_embeddings", "engram_layer_ids")


def _engram_layers(config: "ModelConfig") -> Iterator[Violation]:
    layers = config.engram_layer_ids
    if list(layers) != sorted(set(layers)) or any(layer >= config.n_layers for layer in layers):
        why = "engram layers are distinct backbone layers, ascending"
        yield _broken(config, "config.engram-layers", why, "engram_layer_ids", "n_layers")


def _compressed_vocabulary(config: "ModelConfig") -> Iterator[Violation]:
    if config.engram_layer_ids and not 0 < config.engram_compressed_vocab_size <= config.vocab_size:
        why = "the compressed vocabulary has at least one class and no more than tokens"
        yield _broken(config, "config.compressed-vocabulary", why, "engram_compressed_vocab_size", "vocab_size")


def _token_ids(config: "ModelConfig") -> Iterator[Violation]:
    fields = ["bos_token_id", "eos_token_id", "pad_token_id", "engram_pad_id"]
    if config.n_mtp_layers:
        fields.append("dspark_noise_token_id")
    if config.image_token_id >= 0 or config.vision_n_layers:
        fields.append("image_token_id")
    for field in fields:
        if not 0 <= getattr(config, field) < config.vocab_size:
            yield _broken(config, "config.token-ids", f"{field} lies outside the vocabulary", field, "vocab_size")


def _vision(config: "ModelConfig") -> Iterator[Violation]:
    if config.vision_n_layers == 0:
        return
    sizes = ("vision_dim", "vision_n_heads", "vision_inter_dim", "vision_patch_size", "vision_downsample_ratio")
    unset = [field for field in sizes if getattr(config, field) < 1]
    if unset:
        why = "the image tower has blocks but a size that is not set"
        yield _broken(config, "config.vision", why, "vision_n_layers", *unset, needed=False)
        return
    if config.vision_dim % config.vision_n_heads or config.vision_dim // config.vision_n_heads % 4:
        why = "the heads of the image tower divide its width, into heads that turn with row and column"
        yield _broken(config, "config.vision", why, "vision_dim", "vision_n_heads", needed=False)
    if config.vision_patch_size % 2:
        yield _broken(config, "config.vision", "the patch size is even", "vision_patch_size", needed=False)


_DIVISIBLE = (
    ("n_heads", "o_groups", "heads share their output groups evenly"),
    ("rope_head_dim", 2, "rotation turns pairs of values"),
    ("dim", 32, "a scale of the packed experts covers 32 columns"),
    ("moe_inter_dim", 32, "a scale of the packed experts covers 32 columns"),
    ("engram_head_dim", 32, "a scale of an engram row covers 32 values"),
)
_AT_MOST = (
    ("rope_head_dim", "head_dim", "the rotated tail lies inside the head"),
    ("rope_head_dim", "index_head_dim", "the rotated tail lies inside the index head"),
    ("n_activated_experts", "n_routed_experts", "a token uses some of the experts"),
)


def routed_experts(config: "ModelConfig") -> int:
    """Routed experts of all layers and draft stages."""
    return config.n_layers * config.n_routed_experts + config.n_mtp_layers * config.dspark_n_routed_experts


def _sizes(config: "ModelConfig") -> Iterator[Violation]:
    relation = "config.sizes"
    for field, by, why in _DIVISIBLE:
        divisor = by if isinstance(by, int) else getattr(config, by)
        if getattr(config, field) % divisor:
            if isinstance(by, int):
                yield _broken(config, relation, why, field, multiple_of=by)
            else:
                yield _broken(config, relation, why, field, by)
    for field, limit, why in _AT_MOST:
        if getattr(config, field) > getattr(config, limit):
            yield _broken(config, relation, why, field, limit)
    if config.n_mtp_layers:
        if not 1 <= config.dspark_n_activated_experts <= config.dspark_n_routed_experts:
            why = "a drafted token uses some of the draft experts"
            yield _broken(config, relation, why, "dspark_n_activated_experts", "dspark_n_routed_experts")
        for field in ("dspark_block_size", "dspark_markov_rank"):
            if getattr(config, field) < 1:
                yield _broken(config, relation, "a draft head has it", field, "n_mtp_layers")
    experts = routed_experts(config)
    if experts > MAX_ROUTED_EXPERTS:
        why = f"{experts:,} routed experts in all, at most {MAX_ROUTED_EXPERTS:,} are plausible"
        yield _broken(config, relation, why, "n_layers", "n_routed_experts")
    columns = len(config.engram_layer_ids) * (config.engram_max_ngram_size - 1) * config.engram_n_heads
    if columns > MAX_ENGRAM_COLUMNS:
        why = f"{columns:,} engram columns in all, at most {MAX_ENGRAM_COLUMNS:,} are plausible"
        yield _broken(config, relation, why, "engram_max_ngram_size", "engram_n_heads")


_ARITHMETIC: tuple[tuple[str, object], ...] = (
    ("score_func", "sqrtsoftplus"),
    ("topk_method", "noaux_tc"),
    ("norm_topk_prob", True),
    ("n_shared_experts", 1),
    ("hidden_act", "silu"),
    ("num_key_value_heads", 1),
    ("tie_word_embeddings", False),
    ("rope_type", "yarn"),
)
"""Choices the architecture has one answer to; a file with another describes a model this engine cannot compute."""


def _arithmetic(config: "ModelConfig") -> Iterator[Violation]:
    for field, known in _ARITHMETIC:
        if getattr(config, field) != known:
            why = f"{field} is {getattr(config, field)!r}, only {known!r} can be computed"
            yield _broken(config, "config.arithmetic", why, field, known=known)


RELATIONS: Mapping[str, Rule] = {
    "config.ratios-length": _ratios_length,
    "config.draft-ratios": _draft_ratios,
    "config.source-order": _source_order,
    "config.kv-subset": _kv_subset,
    "config.source-ratios": _source_ratios,
    "config.index-over-kv": _index_over_kv,
    "config.readers": _readers,
    "config.candidate-source": _candidates,
    "config.candidate-reach": _candidate_reach,
    "config.draft-targets": _draft_targets,
    "config.engram-sizes": _engram_sizes,
    "config.engram-layers": _engram_layers,
    "config.compressed-vocabulary": _compressed_vocabulary,
    "config.token-ids": _token_ids,
    "config.vision": _vision,
    "config.sizes": _sizes,
    "config.arithmetic": _arithmetic,
}
"""Every relation under the name its violations carry."""
