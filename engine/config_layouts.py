"""The two config layouts, key by key, and the reading of either from a file nobody vouches for.

Owns which key of which layout says which field. The one thing a reader would get wrong: `dtype` is a key of both
layouts and means the unquantised tensors in the nested file, the quantised ones in the flat file.
Source: the released `config.json` (nested) and `inference/config.json` (flat).
"""

import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from engine.errors import ConfigError

MAX_FILE_BYTES = 4 << 20
"""The released nested file has about 4 KB; a config a thousand times larger is not one."""

Layout = Literal["nested", "flat"]
Kind = Literal["int", "ints", "float", "float?", "int?", "str", "bool"]

_REQUIRED: Any = object()


class Silence(Enum):
    """What a file says of a field when it says nothing; `null` is a value, this is not."""

    SILENT = "silent"

    def __repr__(self) -> str:
        return "silent"


SILENT = Silence.SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the schema and where each layout says it."""

    name: str
    """Name in `ModelConfig`."""
    nested: tuple[str, ...]
    """Dotted paths in the nested file; more than one only where a key has two spellings."""
    flat: str | None
    """Key in the flat file, or None where that layout has no word for it."""
    kind: Kind
    low: float = 0
    high: float = 0
    """Inclusive limits of a number, or of every number of a list; beyond them the file is refused as absurd."""
    default: Any = _REQUIRED
    """Value when no file speaks; without one the field is needed."""
    whole: bool = False
    """A float the released files write without a fraction: `flat` writes it likewise."""
    read: bool = True
    """Whether anything is decided by it; files that disagree on a field nobody reads are reported, not refused."""

    @property
    def needed(self) -> bool:
        return self.default is _REQUIRED


def _text(
    name: str, nested: str | None, kind: Kind = "int", low: float = 1, high: float = 1 << 20, **more: Any
) -> Field:
    """A field of the language model, under `text_config` of the nested file and under its own name in the flat one."""
    path = (f"text_config.{nested or name}",)
    return Field(name=name, nested=path, flat=name, kind=kind, low=low, high=high, **more)


def _vision(name: str, nested: str, kind: Kind = "int", high: float = 1 << 20, **more: Any) -> Field:
    """A field of the image tower; all of them have defaults, because a text engine runs without any."""
    key = f"vision_{name}"
    default = more.pop("default", 0)
    return Field(
        name=key, nested=(f"vision_config.{nested}",), flat=key, kind=kind, low=0, high=high, default=default, **more
    )


def _nested_only(
    name: str, nested: tuple[str, ...], kind: Kind, default: Any, low: float = 0, high: float = 0
) -> Field:
    return Field(name=name, nested=nested, flat=None, kind=kind, low=low, high=high, default=default)


_TOKEN = 1 << 24
_LAYER = 1 << 12

FIELDS: tuple[Field, ...] = (
    _text("vocab_size", None, high=_TOKEN),
    _text("dim", "hidden_size"),
    _text("n_layers", "num_hidden_layers", high=_LAYER),
    _text("n_heads", "num_attention_heads", high=1 << 14),
    _text("head_dim", None, high=1 << 16),
    _text("rope_head_dim", "qk_rope_head_dim", high=1 << 16),
    _text("q_lora_rank", None),
    _text("o_groups", None, high=1 << 14),
    _text("o_lora_rank", None),
    _text("window_size", "sliding_window"),
    _text("moe_inter_dim", "moe_intermediate_size"),
    _text("n_routed_experts", None, high=1 << 16),
    _text("n_activated_experts", "num_experts_per_tok", high=1 << 16),
    _text("n_shared_experts", None, low=0, high=1 << 10),
    _text("score_func", "scoring_func", "str"),
    _text("route_scale", "routed_scaling_factor", "float", low=0, high=1e6),
    _text("swiglu_limit", None, "float", low=0, high=1e9),
    _text("norm_eps", "rms_norm_eps", "float", low=0, high=1),
    _text("compress_ratios", None, "ints", low=0, high=1 << 16),
    _text("kv_source_layers", "kv_source_layer_ids", "ints", low=0, high=_LAYER),
    _text("index_source_layers", "index_source_layer_ids", "ints", low=0, high=_LAYER),
    _text("index_n_heads", None, high=1 << 14),
    _text("index_head_dim", None, high=1 << 16),
    _text("index_topk", None),
    _text("candidate_source_layer", "candidate_source_layer_id", low=-1, high=_LAYER),
    _text("candidate_topk_blocks", None),
    _text("candidate_block_size", None),
    _text("rope_theta", None, "float", low=1, high=1e15, whole=True),
    _text("compress_rope_theta", None, "float", low=1.001, high=1e15, whole=True),
    _text("rope_factor", "rope_scaling.factor", "float", low=1e-6, high=1e9, whole=True),
    _text("beta_fast", "rope_scaling.beta_fast", "float", low=1e-6, high=1e9, whole=True),
    _text("beta_slow", "rope_scaling.beta_slow", "float", low=1e-6, high=1e9, whole=True),
    _text("original_seq_len", "rope_scaling.original_max_position_embeddings", high=1 << 40),
    _text("hc_mult", None, high=1 << 10),
    _text("hc_sinkhorn_iters", None, high=1 << 10),
    _text("hc_eps", None, "float", low=0, high=1),
    _text("engram_layer_ids", None, "ints", low=0, high=_LAYER),
    _text("engram_num_embeddings", None, "ints", low=1, high=1 << 40),
    _text("engram_max_ngram_size", None, low=2, high=16),
    _text("engram_vocab_size", None, low=2, high=1 << 36),
    _text("engram_n_heads", None, high=1 << 8),
    _text("engram_head_dim", None, high=1 << 16),
    # 0 is what a file says that has not counted; a relation refuses it, with the number the tokenizer gives.
    _text("engram_compressed_vocab_size", None, low=0, high=_TOKEN),
    Field(
        name="engram_pad_id",
        nested=("text_config.engram_pad_token_id",),
        flat="engram_pad_id",
        kind="int",
        low=0,
        high=_TOKEN,
    ),
    _text("n_mtp_layers", "num_nextn_predict_layers", low=0, high=1 << 8),
    _text("dspark_block_size", None, low=0, high=1 << 10),
    _text("dspark_noise_token_id", None, low=0, high=_TOKEN),
    _text("dspark_target_layer_ids", None, "ints", low=0, high=_LAYER),
    _text("dspark_markov_rank", None, low=0),
    _text("dspark_n_routed_experts", None, low=0, high=1 << 16),
    _text("dspark_n_activated_experts", "dspark_num_experts_per_tok", low=0, high=1 << 16),
    Field(
        name="image_token_id",
        nested=("image_token_id",),
        flat="image_token_id",
        kind="int",
        low=-1,
        high=_TOKEN,
        default=-1,
    ),
    _vision("n_layers", "num_hidden_layers", high=_LAYER),
    _vision("dim", "hidden_size"),
    _vision("n_heads", "num_attention_heads", high=1 << 14),
    _vision("inter_dim", "intermediate_size"),
    _vision("patch_size", "patch_size", high=1 << 12),
    _vision("downsample_ratio", "downsample_ratio", high=1 << 8),
    _vision("max_n_token", "max_image_tokens", high=1 << 24),
    _vision("min_pixels", "min_pixels", high=1 << 40),
    _vision("max_wh_ratio", "max_wh_ratio", "float?", high=1e9, default=None),
    _vision("rope_theta", "rope_theta", "float", high=1e15, default=10000.0, whole=True),
    Field(
        name="dtype",
        nested=("quantization_config.quant_method",),
        flat="dtype",
        kind="str",
        default="fp8",
        read=False,
    ),
    Field(
        name="expert_dtype",
        nested=("quantization_config.expert_dtype",),
        flat="expert_dtype",
        kind="str",
        default="fp4",
        read=False,
    ),
    _nested_only("bos_token_id", ("bos_token_id",), "int", 0, high=_TOKEN),
    _nested_only("eos_token_id", ("eos_token_id",), "int", 1, high=_TOKEN),
    _nested_only("pad_token_id", ("pad_token_id",), "int", 2, high=_TOKEN),
    _nested_only("plain_dtype", ("dtype",), "str", "bfloat16"),
    _nested_only("weight_block_size", ("quantization_config.weight_block_size",), "ints", (32, 32), 1, 1 << 16),
    _nested_only("scale_fmt", ("quantization_config.scale_fmt",), "str", "ue8m0"),
    _nested_only("topk_method", ("text_config.topk_method",), "str", "noaux_tc"),
    _nested_only("norm_topk_prob", ("text_config.norm_topk_prob",), "bool", True),
    _nested_only("hidden_act", ("text_config.hidden_act",), "str", "silu"),
    _nested_only("num_key_value_heads", ("text_config.num_key_value_heads",), "int", 1, 1, 1 << 14),
    _nested_only("tie_word_embeddings", ("text_config.tie_word_embeddings",), "bool", False),
    _nested_only("rope_type", ("text_config.rope_scaling.rope_type", "text_config.rope_scaling.type"), "str", "yarn"),
    _nested_only("max_position_embeddings", ("text_config.max_position_embeddings",), "int?", None, 1, 1 << 40),
)
"""Every field, in the order `flat` writes them."""

_SECTIONS = ("text_config", "text_config.rope_scaling", "vision_config", "quantization_config")
_LIST_LIMIT = _LAYER + (1 << 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What one file says, checked for type and range, and nothing of what it means."""

    path: Path
    layout: Layout
    values: Mapping[str, Any]
    """Field name to value, for the fields this file speaks of."""
    unknown: Mapping[str, object]
    """Dotted key to value, for every key the schema has no field for."""

    def key_of(self, name: str) -> str:
        """The dotted key under which this file's layout says a field; the field's own name if it has no word for it."""
        spec = next(spec for spec in FIELDS if spec.name == name)
        return _keys(spec, self.layout)[0] if _keys(spec, self.layout) else name


