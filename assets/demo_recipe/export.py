"""A trained model as a checkpoint folder in the released format.

Owns which parameter is which tensor and how it is stored. The one thing a reader would get wrong: `round_in_place`
gives parameters the very values that these files hold, so what is checked after it is what ships.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from assets.demo_recipe.block import Block, Engram
from assets.demo_recipe.draft import Draft
from assets.demo_recipe.geometry import Geometry, write_configs
from assets.demo_recipe.rounding import ROUND, Form, pack_fp4, pack_fp8, pack_row8
from assets.demo_recipe.tokenizer import BOS, EOS, PAD
from assets.demo_recipe.trunk import Trunk

Stored = Mapping[str, tuple[str, Form]]
"""Parameter -> name below the module's prefix, and how it is stored."""

BLOCK: Stored = {
    "attn_norm": ("attn_norm.weight", "bf16"),
    "ffn_norm": ("ffn_norm.weight", "bf16"),
    "wq_a": ("attn.wq_a", "fp8"),
    "q_norm": ("attn.q_norm.weight", "bf16"),
    "wq_b": ("attn.wq_b", "fp8"),
    "wkv": ("attn.wkv", "fp8"),
    "kv_norm": ("attn.kv_norm.weight", "bf16"),
    "wo_a": ("attn.wo_a", "fp8"),
    "wo_b": ("attn.wo_b", "fp8"),
    "attn_sink": ("attn.attn_sink", "f32"),
    "c_wkv": ("attn.compressor.wkv.weight", "bf16"),
    "c_wgate": ("attn.compressor.wgate.weight", "bf16"),
    "c_norm": ("attn.compressor.norm.weight", "bf16"),
    "i_wq_b": ("attn.indexer.wq_b", "fp8"),
    "i_weights": ("attn.indexer.weights_proj.weight", "bf16"),
    "i_wk": ("attn.indexer.wk.weight", "bf16"),
    "i_norm": ("attn.indexer.k_norm.weight", "bf16"),
    "gate": ("ffn.gate.weight", "bf16"),
    "w1": ("ffn.experts.{}.w1", "fp4"),
    "w2": ("ffn.experts.{}.w2", "fp4"),
    "w3": ("ffn.experts.{}.w3", "fp4"),
    "s1": ("ffn.shared_experts.w1", "fp8"),
    "s2": ("ffn.shared_experts.w2", "fp8"),
    "s3": ("ffn.shared_experts.w3", "fp8"),
    **{
        f"hc_{half}_{part}": (f"hc_{half}_{part}", "f32")
        for half in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
}
ENGRAM: Stored = {
    "table": ("embed", "row8"),
    "wkv": ("wkv", "fp8"),
    "q_weight": ("q_weight", "bf16"),
    "k_weight": ("k_weight", "bf16"),
}
TRUNK: Stored = {
    "embed": ("embed.weight", "bf16"),
    "head": ("head.weight", "bf16"),
    "norm": ("norm.weight", "bf16"),
}
DRAFT: Stored = {
    "main_proj": ("mtp.0.main_proj", "fp8"),
    "main_norm": ("mtp.0.main_norm.weight", "bf16"),
    "norm": ("mtp.{}.norm.weight", "bf16"),
    "markov_embed": ("mtp.{}.markov_head.embed.weight", "bf16"),
    "markov_head": ("mtp.{}.markov_head.head.weight", "bf16"),
    "confidence": ("mtp.{}.confidence_head.proj.weight", "bf16"),
}
"""`{}` is the last stage."""


def _modules(model: Trunk | Draft) -> list[tuple[nn.Module, Stored]]:
    own: list[tuple[nn.Module, Stored]] = [(model, TRUNK if isinstance(model, Trunk) else DRAFT)]
    own += [(block, BLOCK) for block in model.blocks()]
    if isinstance(model, Trunk):
        own += [(engram, ENGRAM) for engram in model.engrams.values()]
    return own


@torch.no_grad()
def round_in_place(model: Trunk | Draft) -> None:
    """Give every parameter the value that its storage gives back."""
    for module, table in _modules(model):
        for name, parameter in module.named_parameters(recurse=False):
            parameter.copy_(ROUND[table[name][1]](parameter))


def _put(shard: dict[str, Tensor], name: str, w: Tensor, form: Form) -> None:
    match form:
        case "bf16":
            shard[name] = w.to(torch.bfloat16)
        case "f32":
            shard[name] = w.clone()
        case "fp4":
            for expert, matrix in enumerate(w):
                stem = name.format(expert)
                shard[f"{stem}.weight"], shard[f"{stem}.scale"] = pack_fp4(matrix)
        case _:
            pack = pack_fp8 if form == "fp8" else pack_row8
            shard[f"{name}.weight"], shard[f"{name}.scale"] = pack(w)


def _shard(module: nn.Module, table: Stored, prefix: str) -> dict[str, Tensor]:
    shard: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters(recurse=False):
        theirs, form = table[name]
        _put(shard, prefix + theirs, parameter.detach(), form)
    if isinstance(module, Block):
        shard[f"{prefix}ffn.gate.bias"] = module.gate_bias.clone()
        shard[f"{prefix}ffn.gate.bias_vl"] = module.gate_bias.clone()
    return shard


def _tower(geometry: Geometry) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Filler for the image tower, which a text engine skips: its own shard, and three rows beside the embedding."""
    drawing = torch.Generator().manual_seed(1)

    def filler(*shape: int) -> Tensor:
        return (0.02 * torch.randn(*shape, generator=drawing)).to(torch.bfloat16)

    d, dv, inner = geometry["dim"], geometry["vision_dim"], geometry["vision_inter_dim"]
    tower = {
        "vision.patch_embed.weight": filler(dv, 3 * geometry["vision_patch_size"] ** 2),
        "vision.norm.weight": filler(dv) + 1,
        "vision.blocks.0.attn.wqkv.weight": filler(3 * dv, dv),
        "vision.blocks.0.mlp.w1.weight": filler(inner, dv),
        "aligner.w1.weight": filler(d, dv * geometry["vision_downsample_ratio"] ** 2),
        "aligner.w1.bias": filler(d),
    }
    return tower, {name: filler(d) for name in ("image_start", "image_newline", "image_end")}


def shards(trunk: Trunk, draft: Draft, geometry: Geometry) -> list[dict[str, Tensor]]:
    """All tensors, shard by shard, in the release's order: tower, embedding, layers, head, stages, engrams."""
    tower, first = _tower(geometry)
    last: dict[str, Tensor] = {}
    for name, parameter in trunk.named_parameters(recurse=False):
        theirs, form = TRUNK[name]
        _put(first if name == "embed" else last, theirs, parameter.detach(), form)
    stages = [_shard(block, BLOCK, f"mtp.{i}.") for i, block in enumerate(draft.blocks())]
    for name, parameter in draft.named_parameters(recurse=False):
        theirs, form = DRAFT[name]
        stage = len(stages) - 1 if "{}" in theirs else 0
        _put(stages[stage], theirs.format(stage), parameter.detach(), form)
    engrams = []
    for i, engram in trunk.engrams.items():
        assert isinstance(engram, Engram)
        engrams.append(_shard(engram, ENGRAM, f"layers.{i}.engram."))
    layers = [_shard(block, BLOCK, f"layers.{i}.") for i, block in enumerate(trunk.blocks())]
    return [tower, first, *layers, last, *stages, *engrams]


def export(folder: Path, trunk: Trunk, draft: Draft, geometry: Geometry, tokenizer_json: str) -> int:
    """Write the checkpoint, in the place of what is there once it is whole; the bytes of its files."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    write_configs(fresh, geometry)
    (fresh / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    _write_json(fresh / "tokenizer_config.json", {
        **{"add_bos_token": False, "add_eos_token": False, "bos_token": BOS, "eos_token": EOS, "pad_token": PAD},
        **{"clean_up_tokenization_spaces": False, "model_max_length": 1024},
        "tokenizer_class": "PreTrainedTokenizerFast",
    })  # fmt: skip
    _write_json(fresh / "generation_config.json", {
        **{"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1, "do_sample": False},
    })  # fmt: skip
    files, total = shards(trunk, draft, geometry), 0
    places: dict[str, str] = {}
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(tensors, str(fresh / name), metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    _write_json(fresh / "model.safetensors.index.json", index)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
