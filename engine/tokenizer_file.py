"""Reads a checkpoint's `tokenizer.json` as a file that may be wrong.

The one thing a reader would get wrong: a prompt needs two tokenizers over the same file. `full()` knows the added
tokens; `plain()` has them emptied, so that no text can ever become one.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import TokenizerError
from engine.small_files import read_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_BYTES = 256 * 1024 * 1024
"""The released file has 6.4 MB; far above that, it is not a tokenizer."""

MAX_TOKEN_ID = (1 << 24) - 1
"""Higher ids are refused before a table is made by them; the release has 129,280 tokens."""

_FETCH_HINT = "Fetch tokenizer.json of this checkpoint again."


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A parsed byte-level BPE `tokenizer.json`."""

    path: Path
    """Where it was read, for messages."""
    sha256: str
    """Hex digest of the file's bytes."""
    content: dict[str, Any]
    """The parsed JSON object; not to be changed."""

    def full(self) -> "Tokenizer":
        """The tokenizer with its added tokens. Raises: TokenizerError if the library refuses the file."""
        return self._build(self.content)

    def plain(self) -> "Tokenizer":
        """The tokenizer without added tokens: what it encodes is never a control token. Raises: TokenizerError."""
        return self._build({**self.content, "added_tokens": []})

    def _build(self, content: dict[str, Any]) -> "Tokenizer":
        # Deferred: the library costs 40 ms to import, and a cached token map needs nothing of it.
        from tokenizers import Tokenizer

        # Truncation and padding saved in a file would silently cut or fill prompts.
        text = json.dumps({**content, "truncation": None, "padding": None})
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise TokenizerError(f"{self.path}: not a usable tokenizer: {error}", hint=_FETCH_HINT) from error


def read_tokenizer_file(path: Path) -> TokenizerFile:
    """Read and check `tokenizer.json`.

    Raises: TokenizerError if it is missing, unreadable, oversized, not JSON, or not a byte-level BPE.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except FileNotFoundError as error:
        raise TokenizerError(
            f"{path}: there is no tokenizer", hint="The model's folder needs the released tokenizer.json."
        ) from error
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}", hint=_FETCH_HINT) from error
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON: {error}", hint=_FETCH_HINT) from error
    _check_kind(path, content)
    return TokenizerFile(path=path, sha256=hashlib.sha256(data).hexdigest(), content=content)


def _check_kind(path: Path, content: Any) -> None:
    """Everything downstream (bytes of a token, plain encoding) holds for a byte-level BPE only."""
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: the top level is not a JSON object", hint=_FETCH_HINT)
    for part, wanted in (("model", "BPE"), ("decoder", "ByteLevel")):
        value = content.get(part)
        kind = value.get("type") if isinstance(value, dict) else None
        if kind != wanted:
            raise TokenizerError(f"{path}: {part} type is {kind!r}, {wanted!r} is needed", hint=_FETCH_HINT)
    vocabulary = content["model"].get("vocab")
    if not isinstance(vocabulary, dict) or not all(_is_id(token) for token in vocabulary.values()):
        raise TokenizerError(
            f"{path}: the model's vocab is not a table of ids up to {MAX_TOKEN_ID:,}", hint=_FETCH_HINT
        )
    added = content.get("added_tokens")
    well_formed = isinstance(added, list) and all(
        isinstance(token, dict) and isinstance(token.get("content"), str) and _is_id(token.get("id")) for token in added
    )
    if not well_formed:
        raise TokenizerError(f"{path}: added_tokens is not a list of {{id, content}} entries", hint=_FETCH_HINT)


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKEN_ID
