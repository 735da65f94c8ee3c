"""kill -9 in the middle of a chat: what was reported as saved is there, the file opens, the next chat joins on."""

import json
import multiprocessing
import random
import signal
from pathlib import Path

from app.transcripts.files import FileOps
from app.transcripts.load import load_file
from app.transcripts.transcript import Transcript
from tests.app.transcripts.chats import chat
from tests.app.transcripts.faulty import FaultyFiles
from tests.app.transcripts.killed import chat_for_ever

N_KILLS = 50


def test_fifty_kills_at_random_moments_lose_nothing_that_was_reported_as_saved(tmp_path: Path) -> None:
    # Preloaded once: fifty starts would take a minute.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.app.transcripts.killed"])
    rng, saved, n_told = random.Random(7), dict[str, tuple[str, list[int], str]](), 0
    for _ in range(N_KILLS):
        from_child, to_parent = context.Pipe(duplex=False)
        child = context.Process(target=chat_for_ever, args=(tmp_path / "chats", to_parent))
        child.start()
        to_parent.close()
        # So many messages that are new or have grown; the first of them is new, so every round brings one more.
        wanted, told = rng.randint(1, 24), list[bytes]()
        while len(told) < wanted:
            told.append(from_child.recv_bytes())
        # Not only between two calls: at any point within the next few milliseconds.
        if from_child.poll(rng.uniform(0, 0.003)):
            told.append(from_child.recv_bytes())
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        while from_child.poll():
            try:
                told.append(from_child.recv_bytes())
            except EOFError:
                break
        for name, text, ids, status in map(json.loads, told):
            saved[name] = (text, ids, status)
        n_told += len(told)

        (path,) = [path for path in (tmp_path / "chats").iterdir() if path.suffix == ".jsonl"]
        loaded = load_file(path, FileOps())
        assert loaded.damage == ()
        found = {node.id: node for node in loaded.tree.nodes()}
        for name, (text, ids, status) in saved.items():
            node = found[name]
            assert node.text.startswith(text) and list(node.ids[: len(ids)]) == ids
            # A reply that was cut off with its process is told of by the next one.
            assert status in ("growing", "cut") or (node.status, node.text) == (status, text)
    assert n_told > N_KILLS and len(saved) > N_KILLS


def test_a_file_cut_at_any_byte_opens_and_takes_the_next_record_whole(tmp_path: Path) -> None:
    path = tmp_path / "whole.jsonl"
    with Transcript(path, FileOps(), exists=False) as transcript:
        for _ in chat(transcript):
            pass
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    for size in {*range(ends[4], len(whole), 41), *range(len(whole) - 20, len(whole)), *ends[4:]}:
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:size])
        n_whole = max(n for n, end in enumerate(ends) if end <= size)
        with Transcript(cut, FaultyFiles(), exists=True) as again:
            assert again.damage == () and again.read_only == ""
            before = again.nodes()
            added = again.add("user", "and now?", None)
            assert again.problem is None
        # What was whole is untouched, the piece of a line is kept aside on a line of its own.
        after = cut.read_bytes()
        assert after.startswith(whole[:size])
        assert after.splitlines(keepends=True)[:n_whole] == lines[:n_whole]
        with Transcript(cut, FaultyFiles(), exists=True) as again:
            assert again.damage == ()
            assert again.nodes() == [*before, added]


def test_zeros_that_a_power_failure_left_at_the_end_are_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Transcript(path, FileOps(), exists=False) as transcript:
        first = transcript.add("user", "one", None)
    with path.open("ab") as file:
        file.write(bytes(3000))
    with Transcript(path, FileOps(), exists=True) as again:
        assert again.nodes() == [first] and again.damage == ()
        second = again.add("user", "two", first.id)
    with Transcript(path, FileOps(), exists=True) as again:
        assert again.path() == [first, second] and again.damage == ()
