"""The compressed token map: token id -> class, so that tokens which look alike share one.

The one thing a reader would get wrong: the classes are numbered in the order of the token ids and the numbers are
hashed, so one key folded differently shifts everything behind it. The count is checked, and a wrong one refused.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.errors import TokenizerError
from engine.tokenizer_file import TokenizerFile, read_tokenizer_file

# Unicode White_Space; Python's own strip() would take U+001C to U+001F too, which are not in it.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_BLANKS = re.compile(r"[ \t\r\n]+")
_CACHE_FORMAT = "artesian token map 1"


def fold(text: str) -> str:
    """The folded form of a token's text; equal forms share a class. Source: section 6.1, `fold`."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    # Character by character: lower() of a whole word would make a final capital sigma the final small one.
    text = "".join(char.lower() for char in text if not unicodedata.category(char).startswith("M"))
    text = _BLANKS.sub(" ", text)
    return " " if text == " " else text.strip(_WHITE_SPACE)


def compressed_map(tokenizer_json: Path, *, n_classes: int, cache: Path | None = None) -> npt.NDArray[np.int64]:
    """Class of every token id of the tokenizer, added tokens included.

    With `cache` the map is read from that file when it was made from this very tokenizer, for this count, with the
    same Unicode tables, and is whole; else it is built and written there. A cache that cannot be read or written is
    no failure.

    Shapes: result [tokenizer size].
    Raises: TokenizerError if the tokenizer is unusable, or gives another number of classes than `n_classes`
        (`engram_compressed_vocab_size`): every hash would then read valid but wrong rows.
    """
    file = read_tokenizer_file(tokenizer_json)
    head = {
        "format": _CACHE_FORMAT,
        "tokenizer_sha256": file.sha256,
        "n_classes": n_classes,
        "unicode": unicodedata.unidata_version,
    }
    if cache is not None and (known := _read_cache(cache, head)) is not None:
        return known
    classes = _build(file)
    found = int(classes.max()) + 1 if len(classes) else 0
    if found != n_classes:
        raise TokenizerError(
            f"{tokenizer_json}: its tokens fold into {found:,} classes, the config says {n_classes:,}"
            " (engram_compressed_vocab_size)",
            hint="This tokenizer does not belong to this checkpoint; fetch both from the same release.",
        )
    if cache is not None:
        _write_cache(cache, head, classes)
    return classes


def _build(file: TokenizerFile) -> npt.NDArray[np.int64]:
    tokenizer = file.full()
    n_tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    texts = tokenizer.decode_batch([[token] for token in range(n_tokens)], skip_special_tokens=False)
    numbers: dict[str, int] = {}
    classes = np.empty(n_tokens, dtype=np.int64)
    for token, text in enumerate(texts):
        spelling = tokenizer.id_to_token(token)
        if spelling is None:
            raise TokenizerError(f"{file.path}: {n_tokens:,} tokens, but none has id {token}: the ids have a gap")
        # U+FFFD: the token is a fragment of a character and has no text to fold.
        key = spelling if "\ufffd" in text else fold(text) or text
        classes[token] = numbers.setdefault(key, len(numbers))
    return classes


def _read_cache(path: Path, head: dict[str, object]) -> npt.NDArray[np.int64] | None:
    """The cached map, or None if it is absent, of another tokenizer, or damaged."""
    try:
        first, _, payload = path.read_bytes().partition(b"\n")
        found = json.loads(first)
    except (OSError, ValueError, RecursionError):
        return None
    if found != {**head, "payload_sha256": hashlib.sha256(payload).hexdigest()} or len(payload) % 4:
        return None
    return np.frombuffer(payload, dtype="<i4").astype(np.int64)


def _write_cache(path: Path, head: dict[str, object], classes: npt.NDArray[np.int64]) -> None:
    """Write beside and rename, so that a reader sees the old file or the new one, never half of one."""
    payload = classes.astype("<i4").tobytes()
    line = json.dumps({**head, "payload_sha256": hashlib.sha256(payload).hexdigest()}).encode() + b"\n"
    # A full or read-only disk costs the next start half a second, nothing more.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(line + payload)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