def read_file(path: Path) -> ConfigFile:
    """Read one config file in either layout.

    Raises: ConfigError for anything but a JSON object of one of the two layouts whose known keys have the right types
    and plausible values; the message names the file, the key and the value.
    """
    data = _parse(path)
    layout = _layout_of(path, data)
    leaves = _flatten(path, data) if layout == "nested" else dict(data)
    if layout == "nested" and "text_config" not in data:
        # A text-only export has the language model's keys at the top.
        leaves = {f"text_config.{key}" if _is_text_key(key) else key: value for key, value in leaves.items()}
    values: dict[str, Any] = {}
    for spec in FIELDS:
        for key in _keys(spec, layout):
            if key not in leaves:
                continue
            value = _checked(path, key, leaves.pop(key), spec)
            if values.setdefault(spec.name, value) != value:
                raise ConfigError(f"{path}: {key} is {value!r}, but another spelling of it says {values[spec.name]!r}")
    return ConfigFile(path=path, layout=layout, values=values, unknown=leaves)


def _keys(spec: Field, layout: Layout) -> tuple[str, ...]:
    if layout == "nested":
        return spec.nested
    return () if spec.flat is None else (spec.flat,)


def _is_text_key(key: str) -> bool:
    return any(f"text_config.{key}" in spec.nested for spec in FIELDS)


