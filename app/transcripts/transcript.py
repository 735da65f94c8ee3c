"""One conversation: its messages, where it goes on, and the file that both are in.

What a call has returned from without `problem` being set is on the drive, except what `ReplyWriter` still gathers and
which branch was looked at last. The one thing a reader would get wrong: trouble with the drive never raises here. The
chat goes on in memory, `problem` says so, and every later write tries to save all of it. Safe to use from several
threads.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from app.errors import TranscriptError
from app.report import artesian_version
from app.transcripts.files import FileOps
from app.transcripts.holder import holder_of
from app.transcripts.journal import Journal
from app.transcripts.lines import Damage, encode
from app.transcripts.load import Loaded, load
from app.transcripts.records import Node, Role, Run
from app.transcripts.titles import title_of
from app.transcripts.tree import FORMAT, Growing, Tree

SUFFIX = ".jsonl"


def utc_now() -> datetime:
    """The time, to the millisecond that is written."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def state_file(path: Path) -> Path:
    """Where the engine's state of the conversation in the file `path` is saved."""
    return path.with_suffix(".state")


class Transcript:
    """An open conversation.

    Attributes:
        lock: Held by whoever changes the messages.
        read_only: Why nothing can be added, as a sentence, or "": another window has it, or a newer version wrote it.
        damage: Lines of the file that could not be used.
    """

    def __init__(
        self,
        path: Path,
        files: FileOps,
        *,
        exists: bool,
        to_read: bool = False,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open the file at `path`, or name the one to be made with the first message.

        With `to_read` others may have it for writing meanwhile. Raises: OSError.
        """
        self.lock = threading.RLock()
        self._files = files
        self._now = now
        self._torn_line: int | None = None
        self._size_seen = -1
        self._newest_seen: str | None = None
        created = now()
        header = {"kind": "artesian-transcript", "format": FORMAT, "created": created.isoformat()}
        first_line = encode(header | {"version": artesian_version()})
        self.read_only = ""
        self.damage: tuple[Damage, ...] = ()
        if exists:
            self._journal = Journal.open(path, files, first_line=first_line, to_read=to_read)
            self._size_seen = self._journal.size()
            self._tree = self._take(load(self._journal.read))
            self._newest_seen = self._tree.head
            if to_read:
                self.read_only = self.read_only or "It was opened only to be read."
        else:
            self._journal = Journal(path, files, first_line=first_line)
            self._tree = Tree()
            self._tree.created = created

    def _take(self, loaded: Loaded) -> Tree:
        self.damage = loaded.damage
        if self._journal.held_elsewhere:
            self.read_only = f"{holder_of(self._journal.path)} has this conversation open; here it can only be read."
            return loaded.tree
        if loaded.tree.format > FORMAT:
            self.read_only = "A newer version of Artesian wrote this conversation; here it can only be read."
        elif loaded.too_long:
            self.read_only = "This conversation is too long to be read whole; it cannot be added to."
        elif loaded.torn_bytes:
            self._journal.break_torn_line()
            self._torn_line = loaded.n_lines
        loaded.tree.close_growing("cut")
        return loaded.tree

    @property
    def id(self) -> str:
        """What names it among the transcripts."""
        return self._journal.path.stem

    @property
    def path_on_disk(self) -> Path:
        """Its file; there once there was something to save."""
        return self._journal.path

    @property
    def state_path(self) -> Path:
        """The file beside it for the engine's state of this conversation, which can be made again at any time."""
        return state_file(self._journal.path)

    @property
    def title(self) -> str:
        """As given, else the first line the user wrote; "" while it is empty. Not yet safe for a terminal."""
        with self.lock:
            return self._tree.title or title_of(self._tree.nodes())

    @property
    def created(self) -> datetime:
        """When it began."""
        return self._tree.created

    @property
    def head(self) -> Node | None:
        """The message the conversation goes on from; None while there is none."""
        with self.lock:
            return None if self._tree.head is None else self._tree.node(self._tree.head)

    @property
    def problem(self) -> str | None:
        """Why the newest part is not on the drive, as a sentence; None when all is well."""
        reason = self.problem_reason
        return None if reason is None else f"Not saved: {reason}. It is tried again with the next line."

    @property
    def problem_reason(self) -> str | None:
        """The file and what the system said of it, for a `problem` that is not tried again; None when all is well."""
        error = self._journal.problem
        return None if error is None else f"{self._journal.path}: {error.strerror or error}"

    @property
    def n_unsaved(self) -> int:
        """Records that are not known to be on the drive."""
        with self.lock:
            return self._journal.n_unsaved

    @property
    def held_elsewhere(self) -> bool:
        """Whether another window has it open."""
        return self._journal.held_elsewhere

    @property
    def has_locks(self) -> bool:
        """Whether the file system can keep two windows from writing this file at once."""
        return self._journal.has_locks

    @property
    def closed(self) -> bool:
        """Whether its file was given back; what is written afterwards stays in memory."""
        return self._journal.closed

    def node(self, node_id: str) -> Node:
        """A message. Raises: KeyError."""
        with self.lock:
            return self._tree.node(node_id)

    def nodes(self) -> list[Node]:
        """Every message, all branches, in the order of the file."""
        with self.lock:
            return list(self._tree.nodes())

    def path(self, to: Node | str | None = None) -> list[Node]:
        """The messages from the first to the given one, or to the head."""
        with self.lock:
            return self._tree.path(to.id if isinstance(to, Node) else to)

    def siblings(self, node: Node | str) -> list[Node]:
        """The messages that stand in this one's place, itself included, oldest first."""
        with self.lock:
            return self._tree.siblings(_id(node))

    def children(self, node: Node | str | None) -> list[Node]:
        """The messages that follow one, or with None the first ones; oldest first."""
        with self.lock:
            return self._tree.children(None if node is None else _id(node))

    def select(self, node: Node | str) -> Node:
        """Go on from the branch through this message, where it was looked at last; the new head.

        A window that can only read moves its own view.
        """
        with self.lock:
            head = self._tree.leaf_below(_id(node))
            if head != self._tree.head:
                self._tree.set_head(head)
                if not self.read_only:
                    self.note({"kind": "head", "id": head})
            found = self._tree.node(head)
        self.flush(sync=False)  # keys wait for it, and little is lost with it
        return found

    def rename(self, title: str) -> None:
        """Give it a title; "" goes back to the first line. Raises: TranscriptError when it can only be read."""
        self.require_writable()
        with self.lock:
            self._tree.title = title
            self.note({"kind": "title", "title": title})
        self.flush()

    def add(self, role: Role, text: str, parent: str | None) -> Node:
        """A message of the user or the system, on the drive when this returns without a `problem`.

        Raises: TranscriptError when it can only be read; KeyError when there is no such parent.
        """
        self.require_writable()
        with self.lock:
            if parent is not None:
                self._tree.node(parent)
            node = Node(id=self._tree.fresh_id(), parent=parent, role=role, text=text, created=self._now())
            self._tree.add(node)
            record = {"kind": "message", "id": node.id, "parent": parent, "role": role}
            self.note({**record, "created": node.created.isoformat(), "text": text})
        self.flush()
        return node

    def refresh(self) -> bool:
        """Read again what another window may have added to a conversation that can only be read; whether it did."""
        with self.lock:
            size = self._journal.size()
            if not self._journal.held_elsewhere or size == self._size_seen:
                return False
            self._size_seen = size
            head = self._tree.head
            follows = head is None or head == self._newest_seen
            loaded = load(self._journal.read)
            self.damage, self._tree = loaded.damage, loaded.tree
            self._newest_seen = self._tree.head
            if not follows and head in self._tree:
                self._tree.set_head(head)
            return True

    def close(self) -> None:
        """Save what is left and let others have it. Safe to call twice."""
        with self.lock:
            self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def require_writable(self) -> None:
        """Raises: TranscriptError when it can only be read."""
        if self.read_only:
            raise TranscriptError(
                self.read_only, hint=f"Close it there, or go on in a copy: artesian transcripts copy {self.id}"
            )

    def note(self, *records: dict[str, Any]) -> None:
        """Have records stand behind those before, for who holds the lock: the file's order is that of the changes."""
        lines = [encode(record) for record in records]
        if self._torn_line is not None:
            lines.insert(0, encode({"kind": "torn", "line": self._torn_line}))
            self._torn_line = None
        self._journal.note(lines)

    def flush(self, *, sync: bool = True) -> bool:
        """Write what is not saved yet; with `sync`, whether all is on the drive.

        Not under the lock: a drive may take its time, and the screen shows messages meanwhile.
        """
        return self._journal.held_elsewhere or self._journal.flush(sync=sync)

    def growing(self, node_id: str) -> Growing:
        """A message, for the writer of replies to change. Raises: KeyError."""
        return self._tree.growing(node_id)

    def add_reply(self, parent: str, run: Run, record: dict[str, Any]) -> Node:
        """An empty reply, for the writer of replies, which flushes; `record` is the run as it stands in the file."""
        with self.lock:
            self._tree.node(parent)
            node = Node(
                id=self._tree.fresh_id(),
                parent=parent,
                role="assistant",
                status="growing",
                runs=(run,),
                created=self._now(),
            )
            self._tree.add(node)
            created = node.created.isoformat()
            self.note({"kind": "reply", "id": node.id, "parent": parent, "created": created, "run": record})
            return node

    def go_on(self, node_id: str, run: Run, record: dict[str, Any]) -> Growing:
        """The reply to write more of, for the writer of replies. Raises: TranscriptError when others follow it."""
        with self.lock:
            if self._tree.children(node_id):
                raise TranscriptError(
                    "This reply has been answered; it can no longer be gone on with.", hint="Regenerate it instead."
                )
            growing = self._tree.growing(node_id)
            growing.begin_run(run)
            self._tree.set_head(node_id)
            self.note({"kind": "run", "id": node_id, "run": record})
            return growing


def _id(node: Node | str) -> str:
    return node.id if isinstance(node, Node) else node
