"""What a list shows of a transcript, without folding all of it into messages.

Our own lines always begin with their kind, so messages are counted, and the few lines that matter are found, without
parsing the others. A file that begins otherwise is read in full.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.lines import decode
from app.transcripts.load import load
from app.transcripts.records import TranscriptInfo
from app.transcripts.titles import title_of
from app.transcripts.tree import Tree

_MOST_BYTES = 1 << 26
"""Of a longer file the count, and a title given late, come from reading it in full."""
_HEADER = b'{"kind":"artesian-transcript",'
_USER = b'"role":"user"'
"""Inside a text the quotes would be escaped."""
_MOST_TRIED = 20


def glance(path: Path, files: FileOps) -> TranscriptInfo | None:
    """The facts of one file, or None when it cannot be read."""
    try:
        status = path.stat()
        fd = files.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = files.read(fd, _MOST_BYTES, 0) if status.st_size <= _MOST_BYTES else b""
        found = _without_parsing(data) if data.startswith(_HEADER) else None
        if found is None:
            tree = load(lambda n_bytes, offset: files.read(fd, n_bytes, offset)).tree
            found = tree.title or title_of(tree.nodes()), tree.created, len(tree)
    except OSError:
        return None
    finally:
        files.close(fd)
    title, created, n_messages = found
    return TranscriptInfo(
        id=path.stem,
        path=path,
        title=title,
        created=created,
        updated=datetime.fromtimestamp(status.st_mtime, UTC),
        n_messages=n_messages,
        size_bytes=status.st_size,
    )


def _without_parsing(data: bytes) -> tuple[str, datetime, int] | None:
    """Title, time and number of messages, or None when a line that matters is not as we write it."""
    tree, at = Tree(), 0
    try:
        tree.apply(decode(_line(data, 0)))
        for _ in range(_MOST_TRIED):
            at = data.find(_USER, at + 1)
            if at < 0 or title_of(tree.nodes()):
                break
            tree.apply(decode(_line(data, at)) | {"parent": None})
        titled = data.rfind(b'\n{"kind":"title",')
        if titled >= 0:
            tree.apply(decode(_line(data, titled + 1)))
    except ValueError:
        return None
    n_messages = sum(data.count(b'\n{"kind":"%s",' % kind) for kind in (b"message", b"reply"))
    return tree.title or title_of(tree.nodes()), tree.created, n_messages


def _line(data: bytes, at: int) -> bytes:
    """The line around an offset."""
    end = data.find(b"\n", at)
    return data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(data)]
