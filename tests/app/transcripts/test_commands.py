"""`artesian transcripts ...` as people type it."""

import io
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from app.backends.base import Backend, RunFacts
from app.cli import TRANSCRIPTS, main
from app.commands import ask
from app.commands import transcripts as commands
from app.model_choice import ModelChoice
from app.paths import demo_folder
from app.transcripts.session import ChatSession
from app.transcripts.store import user_store
from engine.events import TextDelta
from tests.app.transcripts.chats import reply_of
from tests.fakes import ScriptedBackend, turn_done

Output = pytest.CaptureFixture[str]


def _chat(question: str, *words: str, facts: RunFacts | None = None) -> str:
    store, made_by = user_store(), facts or ScriptedBackend().facts()
    with store.create() as transcript:
        session = ChatSession(transcript)
        node = session.add_user(question)
        writer = session.begin_reply(node, session.request(node), made_by)
        for event in reply_of(words, thought="Hm.\nWell."):
            writer.take(event)
        return transcript.id


def _run(capsys: Output, *words: str) -> tuple[int, str, str]:
    code = main(["transcripts", *words])
    out, err = capsys.readouterr()
    return code, out, err


def _json(capsys: Output, *words: str) -> tuple[str, object]:
    code, out, _ = _run(capsys, *words, "--json")
    assert code == 0
    line = json.loads(out)
    return line["kind"], line["data"]


def test_every_command_of_the_table_is_there() -> None:
    for name in TRANSCRIPTS:
        assert callable(getattr(commands, "list_all" if name == "list" else name))


def test_the_list_says_what_there_is(capsys: Output) -> None:
    code, out, err = _run(capsys, "list")
    assert (code, out) == (0, "") and "no conversations" in err
    name = _chat("What is\x1b[2J a slot?", "A ", "place.")
    code, out, err = _run(capsys, "list")
    assert code == 0 and err == ""
    assert re.search(rf"{name}  \d{{4}}-\d\d-\d\d \d\d:\d\d +2 .*What is\u241b\[2J a slot\?", out)
    kind, data = _json(capsys, "list")
    assert kind == "transcripts"
    assert isinstance(data, list) and [one["id"] for one in data] == [name] and data[0]["n_messages"] == 2


def test_a_conversation_is_shown_by_the_beginning_of_its_id(capsys: Output) -> None:
    name = _chat("What is a slot?\x9b", "A ", "place.")
    code, out, _ = _run(capsys, "show", name[:3])
    assert code == 0
    assert "You:\nWhat is a slot?<U+009B>" in out and "Reply:\nA place." in out and "Hm." not in out
    code, out, _ = _run(capsys, "show", name[:3].upper(), "--thinking")
    assert "    Hm.\n    Well.\nA place." in out
    kind, data = _json(capsys, "show", name)
    assert kind == "transcript" and isinstance(data, dict)
    assert data["nodes"][0]["text"] == "What is a slot?\x9b"


def test_an_id_that_fits_none_or_several_is_wrong_use_with_advice(capsys: Output) -> None:
    folder = user_store().folder
    name = _chat("hi", "a")
    for other in ("abc1", "abc2"):
        (folder / f"{other}.jsonl").write_bytes((folder / f"{name}.jsonl").read_bytes())
    (folder / f"{name}.jsonl").unlink()  # an id is drawn by chance, and may come near to any other
    code, _, err = _run(capsys, "show", "abc")
    assert code == 2 and "2 transcripts begin with abc" in err and "abc1, abc2" in err
    code, _, err = _run(capsys, "show", "abd1")
    assert code == 2 and "Did you mean abc1 or abc2?" in err  # the nearest first
    code, _, err = _run(capsys, "show", "??")
    assert code == 2 and "transcripts list" in err


def test_words_are_searched_in_all_of_them(capsys: Output) -> None:
    name = _chat("Where is the mirror?", "On the\x1b wall.")
    _chat("Other", "thing")
    code, out, _ = _run(capsys, "search", "wall", "the")
    assert (code, out) == (0, f"{name}  m2  Reply: On the\u241b wall.\n")
    kind, data = _json(capsys, "search", "mirr")
    assert kind == "transcript_hits" and isinstance(data, list) and data[0]["node"] == "m1"
    assert _run(capsys, "search", "nowhere")[:2] == (1, "")
    assert _run(capsys, "search", " ")[0] == 2


def test_exports_go_to_stdout_or_to_a_new_file(capsys: Output, tmp_path: Path) -> None:
    name = _chat("hi", "a")
    assert _run(capsys, "export", name)[1].startswith("# hi\n")
    assert json.loads(_run(capsys, "export", name, "json")[1])["data"]["id"] == name
    file = tmp_path / "out.html"
    code, out, _ = _run(capsys, "export", name, "html", "--output", str(file))
    assert (code, out) == (0, "") and file.read_text().startswith("<!DOCTYPE html>")
    code, _, err = _run(capsys, "export", name, "html", "--output", str(file))
    assert code == 2 and "is there already" in err


def test_an_export_that_finds_no_room_leaves_no_piece(
    capsys: Output, tmp_path: Path, small_files_only: Callable[[int], AbstractContextManager[None]]
) -> None:
    name, file = _chat("hi", "a" * 500), tmp_path / "x" / "a.md"
    file.parent.mkdir()
    with small_files_only(100):
        code, out, err = _run(capsys, "export", name, "--output", str(file))
    assert (code, out, err) == (1, "", f"artesian: {file}: File too large, so no file was made\n")
    assert list(file.parent.iterdir()) == []


