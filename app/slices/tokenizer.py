"""The demo's tokenizer, filled up to a slice's vocabulary with tokens that no text is ever cut into.

A slice answers with random tokens, so each of its ids needs a text, and a class of its own for the engram hash.
"""

import copy
import json
from pathlib import Path
from typing import Any

from engine.config import load_config
from engine.errors import TokenizerError


def filled_tokenizer(demo: Path, vocab_size: int) -> tuple[dict[str, Any], int]:
    """The content of a `tokenizer.json` with `vocab_size` ids, and how many classes its tokens fold into.

    `demo` is the folder of the demo checkpoint; its config says the classes of its own tokens.
    Raises: TokenizerError when it has more tokens than `vocab_size`.
    """
    content: dict[str, Any] = copy.deepcopy(json.loads((demo / "tokenizer.json").read_text("utf-8")))
    known = load_config(demo).config
    vocab: dict[str, int] = content["model"]["vocab"]
    # An added token without an entry in the vocabulary gets its id by the vocabulary's size, which is about to grow.
    vocab.update({token["content"]: token["id"] for token in content["added_tokens"]})
    n_fillers = vocab_size - known.vocab_size
    if n_fillers < 0 or len(vocab) != known.vocab_size:
        raise TokenizerError(f"{demo}: {len(vocab):,} tokens cannot be filled up to {vocab_size:,}")
    # Not reachable by merges, so encoding never gives one; "\u0120" is the blank of byte-level vocabularies.
    vocab.update({f"\u0120token{number:06d}": number for number in range(known.vocab_size, vocab_size)})
    return content, known.engram_compressed_vocab_size + n_fillers
