"""What a list shows of a transcript, without reading it whole into messages.

Lines are looked at only if they begin like one that matters; our own files always write the kind first. Of a file
written otherwise the title and the count are those of its messages, read in full.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.load import load
from app.transcripts.records import TranscriptInfo
from app.transcripts.titles import title_of


def glance(path: Path, files: FileOps) -> TranscriptInfo | None:
    """The facts of one file, or None when it cannot be read."""
    try:
        status = path.stat()
        fd = files.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        tree = load(lambda n_bytes, offset: files.read(fd, n_bytes, offset)).tree
    except OSError:
        return None
    finally:
        files.close(fd)
    return TranscriptInfo(
        id=path.stem,
        path=path,
        title=tree.title or title_of(tree.nodes()),
        created=tree.created,
        updated=datetime.fromtimestamp(status.st_mtime, UTC),
        n_messages=len(tree),
        size_bytes=status.st_size,
    )
