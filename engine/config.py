"""Both config layouts in one schema: read, cross-checked, and written back as the flat layout.

Owns what the model's sizes are called. Stdlib only: the planner and the audit read it without torch. The one thing a
reader would get wrong: whether a tensor is quantised is not in here, only in its header.
The field names are the keys of the released `inference/config.json`.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.config_layouts import FIELDS, SILENT, ConfigFile, read_file
from engine.config_relations import Violation, check_relations
from engine.errors import ConfigError

__all__ = [
    "SILENT",
    "ConfigReading",
    "Difference",
    "LayerKind",
    "LoadedConfig",
    "ModelConfig",
    "Violation",
    "flat",
    "load_config",
    "read_config",
    "verify",
]

LayerKind = Literal["window", "full", "reindex", "reuse"]
"""No compressed positions; own positions and own selection; own selection only; both from layers below."""


_OUR_NAMES = ("DeepseekV41ForCausalLM", "deepseek_v41")
"""What files of DeepSeek-V4.1 say they are of."""
_MOST_NAME = 60
_MOST_NAMED = 5
"""Characters of a name, and missing keys, that are worth showing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Every size and choice of the model. Layer numbers count from 0; sequences are tuples."""

    vocab_size: int
    """Rows of the embedding and of the head (V)."""
    dim: int
    """Model width (D)."""
    n_layers: int
    """Backbone layers (L)."""
    n_heads: int
    """Attention heads (H)."""
    head_dim: int
    """Width of a head, and of the one KV vector of a position (hd)."""
    rope_head_dim: int
    """Rotated tail of a head (rd)."""
    q_lora_rank: int
    """Query low rank (Rq)."""
    o_groups: int
    """Groups of heads in the block diagonal half of the output projection (G)."""
    o_lora_rank: int
    """Rank of each output group (Ro)."""
    window_size: int
    """Positions a token sees uncompressed, itself included (W)."""
    moe_inter_dim: int
    """Width inside an expert (F)."""
    n_routed_experts: int
    """Routed experts of a backbone layer (E)."""
    n_activated_experts: int
    """Routed experts a token uses (k)."""
    n_shared_experts: int
    """Shared experts of a layer; they are stored as one of this many widths F."""
    score_func: str
    """Router score; "sqrtsoftplus"."""
    route_scale: float
    """Factor on the renormalised routing weights."""
    swiglu_limit: float
    """Clamp of an expert's gate and up values."""
    norm_eps: float
    """Added to the mean square of every RMS norm."""
    compress_ratios: tuple[int, ...]
    """Positions in a compressed group per backbone layer, then per draft stage; 0 = window only."""
    kv_source_layers: tuple[int, ...]
    """Layers that make compressed positions and index keys."""
    index_source_layers: tuple[int, ...]
    """Layers that select among compressed positions."""
    index_n_heads: int
    """Heads of the indexer (Hi)."""
    index_head_dim: int
    """Width of an index head (di)."""
    index_topk: int
    """Compressed positions selected for a token (K)."""
    candidate_source_layer: int
    """Layer whose scores name the candidate blocks of later index sources; -1 = none."""
    candidate_topk_blocks: int
    """Candidate blocks kept."""
    candidate_block_size: int
    """Compressed positions in a candidate block."""
    rope_theta: float
    """Rotary base of window-only layers and draft stages."""
    compress_rope_theta: float
    """Rotary base of compressing layers, with YaRN."""
    rope_factor: float
    """YaRN stretch."""
    beta_fast: float
    """YaRN: rotations above which a frequency is left as it is."""
    beta_slow: float
    """YaRN: rotations below which a frequency is divided by the stretch."""
    original_seq_len: int
    """YaRN: positions of the unstretched model."""
    hc_mult: int
    """Residual copies (m)."""
    hc_sinkhorn_iters: int
    """Sinkhorn rounds of the mixing matrices."""
    hc_eps: float
    """Floor of the collapse mix and of the Sinkhorn divisions."""
    engram_layer_ids: tuple[int, ...]
    """Layers with an n-gram table."""
    engram_num_embeddings: tuple[int, ...]
    """Rows of each of those tables, as declared."""
    engram_max_ngram_size: int
    """Longest n-gram (N); the shortest is 2."""
    engram_vocab_size: int
    """Number above which the table moduli are drawn."""
    engram_n_heads: int
    """Hash heads per n-gram size (He)."""
    engram_head_dim: int
    """Values in a table row (de)."""
    engram_compressed_vocab_size: int
    """Distinct folded tokens; every hash multiplier depends on it."""
    engram_pad_id: int
    """Token that stands for what lies before the text."""
    n_mtp_layers: int
    """Draft stages (T)."""
    dspark_block_size: int
    """Tokens drafted per round (B)."""
    dspark_noise_token_id: int
    """Token in the places a draft round has to fill."""
    dspark_target_layer_ids: tuple[int, ...]
    """Backbone layers whose entering stream the draft head reads."""
    dspark_markov_rank: int
    """Width of the draft head's bigram term."""
    dspark_n_routed_experts: int
    """Routed experts of a draft stage."""
    dspark_n_activated_experts: int
    """Routed experts a drafted token uses."""
    image_token_id: int = -1
    """Token that holds the place of an image position; -1 = none."""
    vision_n_layers: int = 0
    """Blocks of the image tower; 0 = no vision."""
    vision_dim: int = 0
    """Width of the image tower."""
    vision_n_heads: int = 0
    """Attention heads of the image tower."""
    vision_inter_dim: int = 0
    """Width inside the image tower's feed-forward half."""
    vision_patch_size: int = 0
    """Pixels on a side of a patch."""
    vision_downsample_ratio: int = 0
    """Patches on a side of the square that becomes one position."""
    vision_max_n_token: int = 0
    """Positions a picture takes at most."""
    vision_min_pixels: int = 0
    """Pixels below which a picture is enlarged."""
    vision_max_wh_ratio: float | None = None
    """Largest side ratio, or None for no limit."""
    vision_rope_theta: float = 10000.0
    """Rotary base of the image tower."""
    dtype: str = "fp8"
    """Storage of the quantised dense weights as announced. Never decide by it: look at the tensor."""
    expert_dtype: str = "fp4"
    """Storage of the routed experts as announced. Never decide by it: look at the tensor."""
    bos_token_id: int = 0
    """Begin token; the chat template writes it, the tokenizer does not."""
    eos_token_id: int = 1
    """Token at which generation stops."""
    pad_token_id: int = 2
    """Padding token."""
    plain_dtype: str = "bfloat16"
    """Type of the unquantised tensors as announced."""
    weight_block_size: tuple[int, ...] = (32, 32)
    """Block one fp8 scale covers, as announced."""
    scale_fmt: str = "ue8m0"
    """Format of the scales as announced."""
    topk_method: str = "noaux_tc"
    """Choice of experts: the best by biased score, in one group."""
    norm_topk_prob: bool = True
    """Whether the chosen experts' weights are renormalised."""
    hidden_act: str = "silu"
    """Activation of the experts' gate."""
    num_key_value_heads: int = 1
    """KV vectors of a position."""
    tie_word_embeddings: bool = False
    """Whether the head shares the embedding's matrix."""
    rope_type: str = "yarn"
    """Rule of the rotary stretch."""
    max_position_embeddings: int | None = None
    """Longest context announced, or None where no file says."""

    def ratio(self, layer: int) -> int:
        """Positions in a compressed group of a backbone layer; 0 = window only."""
        return self.compress_ratios[layer]

    def kind(self, layer: int) -> LayerKind:
        """What a backbone layer computes of its own for the compressed part of its attention."""
        if self.ratio(layer) == 0:
            return "window"
        if layer in self.kv_source_layers:
            return "full"
        return "reindex" if layer in self.index_source_layers else "reuse"

    def kv_source_of(self, layer: int) -> int | None:
        """The layer whose compressed positions this one reads: the nearest KV source at or below.

        None for window layers, and where there is no source below.
        """
        return self._nearest(self.kv_source_layers, layer)

    def _nearest(self, sources: tuple[int, ...], layer: int) -> int | None:
        if self.ratio(layer) == 0:
            return None
        below = bisect_right(sources, layer)
        return sources[below - 1] if below else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field on which the nested and the flat file do not say the same."""

    field: str
    nested: object
    """Value in the nested file, or `SILENT`."""
    flat: object
    """Value in the flat file, or `SILENT`; always silent for a field that layout has no word for."""

    @property
    def conflict(self) -> bool:
        """Both files speak, and contradict each other."""
        return self.nested is not SILENT and self.flat is not SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A config that can be run, and how it was come by."""

    config: ModelConfig
    sources: tuple[Path, ...]
    """Files that were read, the nested one first."""
    unknown: Mapping[str, object]
    """What the files say beyond the schema, under `file:dotted.key`."""
    differences: tuple[Difference, ...]
    """Every field on which the two files differ or one is silent; empty when only one file was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReading:
    """What the config files say, before anything is concluded: the audit's view of them."""

    files: tuple[ConfigFile, ...]
    """At most one of each layout, the nested one first."""

    @property
    def values(self) -> dict[str, Any]:
        """Field to value; where two files contradict each other, the nested one's, which is the fuller file."""
        return {name: value for file in reversed(self.files) for name, value in file.values.items()}

    @property
    def missing(self) -> tuple[str, ...]:
        """Needed fields no file speaks of, in schema order, each with the key that would say it."""
        values = self.values
        return tuple(spec.name for spec in FIELDS if spec.needed and spec.name not in values)

    @property
    def other_model(self) -> str | None:
        """The model that files with keys missing say they are of, where that is another one; None where it is not."""
        if not self.missing:
            return None
        said = self.unknown.get(f"{self.files[0].path.name}:architectures")
        names = said if isinstance(said, list) else [self.unknown.get(f"{self.files[0].path.name}:model_type")]
        name = names[0] if names else None
        return name if isinstance(name, str) and 0 < len(name) <= _MOST_NAME and name not in _OUR_NAMES else None

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Every field on which the two files differ or one is silent; empty when only one file was read."""
        if len(self.files) < 2:
            return ()
        nested, flat = (file.values for file in self.files)
        pairs = ((spec.name, nested.get(spec.name, SILENT), flat.get(spec.name, SILENT)) for spec in FIELDS)
        return tuple(Difference(field=name, nested=a, flat=b) for name, a, b in pairs if a != b)

    @property
    def unknown(self) -> dict[str, object]:
        """What the files say beyond the schema, under `file:dotted.key`."""
        return {f"{file.path.name}:{key}": value for file in self.files for key, value in file.unknown.items()}

    def build(self) -> ModelConfig:
        """The config these files describe.

        Raises: ConfigError naming the other model they are of, or the first of the needed keys that are missing.
        """
        missing = self.missing
        if missing:
            where = " and ".join(str(file.path) for file in self.files)
            if (other := self.other_model) is not None:
                raise ConfigError(
                    f"{where}: this is the config of {other!r}, and Artesian runs DeepSeek-V4.1-Flash alone",
                    hint="Point at the folder of that model.",
                )
            keys = ", ".join(self.files[0].key_of(name) for name in missing[:_MOST_NAMED])
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            raise ConfigError(
                f"{where}: {len(missing)} needed key{'s' if len(missing) > 1 else ''} missing: {keys}{more}",
                hint="It is cut short, or of another model. Fetch config.json of DeepSeek-V4.1-Flash again.",
            )
        values = self.values
        return ModelConfig(**{s.name: values.get(s.name, s.default) for s in FIELDS})


def read_config(folder: Path, *, config: Path | None = None) -> ConfigReading:
    """Read the config files of a checkpoint folder without judging what they say.

    Reads `config.json` and `inference/config.json` of `folder`, whichever exist and in whichever layout each is
    written; or `config` alone when given.
    Raises: ConfigError when there is no file, a file is not one of the two layouts, or a key has a wrong type or an
    absurd value.
    """
    if config is not None:
        return ConfigReading(files=(read_file(config),))
    candidates = (folder / "config.json", folder / "inference" / "config.json")
    files = [read_file(path) for path in candidates if path.exists() or path.is_symlink()]
    if not files:
        raise ConfigError(
            f"{folder}: no config.json and no inference/config.json",
            hint="Point at the model's folder: the one that holds the shards and a config.json.",
        )
    if len(files) == 2 and files[0].layout == files[1].layout:
        raise ConfigError(f"{files[0].path} and {files[1].path} are both in the {files[0].layout} layout")
    return ConfigReading(files=tuple(sorted(files, key=lambda file: file.layout == "flat")))


def load_config(folder: Path, *, config: Path | None = None) -> LoadedConfig:
    """Load the config a model can be run from.

    Either layout is enough. Raises: ConfigError when a file is broken, a needed key is missing, the two
    files contradict each other on a value the engine reads, or a relation that running needs is violated.
    """
    reading = read_config(folder, config=config)
    read = {spec.name for spec in FIELDS if spec.read}
    clashes = [d for d in reading.differences if d.conflict and d.field in read]
    if clashes:
        nested, flat = reading.files
        said = "; ".join(
            f"{d.field} is {d.nested!r} ({nested.key_of(d.field)}) and {d.flat!r} ({flat.key_of(d.field)})"
            for d in clashes
        )
        raise ConfigError(
            f"{nested.path} and {flat.path} contradict each other: {said}",
            hint="Fetch both files again, or move the one that is wrong out of the folder.",
        )
    built = reading.build()
    broken = [violation for violation in verify(built) if violation.needed]
    if broken:
        where = " and ".join(str(file.path) for file in reading.files)
        more = f"; and {len(broken) - _MOST_NAMED:,} more" if len(broken) > _MOST_NAMED else ""
        raise ConfigError(
            f"{where}: {'; '.join(violation.message for violation in broken[:_MOST_NAMED])}{more}",
            hint="The config is damaged or of another model; `artesian audit` lists every relation it breaks.",
        )
    return LoadedConfig(
        config=built,
        sources=tuple(file.path for file in reading.files),
        unknown=reading.unknown,
        differences=reading.differences,
    )


def verify(config: ModelConfig) -> tuple[Violation, ...]:
    """Every relation between the fields that does not hold, each with the fields and values that disagree.

    Empty for a sound config. A violation that is not `needed` differs from the release and can be run.
    """
    return check_relations(config)


def flat(config: ModelConfig) -> dict[str, Any]:
    """The config as the flat layout says it, ready for `json.dumps`; what only the nested layout says is left out."""
    result: dict[str, Any] = {}
    for spec in FIELDS:
        if spec.flat is None:
            continue
        value = getattr(config, spec.name)
        if isinstance(value, tuple):
            value = list(value)
        elif spec.whole and value.is_integer():
            value = int(value)
        result[spec.flat] = value
    return result