def test_a_conversation_is_renamed_deleted_and_brought_back(capsys: Output) -> None:
    name = _chat("hi", "a")
    assert _run(capsys, "rename", name, "A", "better", "title")[0] == 0
    assert "A better title" in _run(capsys, "list")[1]
    code, token, err = _run(capsys, "delete", name)
    assert code == 0 and "undo" in err
    assert _run(capsys, "list")[1] == ""
    assert _run(capsys, "undo", token.strip())[1] == f"{name}\n"
    assert "A better title" in _run(capsys, "list")[1]
    assert _run(capsys, "undo")[0] == 2
    _run(capsys, "delete", name)
    assert _run(capsys, "undo", name[:4])[1] == f"{name}\n"
    assert _run(capsys, "rename", name)[0] == 0
    assert _run(capsys, "list")[1].rstrip().endswith("hi")


def test_what_another_window_has_open_is_not_changed(capsys: Output) -> None:
    name = _chat("hi", "a")
    with user_store().open(name):
        for command in (["rename", name, "x"], ["delete", name]):
            code, _, err = _run(capsys, *command)
            assert code == 1 and "Another window" in err
        assert "Reply:\na" in _run(capsys, "show", name)[1]
        code, copied, _ = _run(capsys, "copy", name)
        assert code == 0 and "Reply:\na" in _run(capsys, "show", copied.strip())[1]


def test_paths_are_told(capsys: Output) -> None:
    folder = user_store().folder
    assert _run(capsys, "path")[1] == f"{folder}\n"
    name = _chat("hi", "a")
    assert _run(capsys, "path", name[:5])[1] == f"{folder / name}.jsonl\n"


def test_lines_that_cannot_be_used_are_named_on_stderr(capsys: Output) -> None:
    name = _chat("hi", "a")
    with user_store().path_of(name).open("ab") as file:
        file.write(b"junk\n" * 12)
    code, out, err = _run(capsys, "show", name)
    assert code == 0 and "Reply:\na" in out
    assert err.count("is not JSON") == 10 and "2 more lines" in err


def test_a_replay_says_equal_or_what_differs(
    capsys: Output, use_backend: Callable[[Backend], None], tmp_path: Path
) -> None:
    name = _chat("hi", "a", "b")
    (tmp_path / "config.json").touch()  # by which a folder is taken for a checkpoint
    use_backend(ScriptedBackend(reply_of(["a", "b"], thought="x")))
    code, out, _ = _run(capsys, "replay", name, "--model", str(tmp_path))
    assert (code, out) == (0, "turn 1: equal, 3 tokens\n")
    use_backend(ScriptedBackend([*reply_of(["a"], thought="x")[:-1], *reply_of(["c"], first_id=7)]))
    code, out, _ = _run(capsys, "replay", name, "--model", str(tmp_path))
    assert code == 1 and out.startswith("turn 1: differs at token 3: 101 then, 7 now\n  nothing it depends on")
    use_backend(ScriptedBackend([TextDelta(text=""), turn_done("stopped")]))
    code, out, _ = _run(capsys, "replay", name, "--model", str(tmp_path), "--json")
    assert code == 130
    assert json.loads(out)["data"] == {"id": name, "equal": False, "complete": False, "turns": []}
    code, _, err = _run(capsys, "replay", name)
    assert code == 4 and "/models/scripted" in err


def test_a_replay_takes_the_demo_where_it_is_now_and_says_who_named_another_model(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[ModelChoice] = []

    def make_local(choice: ModelChoice, *arguments: object) -> Backend:
        chosen.append(choice)
        return ScriptedBackend(reply_of(["a"], thought="x"))

    monkeypatch.setattr(ask, "make_local", make_local)
    name = _chat("hi", "a", facts=replace(ScriptedBackend().facts(), model="/old/artesian/demo", is_demo=True))
    assert _run(capsys, "replay", name)[:2] == (0, "turn 1: equal, 2 tokens\n")
    assert [(choice.folder, choice.is_demo) for choice in chosen] == [(demo_folder(), True)]
    code, _, err = _run(capsys, "replay", _chat("hi", "a"))
    assert code == 4 and "/models/scripted (the transcript) does not exist" in err


def test_a_chat_with_the_demo_is_made_again_token_by_token(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real engine: two turns with a kept state, then both again."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"what is an expert slot?\nwhat is a mirror?\n")))
    assert main(["chat", "--plain", "--max-tokens", "6"]) == 0
    capsys.readouterr()
    (info,) = user_store().list()
    code, out, err = _run(capsys, "replay", info.id)
    assert (code, out) == (0, "turn 1: equal, 6 tokens\nturn 2: equal, 6 tokens\n"), err
    data = info.path.read_bytes()
    facts = re.search(rb'"fingerprint":"(\w+)"', data)
    ids = re.search(rb'"ids":\[(\d+)', data)
    assert facts is not None and ids is not None
    # As if another model had made it, and drawn another first token.
    info.path.write_bytes(data.replace(facts[1], b"0" * 64).replace(ids[0], b'"ids":[%d' % (int(ids[1]) + 1), 1))
    code, out, _ = _run(capsys, "replay", info.id, "--turn", "1")
    assert code == 1
    assert out == (
        f"turn 1: differs at token 1: {int(ids[1]) + 1} then, {int(ids[1])} now\n"
        f"  fingerprint: {'0' * 64} then, {facts[1].decode()} now\n"
    )
