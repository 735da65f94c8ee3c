"""The message tree of one transcript, folded from its records in the order they stand in the file.

The one thing a reader would get wrong: a parent must stand before its child, so no file can make a cycle. A message
whose parent is missing hangs under the one before it in the file: what was said is shown, also from a damaged file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast, get_args

from app.backends.base import RunFacts
from app.transcripts.plain import from_plain
from app.transcripts.records import UNKNOWN_TIME, Node, Role, Run, Status
from engine.events import DoneReason, TurnStats
from engine.sampler_settings import SamplerSettings

FORMAT = 1
"""What this version writes. A file of a higher one is shown as far as it is understood, and not written to."""

_MOST_ID = 1 << 31
_MOST_OF_A_MESSAGE = 1000
"""Runs, and notices."""


class Growing:
    """A message whose text may still grow; `node()` is its record now."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._text = [node.text] if node.text else []
        self._thinking = [node.thinking] if node.thinking else []
        self._ids = list(node.ids)
        self.n_text, self.n_thinking = len(node.text), len(node.thinking)
        self.ids_known = True
        self._changed = False

    @property
    def n_ids(self) -> int:
        """Ids so far."""
        return len(self._ids)

    @property
    def node_status(self) -> Status:
        """How far the message is; without putting its text together."""
        return self._node.status

    def grow(self, text: str, thinking: str, ids: Iterable[int]) -> None:
        """Put more behind what is there."""
        if text:
            self._text.append(text)
        if thinking:
            self._thinking.append(thinking)
        self._ids.extend(ids)
        self.n_text += len(text)
        self.n_thinking += len(thinking)
        self._changed = True

    def change(self, **fields: Any) -> None:
        """Set other fields of the record."""
        self._node = replace(self._node, **fields)

    def begin_run(self, run: Run) -> None:
        """The model goes on with the reply."""
        self.change(runs=(*self._node.runs, run), status="growing", reason=None, error="")

    def change_run(self, **fields: Any) -> None:
        """Set fields of the newest run."""
        if self._node.runs:
            self._node = replace(self._node, runs=(*self._node.runs[:-1], replace(self._node.runs[-1], **fields)))

    def node(self) -> Node:
        """The record as it is now."""
        if self._changed:
            self._text, self._thinking = ["".join(self._text)], ["".join(self._thinking)]
            ids = tuple(self._ids) if self.ids_known else ()
            self._node = replace(self._node, text=self._text[0], thinking=self._thinking[0], ids=ids)
            self._changed = False
        return self._node


