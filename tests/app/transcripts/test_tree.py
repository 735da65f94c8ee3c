"""What is made of a file: of our own, of a newer version's, of a damaged or hostile one."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.transcripts import lines
from app.transcripts.files import FileOps
from app.transcripts.lines import Damage, encode
from app.transcripts.load import Loaded, load
from app.transcripts.plain import from_plain, to_plain
from app.transcripts.transcript import Transcript
from engine.events import TurnStats
from tests.app.transcripts.chats import chat
from tests.fakes import turn_done


def _load(data: bytes) -> Loaded:
    return load(lambda n_bytes, offset: data[offset : offset + n_bytes])


def _file(*records: dict[str, Any] | bytes) -> bytes:
    return b"".join(one if isinstance(one, bytes) else encode(one) for one in (_HEADER, *records))


_HEADER = {"kind": "artesian-transcript", "format": 1, "created": "2026-01-02T03:04:05+00:00", "version": "0"}


def _user(name: object, parent: object = None, text: object = "hi") -> dict[str, Any]:
    return {"kind": "message", "id": name, "parent": parent, "role": "user", "text": text}


def _reply(name: str, parent: str | None) -> dict[str, Any]:
    return {"kind": "reply", "id": name, "parent": parent, "run": {"first": [0, 0, 0], "max_tokens": 9}}


def _more(name: str, text: str, ids: Sequence[object], at: Sequence[int] | str) -> dict[str, Any]:
    return {"kind": "more", "id": name, "text": text, "ids": ids, "at": at}


def _shape(loaded: Loaded) -> list[tuple[str, str | None, str]]:
    return [(node.id, node.parent, node.text) for node in loaded.tree.nodes()]


def _reasons(loaded: Loaded) -> list[tuple[int, str]]:
    return [(one.line, one.reason) for one in loaded.damage]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"not json\n", "is not JSON at character 0: Expecting value"),
        (b"[1]\n", "is not a JSON object but a list"),
        (b'{"kind":"title","title":"a","title":"b"}\n', "has the key 'title' twice"),
        (b'{"kind":"title","title":"\xff"}\n', "is not UTF-8 at byte 25"),
        (b'{"kind":"title","title":"a\x00"}\n', "is not JSON at character 26: Invalid control character at"),
        (b'{"a":' * 100_000 + b"\n", "is JSON nested too deeply"),
        (b'{"kind":"title","title":' + b"9" * 5000 + b"}\n", "has a number of 5,000 digits"),
        (b'{"kind":"end","id":"a","stats":NaN}\n', "has the value NaN, which JSON has not"),
        (b'{"no":"kind"}\n', "does not say what kind of record it is"),
        (encode(_user(7)), "is a message without an id"),
        (encode(_user("a\x1b[2J")), "is a message without an id"),
        (encode(_user("x" * 200)), "is a message without an id"),
        (encode(_user("b", "a", text=["hi"])), "has no text under 'text'"),
        (encode(_user("a")), "has the id a of an earlier message"),
        (encode(_user("b") | {"role": "root"}), "is a message of nobody"),
        (encode({"kind": "head", "id": "zz"}), "belongs to a message that is not there"),
        (encode({"kind": "head", "id": ["a"]}), "belongs to a message that is not there"),
        (encode(_more("r", "x", [-1], [0, 0, 0])), "has token ids that are none"),
        (encode(_more("r", "x", [True], [0, 0, 0])), "has token ids that are none"),
        (encode(_more("r", "x", "12", [0, 0, 0])), "has token ids that are none"),  # type: ignore[arg-type]
        (encode({"kind": "end", "id": "r", "status": "great"}), "does not say how the reply ended"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_shown(bad: bytes, reason: str) -> None:
    loaded = _load(_file(_user("a"), _reply("r", "a"), bad, _more("r", "yes", [1], [0, 0, 0])))
    assert _reasons(loaded) == [(4, reason)]
    assert _shape(loaded) == [("a", None, "hi"), ("r", "a", "yes")]


def test_a_message_whose_parent_is_missing_follows_the_one_before_it() -> None:
    """So no line can be its own ancestor: a parent stands before its child."""
    loaded = _load(_file(_user("a", "c"), _user("b", "b"), _user("c", "a"), _user("d", {"x": 1})))
    assert _shape(loaded) == [("a", None, "hi"), ("b", "a", "hi"), ("c", "a", "hi"), ("d", "c", "hi")]
    assert [line for line, _ in _reasons(loaded)] == [2, 3, 5]
    assert [node.id for node in loaded.tree.path("d")] == ["a", "c", "d"]


def test_kinds_and_fields_of_later_versions_are_passed_over_and_kept(tmp_path: Path) -> None:
    data = _file(_user("a") | {"colour": "red"}, {"kind": "mood", "id": "a"}, _user("b", "a"))
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with Transcript(path, FileOps(), exists=True) as transcript:
        assert transcript.damage == () and transcript.read_only == ""
        transcript.add("user", "more", "b")
    assert path.read_bytes().startswith(data)


def test_a_newer_format_is_shown_and_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    data = _file(_user("a")).replace(b'"format":1', b'"format":2')
    path.write_bytes(data)
    with Transcript(path, FileOps(), exists=True) as transcript:
        assert [node.text for node in transcript.path()] == ["hi"]
        assert "newer version" in transcript.read_only
    assert path.read_bytes() == data


def test_a_reply_with_a_gap_shows_what_is_left_and_gives_no_ids() -> None:
    data = _file(
        _user("a"),
        _reply("r", "a"),
        _more("r", "one ", [1], [0, 0, 0]),
        b"damaged\n",
        _more("r", "three ", [3], [2, 8, 0]),
        _more("r", "four", [4], [3, 14, 0]),
    )
    loaded = _load(data)
    reply = loaded.tree.node("r")
    assert (reply.text, reply.ids) == ("one three four", ())
    assert _reasons(loaded)[1] == (6, "does not join what is before it; part of a reply is missing")
    assert len(loaded.damage) == 2


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (_more("r", "x", [9], [0, 0, 0]), "repeats what is there already"),
        (_more("r", "x", [9], "here"), "does not say where its text belongs"),
        (_more("done", "x", [9], [0, 0, 0]), "belongs to a reply that had ended"),
    ],
)
def test_text_that_belongs_elsewhere_is_put_nowhere(record: dict[str, Any], reason: str) -> None:
    ended = [_reply("done", "a"), {"kind": "end", "id": "done", "status": "complete"}]
    loaded = _load(_file(_user("a"), *ended, _reply("r", "a"), _more("r", "one", [1], [0, 0, 0]), record))
    assert [node.text for node in loaded.tree.nodes()] == ["hi", "", "one"] and loaded.tree.node("r").ids == (1,)
    assert _reasons(loaded) == [(7, reason)]


def test_lines_of_any_length_are_read_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "_READ_BYTES", 300)
    long = encode({"kind": "title", "title": "x" * 5000})
    loaded = _load(_file(_user("a"), long, _user("b", "a")))
    assert _shape(loaded) == [("a", None, "hi"), ("b", "a", "hi")]
    assert _reasons(loaded) == [(3, "has more than 1,000 bytes")]


def test_a_long_text_is_no_reason_to_refuse_a_line_but_many_values_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_MOST_STRUCTURE_BYTES", 10_000)
    text = '{"a": [1, 2, 3], "b": "\\""}, ' * 2000
    loaded = _load(_file(_user("a", text=text), b'{"kind":"x","y":[' + b"[]," * 10_000 + b"0]}\n"))
    assert _shape(loaded) == [("a", None, text)]
    assert _reasons(loaded) == [(3, "holds too many values")]


def test_a_file_too_long_to_be_read_whole_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines.LineReader.__init__, "__kwdefaults__", {"most_bytes": 200})
    path = tmp_path / "x.jsonl"
    path.write_bytes(_file(_user("a"), _user("b", "a", "x" * 300)))
    with Transcript(path, FileOps(), exists=True) as transcript:
        assert [node.id for node in transcript.path()] == ["a"]
        assert "too long" in transcript.read_only


def test_bad_lines_without_end_are_named_up_to_a_thousand() -> None:
    assert len(_load(_file() + b"x\n" * 5000).damage) == 1000


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_KEYS = ("id", "parent", "role", "text", "thinking", "ids", "at", "run", "status", "stats", "facts", "title", "line")
_KINDS = ("message", "reply", "run", "facts", "more", "notice", "end", "head", "title", "torn", "artesian-transcript")
_FIELDS = st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(["a", "b", None, "user", "complete"]) | _VALUE)
_RECORD = st.builds(lambda kind, fields: {"kind": kind, **fields}, st.sampled_from(_KINDS), _FIELDS)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of making the records, on a machine with other work
@given(st.lists(_RECORD | st.binary(max_size=30), max_size=30))
def test_no_records_and_no_bytes_can_fail_the_reader(records: list[dict[str, Any] | bytes]) -> None:
    data = b"".join(one + b"\n" if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in records)
    tree = _load(data).tree
    ids = {node.id for node in tree.nodes()}
    for node in tree.nodes():
        path = tree.path(node.id)
        assert path[-1].id == node.id and path[0].parent is None and len({one.id for one in path}) == len(path)
        assert node.id in {one.id for one in tree.siblings(node.id)}
    assert tree.head is None or tree.head in ids


def test_a_real_file_with_any_byte_flipped_still_opens_and_keeps_the_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    with Transcript(path, FileOps(), exists=False, now=lambda: moment) as transcript:
        for _ in chat(transcript):
            pass
        texts = {node.text for node in transcript.nodes()}
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(300):
        at = rng.randrange(len(whole))
        data = whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
        found = {node.text for node in _load(data).tree.nodes()}
        assert len(texts - found) <= (2 if whole[at : at + 1] == b"\n" else 1)


def test_the_time_a_file_gives_may_be_nonsense() -> None:
    for created in ("yesterday", 7, None, "0001-01-01T00:00:00+23:59", "9" * 50):
        loaded = _load(_file(_user("a") | {"created": created}))
        assert loaded.damage == () and loaded.tree.node("a").created.year in (1970, 1)


def test_damage_says_where() -> None:
    assert _load(b"x\n").damage == (Damage(line=1, reason="is not JSON at character 0: Expecting value"),)


def test_a_file_of_endless_messages_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.transcripts.load.MOST_MESSAGES", 1000)
    loaded = _load(_file(*(_user(f"n{number}", f"n{number - 1}" if number else None) for number in range(3000))))
    assert loaded.too_long and len(loaded.tree) == 1000


def test_long_chains_and_endless_runs_and_notices_cost_their_length() -> None:
    chain = (_user(f"n{number}", f"n{number - 1}" if number else None) for number in range(20_000))
    loaded = _load(_file(*chain))
    assert loaded.damage == () and len(loaded.tree.path()) == 20_000
    assert loaded.tree.leaf_below("n0") == "n19999"
    more: list[dict[str, Any]] = [{"kind": "run", "id": "r", "run": {}}, {"kind": "notice", "id": "r", "text": "x"}]
    loaded = _load(_file(_user("a"), _reply("r", "a"), *(more * 10_000)))
    reply = loaded.tree.node("r")
    assert len(reply.runs) == len(reply.notices) == 1000 == len(loaded.damage)


@pytest.mark.parametrize("figure", ["1e999", "-1e999", "9" * 400, "true", '"1"'])
def test_a_figure_that_is_no_finite_number_is_not_taken(figure: str) -> None:
    stats = json.loads(json.dumps(to_plain(turn_done().stats)))
    assert from_plain(TurnStats, stats) == turn_done().stats
    assert from_plain(TurnStats, stats | {"prefill_s": json.loads(figure)}) is None
