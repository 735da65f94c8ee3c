"""Everything Artesian keeps on disk: what it is, where, and how much. Finds out, and removes nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app import paths

MOST_FILES = 100_000
"""Counted in one place; a larger folder is said to hold at least this."""

_WORDS: Mapping[str, str] = {
    "settings.toml": "settings",
    "transcripts": "conversations",
    "drafts": "what stood in the box",
    "input-history.jsonl": "what was entered before",
    "clipboard.txt": "what was copied last, where the terminal could not take it",
    "usage": "which experts your prompts use; can be made again",
    "token-map": "how tokens are folded; can be made again",
    "rates.json": "measured rates of this machine; can be made again",
    "last-runs.json": "what was predicted of the last turns, and what happened",
    "transcripts.sqlite": "the index for searching; can be made again",
}
"""By the name in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A file or folder of ours."""

    path: Path
    what: str
    """In words; "not known to this version" for what another one wrote."""
    n_files: int
    n_bytes: int


def ours() -> list[Kept]:
    """All there is, by place. Model folders and mirrors are the user's own and not in it."""
    roots = {paths.settings_file().parent, paths.data_dir(), paths.cache_dir(), paths.log_file().parent}
    found = []
    for root in sorted(roots):
        try:
            entries = sorted(root.iterdir())
        except OSError:
            continue  # not there, or not ours to read
        found += [_kept(path) for path in entries if path not in roots]
    return found


def _kept(path: Path) -> Kept:
    name = path.name
    what = _WORDS.get(name) or next((said for known, said in _WORDS.items() if name.startswith(f"{known}-")), "")
    if not what and name.startswith(paths.log_file().name):
        what = "log"
    n_files, n_bytes = _measure(path)
    return Kept(path=path, what=what or "not known to this version", n_files=n_files, n_bytes=n_bytes)


def _measure(path: Path) -> tuple[int, int]:
    if path.is_symlink() or not path.is_dir():
        return 1, _size(path)
    n_files = n_bytes = 0
    for folder, _, names in os.walk(path):  # does not follow links
        for name in names:
            n_files += 1
            n_bytes += _size(Path(folder) / name)
            if n_files >= MOST_FILES:
                return n_files, n_bytes
    return n_files, n_bytes


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # gone meanwhile
