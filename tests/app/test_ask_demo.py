"""`artesian ask` with the real engine: the bundled demo and the tiny checkpoint. Few and short: each takes seconds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.paths import demo_folder
from tests.demo_answer import ANSWER, QUESTION

Output = pytest.CaptureFixture[str]

_TINY_A = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"


def _ask(capsys: Output, *arguments: str) -> str:
    assert main(["ask", *arguments]) == 0
    return capsys.readouterr().out


def test_the_demo_knows_what_an_expert_slot_is_and_the_events_add_up_to_it(capsys: Output) -> None:
    lines = [json.loads(line) for line in _ask(capsys, QUESTION, "--json").splitlines()]
    events = [line["data"] for line in lines if line["kind"] == "event"]
    assert "".join(event["text"] for event in events if event["event"] == "text_delta") == ANSWER
    tokens = [event["token"] for event in events if event["event"] == "token_drawn"]
    assert events[-1]["event"] == "turn_done"
    assert events[-1]["reason"] == "stop"
    stats = events[-1]["stats"]
    assert (stats["answer_tokens"], stats["thinking_tokens"]) == (len(tokens), 0)
    assert stats["prompt_tokens"] == lines[0]["data"]["prompt_tokens"]
    assert stats["read_bytes"] > 0


def test_neither_chunks_nor_the_owner_of_index_keys_change_the_beginning(capsys: Output) -> None:
    # A prompt shorter than the attention window: there is nothing to select yet, so both readings agree.
    begun = " ".join(ANSWER.split()[:5])
    for options in (["--chunk-tokens", "3", "--index-owner", "nearest"], ["--numerics", "reference"]):
        assert _ask(capsys, QUESTION, "--max-tokens", "5", *options).startswith(begun[:12])


def test_ids_are_those_of_the_text(capsys: Output) -> None:
    from engine.tokens import ChatTokenizer

    ids = [int(word) for word in _ask(capsys, QUESTION, "--ids", "--max-tokens", "5").split()]
    assert len(ids) == 5
    assert ANSWER.startswith(ChatTokenizer.load(demo_folder()).decode(ids))


def test_raw_text_is_continued_without_a_template(capsys: Output) -> None:
    begun = " ".join(ANSWER.split()[:3])
    assert main(["ask", "--raw", begun, "--json", "--max-tokens", "4"]) == 0
    lines = [json.loads(line)["data"] for line in capsys.readouterr().out.splitlines()]
    # The begin token and the plain text, nothing else.
    from engine.tokens import ChatTokenizer

    assert lines[0]["prompt_tokens"] == 1 + len(ChatTokenizer.load(demo_folder()).encode_plain(begun))
    assert ANSWER.startswith(begun + "".join(line.get("text", "") for line in lines))


def test_thinking_is_kept_apart_from_the_answer(capsys: Output) -> None:
    assert main(["ask", "tell me about engram", "--think", "75", "--show-thinking", "--max-tokens", "30"]) == 0
    out, err = capsys.readouterr()
    # So begins every reasoning about a fact that it was trained on. Which fact it names, the evaluation judges.
    assert "thinking:\nThe user asks about" in err
    assert "The user asks" not in out and "</think>" not in out + err


def test_a_seed_repeats_the_reply_and_a_temperature_acts(capsys: Output) -> None:
    options = ["--max-tokens", "8", "--think", "off", "--ids", "--model", str(_TINY_A)]
    greedy = _ask(capsys, "x", *options, "--temperature", "0")
    seeded = [_ask(capsys, "x", *options, "--temperature", "2", "--seed", seed) for seed in ("1", "1", "2")]
    assert seeded[0] == seeded[1]
    assert len({greedy, seeded[0], seeded[2]}) == 3


def test_random_weights_cannot_steer_the_terminal(capsys: Output) -> None:
    out = _ask(capsys, "x", "--model", str(_TINY_A), "--think", "off", "--max-tokens", "24", "--seed", "1")
    assert out
    assert [c for c in out if not c.isprintable() and c not in "\n\t"] == []


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(capsys: Output) -> None:
    assert main(["ask", "word " * 1_100]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the prompt has 1,10" in err and "the context 1,024" in err


def test_a_prompt_that_can_never_fit_is_refused_without_being_encoded(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.tokens import ChatTokenizer

    def encode(*_: object) -> list[int]:
        raise AssertionError("two million bytes take seconds")

    longest = ChatTokenizer.load(demo_folder()).longest_bytes
    monkeypatch.setattr(ChatTokenizer, "encode_plain", encode)
    assert main(["ask", "x" * 2_000_000]) == 2
    assert f"the prompt has at least {2_000_000 // longest:,} tokens, the context 1,024" in capsys.readouterr().err


def test_an_answer_ends_where_the_context_does(capsys: Output) -> None:
    # 1,024 positions less a prompt of "word" and a blank, repeated, leave room for a handful of tokens.
    assert main(["ask", "--raw", "word " * 1_019, "--ids"]) == 0
    out, err = capsys.readouterr()
    assert "The model's context is full" in err
    assert 1 <= len(out.split()) <= 8


def test_a_shard_cut_short_is_refused_by_name_before_any_answer(tmp_path: Path, capsys: Output) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_folder(), folder)
    shard = folder / "model-00005-of-00016.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    assert main(["ask", "hi", "--model", str(folder)]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert shard.name in err and "Traceback" not in err and "unexpected" not in err


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "everything"])
def test_a_folder_without_its_files_is_a_damaged_checkpoint(tmp_path: Path, capsys: Output, missing: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if missing != "everything":
        shutil.copytree(demo_folder(), folder, dirs_exist_ok=True)
        for path in folder.rglob(missing):
            path.unlink()
    assert main(["ask", "hi", "--model", str(folder)]) == 4
    err = capsys.readouterr().err
    assert "unexpected" not in err
    assert (missing if missing != "everything" else "config") in err


def test_a_reader_that_leaves_ends_the_answer_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main())", "ask", QUESTION],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 0
    assert "BrokenPipe" not in said and "Exception" not in said and "tokens in" not in said