def _parse(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {status.st_size:,} bytes, a config has at most {MAX_FILE_BYTES:,}")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror} (errno {error.errno})") from error
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start:,}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be a config") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {_short(str(error))}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, a config is a JSON object")
    return data


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {_short(repr(key))} is given twice")
        result[key] = value
    return result


def _layout_of(path: Path, data: Mapping[str, Any]) -> Layout:
    if "text_config" in data or "hidden_size" in data:
        return "nested"
    if "dim" in data or "n_layers" in data:
        return "flat"
    raise ConfigError(
        f"{path}: neither layout of a DeepSeek-V4.1 config: no `text_config`, no `dim`",
        hint="The released folder has config.json (nested) and inference/config.json (flat); either is enough.",
    )


def _flatten(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted leaves; only the sections of the layout are opened, so an unknown object stays one unknown value."""
    leaves: dict[str, Any] = {}
    sections = {*_SECTIONS, "rope_scaling"}

    def walk(prefix: str, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if name not in sections:
                leaves[name] = value
            elif isinstance(value, dict):
                walk(f"{name}.", value)
            elif value is not None:
                raise ConfigError(f"{path}: {name} is {_short(repr(value))}, expected an object")

    walk("", data)
    return leaves


def _checked(path: Path, key: str, value: object, spec: Field) -> Any:
    """The value in the type of its field.

    A bool is not an int here, whatever Python says; a whole number is a valid float, and 32.0 is not a valid int.
    """

    def refuse(expected: str) -> ConfigError:
        return ConfigError(f"{path}: {key} is {_short(repr(value))}, expected {expected}")

    match spec.kind:
        case "str":
            if not isinstance(value, str):
                raise refuse("a string")
            return value
        case "bool":
            if not isinstance(value, bool):
                raise refuse("true or false")
            return value
        case "ints":
            if not isinstance(value, list):
                raise refuse("a list of whole numbers")
            if len(value) > _LIST_LIMIT:
                raise ConfigError(f"{path}: {key} has {len(value):,} entries, at most {_LIST_LIMIT:,} are plausible")
            if not all(_is_int(item) and spec.low <= item <= spec.high for item in value):
                raise refuse(f"whole numbers from {spec.low:,} to {spec.high:,}")
            return tuple(value)
        case "int" | "int?":
            if value is None and spec.kind == "int?":
                return None
            if not _is_int(value) or not spec.low <= value <= spec.high:  # type: ignore[operator]
                raise refuse(f"a whole number from {spec.low:,} to {spec.high:,}")
            return value
        case "float" | "float?":
            if value is None and spec.kind == "float?":
                return None
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise refuse("a number")
            if not spec.low <= value <= spec.high or not math.isfinite(value):
                raise refuse(f"a number from {spec.low:g} to {spec.high:g}")
            return float(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
