"""The demo's tokenizer: the release's pipeline with merges learned from our own text.

The one thing a reader would get wrong: control tokens lie behind the learned vocabulary, as in the release, and the
first three lie before it; plain text never becomes one of them.
"""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from assets.demo_recipe.errors import RecipeError
from assets.demo_recipe.geometry import N_SPECIAL_TAIL
from engine.hashing import fold

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
FIRST = (BOS, EOS, PAD)
"""Ids 0 to 2."""

USER, ASSISTANT, SYSTEM = "<｜User｜>", "<｜Assistant｜>", "<｜System｜>"
THINK, END_THINK = "<think>", "</think>"
_LAST = (
    "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", USER, ASSISTANT, "<|EOT|>", THINK, END_THINK, "｜DSML｜",
    SYSTEM, "<｜latest_reminder｜>", "<｜end_of_query｜>", "<｜deepseek_image｜>",
)  # fmt: skip
"""The last ids, in the release's order; the image token is the very last."""
_PLACE_HOLDERS = tuple(f"<｜place▁holder▁no▁{i}｜>" for i in range(N_SPECIAL_TAIL - len(_LAST)))
NOISE = _PLACE_HOLDERS[-1]
"""Stands in the draft head's block for what is not known yet."""

_SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
"""How the release cuts text before merging."""


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(**more: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "trim_offsets": True, **more}


def _added(token: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": token, "content": text, **flags}


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """`tokenizer.json` with `vocab_size` tokens in all, its merges learned from `texts`.

    Raises: RecipeError when the texts hold too little for so many tokens.
    """
    base = vocab_size - N_SPECIAL_TAIL
    shell = json.loads(Tokenizer(models.BPE()).to_str())
    before = [_split(pattern) for pattern in _SPLITS]
    cut = {
        "type": "Sequence",
        "pretokenizers": [*before, _byte_level(add_prefix_space=False, use_regex=False)],
    }
    shell["pre_tokenizer"] = cut
    learner = Tokenizer.from_str(json.dumps(shell))
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=base, special_tokens=list(FIRST), show_progress=False, initial_alphabet=alphabet
    )
    learner.train_from_iterator(texts, trainer)
    content = json.loads(learner.to_str())
    if (found := len(content["model"]["vocab"])) != base:
        raise RecipeError(f"the texts give {found:,} tokens, {base:,} are wanted")
    behind = (*_PLACE_HOLDERS, *_LAST)
    content["added_tokens"] = [_added(i, text, special=True) for i, text in enumerate(FIRST)] + [
        _added(base + i, text, special=text in _PLACE_HOLDERS or text == "<｜end_of_query｜>")
        for i, text in enumerate(behind)
    ]
    content["normalizer"] = {"type": "Sequence", "normalizers": []}
    content["post_processor"] = {**_byte_level(add_prefix_space=True, use_regex=True), "trim_offsets": False}
    content["decoder"] = _byte_level(add_prefix_space=True, use_regex=True)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def token_classes(tokenizer: Tokenizer) -> list[int]:
    """The engram's class of every token, by the engine's folding; a test compares it with the engine's own."""
    numbers: dict[str, int] = {}
    classes = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = str(tokenizer.id_to_token(token)) if "\ufffd" in text else fold(text) or text
        classes.append(numbers.setdefault(key, len(numbers)))
    return classes