class Tree:
    """Messages by id, who follows whom, and which was looked at last.

    Attributes:
        title: As given by the user, or "".
        head: Id of the message the conversation goes on from, or None.
        created: When the first line says the file was made.
        format: What the first line says.
        known_torn: Lines that a later one says were cut short and closed.
    """

    def __init__(self) -> None:
        self.title = ""
        self.head: str | None = None
        self.created = UNKNOWN_TIME
        self.format = FORMAT
        self.known_torn: set[int] = set()
        self._nodes: dict[str, Growing] = {}
        self._children: dict[str | None, list[str]] = {}
        self._looked_at: dict[str, int] = {}  # message -> when it was the head last, in heads
        self._n_heads = 0
        self._newest: str | None = None

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def fresh_id(self) -> str:
        """An id no message has."""
        number = len(self._nodes) + 1
        while f"m{number}" in self._nodes:
            number += 1
        return f"m{number}"

    def node(self, node_id: str) -> Node:
        """The message. Raises: KeyError."""
        return self._nodes[node_id].node()

    def growing(self, node_id: str) -> Growing:
        """The message, to change it. Raises: KeyError."""
        return self._nodes[node_id]

    def nodes(self) -> Iterator[Node]:
        """Every message in the order of the file, each as it is when its turn comes."""
        return (growing.node() for growing in self._nodes.values())

    def path(self, node_id: str | None = None) -> list[Node]:
        """From the first message to the given one, or to the head."""
        found: list[Node] = []
        at = self.head if node_id is None else node_id
        while at is not None:
            found.append(self.node(at))
            at = found[-1].parent
        return found[::-1]

    def siblings(self, node_id: str) -> list[Node]:
        """The messages that stand in the same place, itself included, oldest first."""
        return [self.node(other) for other in self._children[self.node(node_id).parent]]

    def children(self, node_id: str | None) -> list[Node]:
        """The messages that follow one, or the first ones; oldest first."""
        return [self.node(child) for child in self._children.get(node_id, ())]

    def leaf_below(self, node_id: str) -> str:
        """Of the branches through a message, the end of the one that was looked at last."""
        best, waiting = node_id, [node_id]
        best_seen = -1
        while waiting:
            at = waiting.pop()
            children = self._children.get(at)
            if children:
                waiting += children
            elif self._looked_at[at] > best_seen:
                best, best_seen = at, self._looked_at[at]
        return best

    def set_head(self, node_id: str | None) -> None:
        """Go on from this message."""
        self.head = node_id
        if node_id is not None:
            self._n_heads += 1
            self._looked_at[node_id] = self._n_heads

    def add(self, node: Node) -> Growing:
        """A new message, which becomes the head."""
        growing = self._nodes[node.id] = Growing(node)
        self._children.setdefault(node.parent, []).append(node.id)
        self._newest = node.id
        self.set_head(node.id)
        return growing

    def apply(self, record: Mapping[str, Any]) -> str:
        """Take one record in; what was wrong with it though it could be used, or "".

        A kind it does not know is passed over. Raises: ValueError with the reason why it could not be used.
        """
        match record.get("kind"):
            case "artesian-transcript":
                self._take_header(record)
            case "message" | "reply":
                return self._take_node(record)
            case "run":
                growing = self._growing(record)
                if len(growing.node().runs) >= _MOST_OF_A_MESSAGE:
                    raise ValueError("is of a reply that was gone on with too often")
                growing.begin_run(_run(record.get("run")))
                self.set_head(growing.node().id)
            case "facts":
                self._growing(record).change_run(facts=from_plain(RunFacts, record.get("facts")))
            case "more":
                return self._take_more(record)
            case "notice":
                growing = self._growing(record)
                if len(growing.node().notices) >= _MOST_OF_A_MESSAGE:
                    raise ValueError("is of a message with too many notices")
                growing.change(notices=(*growing.node().notices, _text(record, "text")))
            case "end":
                self._take_end(record)
            case "head":
                self.set_head(self._growing(record).node().id)
            case "title":
                self.title = _text(record, "title")
            case "torn":
                line = record.get("line")
                if isinstance(line, int):
                    self.known_torn.add(line)
            case str():
                pass
            case _:
                raise ValueError("does not say what kind of record it is")
        return ""

    def close_growing(self, status: Status) -> None:
        """Say how the messages ended that nobody is writing any more."""
        for growing in self._nodes.values():
            if growing.node().status == "growing":
                growing.change(status=status)

    def _take_header(self, record: Mapping[str, Any]) -> None:
        found = record.get("format")
        if not isinstance(found, int) or isinstance(found, bool):
            raise ValueError("names no format")
        self.format = max(self.format, found)
        self.created = _time(record.get("created"))

    def _take_node(self, record: Mapping[str, Any]) -> str:
        node_id, parent, wrong = record.get("id"), record.get("parent"), ""
        if not (isinstance(node_id, str) and 0 < len(node_id) <= 100 and node_id.isascii() and node_id.isprintable()):
            raise ValueError("is a message without an id")
        if node_id in self._nodes:
            raise ValueError(f"has the id {node_id} of an earlier message")
        role = "assistant" if record["kind"] == "reply" else record.get("role")
        if role not in get_args(Role):
            raise ValueError("is a message of nobody")
        if parent is not None and not (isinstance(parent, str) and parent in self._nodes):
            parent, wrong = self._newest, "follows a message that is not there; it is shown behind the one before it"
        text = _text(record, "text") if record["kind"] == "message" else ""
        runs = (_run(record.get("run")),) if record["kind"] == "reply" else ()
        self.add(
            Node(
                id=node_id,
                parent=parent,
                role=cast(Role, role),
                text=text,
                status="growing" if runs else "complete",
                runs=runs,
                created=_time(record.get("created")),
            )
        )
        return wrong

    def _take_more(self, record: Mapping[str, Any]) -> str:
        growing = self._growing(record)
        text, thinking, ids = _text(record, "text", ""), _text(record, "thinking", ""), record.get("ids", [])
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < _MOST_ID for one in ids):
            raise ValueError("has token ids that are none")
        at, here = record.get("at"), [growing.n_ids, growing.n_text, growing.n_thinking]
        if growing.node_status != "growing":
            raise ValueError("belongs to a reply that had ended")
        if not (isinstance(at, list) and len(at) == 3 and all(type(one) is int for one in at)):
            raise ValueError("does not say where its text belongs")
        if any(there < so_far for there, so_far in zip(at, here, strict=True)):
            raise ValueError("repeats what is there already")
        wrong = ""
        if growing.ids_known and at != here:
            growing.ids_known = False
            wrong = "does not join what is before it; part of a reply is missing"
        growing.grow(text, thinking, ids)
        return wrong

    def _take_end(self, record: Mapping[str, Any]) -> None:
        growing, status, reason = self._growing(record), record.get("status"), record.get("reason")
        if status not in get_args(Status):
            raise ValueError("does not say how the reply ended")
        known = reason if reason in get_args(DoneReason) else None
        growing.change(status=status, reason=known, error=_text(record, "error", ""))
        growing.change_run(stats=from_plain(TurnStats, record.get("stats")), reason=known)

    def _growing(self, record: Mapping[str, Any]) -> Growing:
        node_id = record.get("id")
        if not isinstance(node_id, str) or node_id not in self._nodes:
            raise ValueError("belongs to a message that is not there")
        return self._nodes[node_id]


def _text(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"has no text under {key!r}")
    return value


def _time(value: object) -> datetime:
    if not isinstance(value, str) or len(value) > 40:
        return UNKNOWN_TIME
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return UNKNOWN_TIME


def _run(value: object) -> Run:
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    first, most, effort = given.get("first"), given.get("max_tokens"), given.get("effort")
    if not (isinstance(first, list) and len(first) == 3 and all(type(one) is int and one >= 0 for one in first)):
        first = [0, 0, 0]
    return Run(
        first=first[0],
        first_text=first[1],
        first_thinking=first[2],
        effort=effort if isinstance(effort, str) or type(effort) is int else None,
        sampling=from_plain(SamplerSettings, given.get("sampling")) or SamplerSettings(),
        max_tokens=most if type(most) is int and most > 0 else 1,
        facts=from_plain(RunFacts, given.get("facts")),
    )
