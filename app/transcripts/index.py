"""The search index: an SQLite file with FTS5 in the cache folder. Everything in it can be made again from the files.

The one thing a reader would get wrong: it is never trusted. Before each search it is compared with the folder, and a
file that changed is read again; an index that is damaged, of another version or of another folder is thrown away; and
where there can be none, the caller reads the files.
"""

import contextlib
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.load import load_file
from app.transcripts.search import MOST_HITS, Hit, Term, snippet, terms_of, word_line

_VERSION = 1
_WAIT_S = 2.0
"""For another window that is writing it."""
_NOT_ITS_FAULT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
"""Failures that throwing the index away would not mend."""
_SCHEMA = """
    CREATE TABLE folder (path TEXT);
    CREATE TABLE files (
        name TEXT PRIMARY KEY, changed_ns INTEGER, size INTEGER, inode INTEGER, first_row INTEGER, end_row INTEGER
    );
    CREATE VIRTUAL TABLE messages USING fts5(
        words, transcript UNINDEXED, node UNINDEXED, role UNINDEXED, text UNINDEXED,
        tokenize = 'unicode61 remove_diacritics 0'
    );
"""


class IndexUnusable(Exception):  # noqa: N818 - named for what is wrong; it never leaves this package
    """There can be no index here: the files have to be read."""


def search(index: Path, folder: Path, paths: Mapping[str, Path], query: str, files: FileOps) -> list[Hit]:
    """Bring the index up to date with the files of a folder, by id, and ask it; the transcript changed last first.

    Raises: IndexUnusable.
    """
    terms = terms_of(query)
    if not terms:
        return []
    for is_last in (False, True):
        try:
            with contextlib.closing(_open(index, folder)) as connection:
                _update(connection, paths, files)
                return _ask(connection, terms)
        except sqlite3.Error as error:
            if is_last or getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_ITS_FAULT:
                raise IndexUnusable(str(error)) from error
            _remove(index)
        except (OSError, UnicodeEncodeError) as error:  # also a file name that is no text
            raise IndexUnusable(str(error)) from error
    raise AssertionError("unreachable")


def _open(index: Path, folder: Path) -> sqlite3.Connection:
    index.parent.mkdir(parents=True, exist_ok=True)
    connection = _connect(index)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == _VERSION and connection.execute("SELECT path FROM folder").fetchone() == (str(folder),):
            return connection
        connection.close()
        _remove(index)
        connection = _connect(index)
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION};")
        connection.execute("INSERT INTO folder VALUES (?)", (str(folder),))
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(index: Path) -> sqlite3.Connection:
    # Made before SQLite makes it: what people wrote is in there too.
    os.close(os.open(index, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(index, timeout=_WAIT_S, isolation_level=None)


def _remove(index: Path) -> None:
    for name in (index.name, f"{index.name}-journal", f"{index.name}-wal", f"{index.name}-shm"):
        index.with_name(name).unlink(missing_ok=True)


def _update(connection: sqlite3.Connection, paths: Mapping[str, Path], files: FileOps) -> None:
    known = {row[0]: row[1:] for row in connection.execute("SELECT * FROM files")}
    marks = dict(_marks(paths))
    gone = [name for name in known if name not in marks]
    changed = [name for name, mark in marks.items() if known.get(name, (None,) * 3)[:3] != mark]
    if not gone and not changed:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for name in [*gone, *(name for name in changed if name in known)]:
            first, end = known[name][3:]
            connection.execute("DELETE FROM messages WHERE rowid >= ? AND rowid < ?", (first, end))
            connection.execute("DELETE FROM files WHERE name = ?", (name,))
        for name in changed:
            (first,) = connection.execute("SELECT coalesce(max(rowid), 0) + 1 FROM messages").fetchone()
            rows = list(_rows(paths[name], files))
            connection.executemany(
                "INSERT INTO messages (rowid, words, transcript, node, role, text) VALUES (?, ?, ?, ?, ?, ?)",
                ((first + number, *row) for number, row in enumerate(rows)),
            )
            connection.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", (name, *marks[name], first, first + len(rows))
            )
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _marks(paths: Mapping[str, Path]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """What tells whether a file has changed. Taken before it is read: a later change is seen the next time."""
    for name, path in paths.items():
        with contextlib.suppress(OSError):
            status = path.stat()
            yield name, (status.st_mtime_ns, status.st_size, status.st_ino)


def _rows(path: Path, files: FileOps) -> Iterable[tuple[str, str, str, str, str]]:
    try:
        nodes = load_file(path, files).tree.nodes()
    except OSError:
        return []
    return [
        (word_line(node.text), path.stem, node.id, node.role, node.text.encode("utf-8", "replace").decode())
        for node in nodes
        if node.text
    ]


def _ask(connection: sqlite3.Connection, terms: Sequence[Term]) -> list[Hit]:
    wanted = " AND ".join(f'"{" ".join(term.words)}"{"*" if term.is_begin else ""}' for term in terms)
    rows = [row for (row,) in connection.execute("SELECT rowid FROM messages WHERE messages MATCH ?", (wanted,))]
    # Of which file each is, and so in what order, is known from its number: reading every match would take longer.
    spans = connection.execute("SELECT first_row, changed_ns, name FROM files ORDER BY first_row").fetchall()
    firsts = [span[0] for span in spans]

    def order(row: int) -> tuple[int, str, int]:
        _, changed_ns, name = spans[bisect_right(firsts, row) - 1]
        return -changed_ns, name, row

    hits = []
    for row in sorted(rows, key=order)[:MOST_HITS]:
        found = connection.execute("SELECT transcript, node, role, text FROM messages WHERE rowid = ?", (row,))
        transcript, node, role, text = found.fetchone()
        hits.append(Hit(transcript=transcript, node=node, role=role, snippet=snippet(text, terms)))
    return hits
