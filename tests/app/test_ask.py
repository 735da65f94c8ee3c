"""`artesian ask` against a scripted backend: what goes where, which option does what, and how it ends."""

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from app.backends.base import Backend
from app.cli import main
from app.commands.ask import MOST_QUESTION_BYTES, read_question
from app.errors import UsageError
from app.paths import settings_file
from engine.errors import PromptError
from engine.events import Event, LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TokenDrawn
from engine.prompt import UserMessage
from storage.errors import TruncatedShard
from tests.fakes import ScriptedBackend, turn_done

Use = Callable[[Backend], None]
Output = pytest.CaptureFixture[str]

_REPLY: tuple[Event, ...] = (
    PrefillProgress(done_tokens=5, total_tokens=5, read_bytes=0, elapsed_s=0.1),
    TokenDrawn(token=7),
    TextDelta(text="Hello"),
    TokenDrawn(token=8),
    TextDelta(text=" there"),
    turn_done(),
)


def test_the_answer_is_all_that_stdout_gets(use_backend: Use, capsys: Output) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there\n"
    assert "It is not DeepSeek" in err
    assert "3 tokens in 2.0 s (1.5/s) | read 5 in 0.5 s (10/s) | drives 0 B" in err
    assert backend.opened and backend.closed


def test_the_figures_say_where_the_time_and_the_experts_came_from(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend([turn_done(read_bytes=61_000_000_000, wait_s=1.0, expert_hits=75, expert_misses=25)]))
    assert main(["ask", "hi"]) == 0
    assert "| drives 61.0 GB, wait 40% | experts 75% from memory" in capsys.readouterr().err


def test_the_figures_say_what_was_not_read_again(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend([turn_done(prompt_tokens=900, reused_tokens=895)]))
    assert main(["ask", "hi"]) == 0
    assert "| read 5 in 0.5 s (10/s), 895 reused |" in capsys.readouterr().err


def test_words_without_quotes_are_one_question(use_backend: Use) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "what", "is", "a", "slot?", "--seed", "3"]) == 0
    assert backend.requests[0].messages == (UserMessage(parts=("what is a slot?",)),)


def test_a_question_may_begin_with_dashes_behind_two_of_them(use_backend: Use) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "--", "--think", "what", "is", "that?"]) == 0
    assert backend.requests[0].messages == (UserMessage(parts=("--think what is that?",)),)


@pytest.mark.parametrize("arguments", [["ask", "-"], ["ask", "-", "--seed", "1"], ["ask", "--seed", "1", "-"]])
def test_a_dash_reads_stdin_without_the_last_line_end(
    use_backend: Use, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("  caf\u00e9\r\nline two\r\n".encode())))
    assert main(arguments) == 0
    assert backend.requests[0].messages == (UserMessage(parts=("  caf\u00e9\r\nline two",)),)


def test_stdin_that_is_not_text_is_refused_with_the_byte(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    assert main(["ask", "-"]) == 2
    assert "byte 3 is 0xe9" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["ask"], ["ask", ""], ["ask", " \n"], ["ask", "-", "more"]])
def test_no_question_is_wrong_use(arguments: list[str], capsys: Output) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("artesian: ")


def test_what_the_model_wrote_is_shown_and_not_sent(use_backend: Use, capsys: Output) -> None:
    use_backend(
        ScriptedBackend([TextDelta(text="a\x1b"), TextDelta(text="[2Jb\r"), TextDelta(text="\nc\r"), turn_done()])
    )
    assert main(["ask", "hi"]) == 0
    assert capsys.readouterr().out == "a\u241b[2Jb\nc\u240d\n"


def test_an_answer_that_ends_its_line_gets_no_second_line_end(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend([TextDelta(text="a\n"), turn_done()]))
    assert main(["ask", "hi"]) == 0
    assert capsys.readouterr().out == "a\n"


_THOUGHT: tuple[Event, ...] = (
    ThinkingDelta(text="Let me"),
    ThinkingDelta(text=" see."),
    TextDelta(text="Yes."),
    turn_done(),
)


def test_thinking_goes_to_stderr_and_without_a_terminal_only_when_asked_for(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend(_THOUGHT))
    assert main(["ask", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Yes.\n" and "Let me" not in err

    use_backend(ScriptedBackend(_THOUGHT))
    assert main(["ask", "hi", "--show-thinking"]) == 0
    out, err = capsys.readouterr()
    assert out == "Yes.\n" and "thinking:\nLet me see.\n\n" in err and "\x1b" not in err


def test_json_prints_the_facts_and_every_event_one_a_line(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend([TextDelta(text="\x1b[0m"), *_REPLY[1:]]))
    assert main(["ask", "hi", "--json", "--seed", "9", "--temperature", "0.5"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["ask"] + ["event"] * 6
    facts = lines[0]["data"]
    assert (facts["seed"], facts["temperature"], facts["think"], facts["prompt_tokens"]) == (9, 0.5, "off", 5)
    assert [line["data"]["event"] for line in lines[1:]] == [
        "text_delta",
        "token_drawn",
        "text_delta",
        "token_drawn",
        "text_delta",
        "turn_done",
    ]
    assert lines[1]["data"]["text"] == "\x1b[0m"
    assert lines[-1]["data"]["reason"] == "stop"


def test_ids_prints_the_ids_of_all_tokens(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend(_REPLY))
    assert main(["ask", "hi", "--ids"]) == 0
    assert capsys.readouterr().out == "7 8\n"


def test_the_demo_is_greedy_and_does_not_think_unless_told(use_backend: Use) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    main(["ask", "hi"])
    main(["ask", "hi", "--think", "42", "--temperature", "0.7", "--max-tokens", "9"])
    first, second = backend.requests
    assert (first.effort, first.sampling.temperature, first.max_tokens) == (None, 0.0, 8_192)
    assert (second.effort, second.sampling.temperature, second.max_tokens) == (42, 0.7, 9)


def test_a_real_model_thinks_by_default_with_the_vendors_sampling(
    use_backend: Use, tmp_path: Path, capsys: Output
) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    (tmp_path / "config.json").touch()  # by which a folder is taken for a checkpoint
    assert main(["ask", "hi", "--model", str(tmp_path)]) == 0
    request = backend.requests[0]
    assert (request.effort, request.max_tokens) == ("high", 65_536)
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    err = capsys.readouterr().err
    assert "demo" not in err
    assert f"seed {request.sampling.seed}" in err


def test_the_models_own_file_wins_over_the_vendor_the_settings_over_it_and_the_option_over_all(
    use_backend: Use, tmp_path: Path
) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.1, "top_p": 0.2, "top_k": 3}')
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text("top_p = 0.8\ntop_k = 5\nthink = 7\nmax_tokens = 11\n")
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "hi", "--model", str(tmp_path), "--top-k", "9"]) == 0
    request = backend.requests[0]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.1, 0.8, 9)
    assert (request.effort, request.max_tokens) == (7, 11)


def test_seeds_differ_from_run_to_run_unless_given(use_backend: Use) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    for arguments in ([], [], ["--seed", "5"], ["--seed", "5"]):
        main(["ask", "hi", *arguments])
    seeds = [request.sampling.seed for request in backend.requests]
    assert seeds[0] != seeds[1] and seeds[2:] == [5, 5]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--think", "lots"], "--think must be"),
        (["--think", "101"], "--think must be"),
        (["--max-tokens", "0"], "--max-tokens must be"),
        (["--chunk-tokens", "0"], "--chunk-tokens must be"),
        (["--temperature", "2.5"], "temperature is 2.5"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0"], "top_p is 0"),
        (["--top-k", "-1"], "top_k is -1"),
        (["--min-p", "2"], "min_p is 2"),
        (["--seed", "-1"], "seed is -1"),
        (["--seed", "one"], "--seed"),
        (["--numerics", "fast"], "--numerics"),
        (["--ids", "--json"], "--ids and --json"),
        (["--raw", "--system", "x"], "--system has no effect with --raw"),
        (["--raw", "--think", "low"], "--think has no effect with --raw"),
        (["--modle", "x"], "Did you mean --model?"),
    ],
)
def test_an_option_that_cannot_act_is_refused_by_name(
    use_backend: Use, capsys: Output, arguments: list[str], told: str
) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "hi", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err and "Traceback" not in err
    assert backend.requests == []


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (turn_done("length"), "Cut at --max-tokens 9."),
        (
            turn_done("length", answer_tokens=0, thinking_tokens=9),
            "9 was reached while thinking, so there is no answer",
        ),
        (turn_done("context"), "The model's context is full"),
    ],
)
def test_a_turn_that_was_cut_says_why(use_backend: Use, capsys: Output, event: Event, told: str) -> None:
    use_backend(ScriptedBackend([event]))
    assert main(["ask", "hi", "--max-tokens", "9", "--think", "low"]) == 0
    assert told in capsys.readouterr().err


def test_ctrl_c_keeps_the_text_so_far(use_backend: Use, capsys: Output) -> None:
    shown: list[str] = []

    def press_after_the_first_word() -> None:
        shown.append(capsys.readouterr().out)
        if "".join(shown) == "Hello":
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    backend = ScriptedBackend(_REPLY, before_each=press_after_the_first_word)
    use_backend(backend)
    assert main(["ask", "hi"]) == 130
    out, err = capsys.readouterr()
    assert "".join(shown) + out == "Hello\n"
    assert "Stopped by you." in err
    assert backend.closed
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failure_in_mid_answer_keeps_the_text_and_has_its_code(use_backend: Use, capsys: Output) -> None:
    backend = ScriptedBackend(_REPLY[:-1], failure=TruncatedShard("shard cut", hint="Fetch it again."))
    use_backend(backend)
    assert main(["ask", "hi"]) == 4
    out, err = capsys.readouterr()
    assert out == "Hello there\n"
    assert err.endswith("artesian: shard cut\n  Fetch it again.\n")
    assert backend.closed


def test_a_prompt_that_cannot_be_run_is_refused_before_anything_is_loaded(use_backend: Use, capsys: Output) -> None:
    class Full(ScriptedBackend):
        def measure(self, request: object) -> int:
            raise PromptError("the prompt has 5,000 tokens, the context 4,096")

    backend = Full(_REPLY)
    use_backend(backend)
    assert main(["ask", "hi"]) == 2
    assert "5,000 tokens" in capsys.readouterr().err
    assert backend.closed and not backend.opened


def test_loading_is_reported_to_the_progress_line_only(use_backend: Use, capsys: Output) -> None:
    loading = [LoadProgress(done_bytes=1, total_bytes=2, elapsed_s=5.0)]
    use_backend(ScriptedBackend(_REPLY, loading=loading))
    assert main(["ask", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there\n" and "loading" not in err  # stderr is no terminal here


def test_a_notice_of_the_engine_goes_to_stderr_once(use_backend: Use, capsys: Output) -> None:
    use_backend(ScriptedBackend([Notice(text="m\x1b.safetensors is read through the page cache"), *_REPLY]))
    assert main(["ask", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there\n"
    assert err.count("artesian: m\u241b.safetensors is read through the page cache\n") == 1


def test_more_than_any_context_holds_is_refused_on_stdin_before_it_is_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless(io.RawIOBase):
        n_read = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            self.n_read += len(buffer)
            buffer[:] = b"a" * len(buffer)
            return len(buffer)

    endless = Endless()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    with pytest.raises(UsageError, match="more than 16,777,216 bytes"):
        read_question(("-",))
    assert endless.n_read < 2 * MOST_QUESTION_BYTES


def test_a_closed_stdin_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="stdin is closed"):
        read_question(("-",))


def test_a_full_disk_under_stderr_does_not_cost_the_answer(
    use_backend: Use, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    use_backend(ScriptedBackend([Notice(text="a drive failed"), *_THOUGHT]))
    monkeypatch.setattr("sys.stderr", Full())
    assert main(["ask", "hi", "--show-thinking"]) == 0
    assert capsys.readouterr().out == "Yes.\n"


def test_a_closed_stdout_is_told_before_anything_is_loaded(
    use_backend: Use, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    monkeypatch.setattr("sys.stdout", None)
    assert main(["ask", "hi"]) == 1
    assert not backend.opened
    assert "stdout is closed" in capsys.readouterr().err


def test_a_bad_value_in_the_models_own_file_is_the_checkpoints_fault(
    use_backend: Use, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "generation_config.json").write_text('{"temperature": 9}')
    use_backend(ScriptedBackend(_REPLY))
    assert main(["ask", "hi", "--model", str(tmp_path)]) == 4
    assert "generation_config.json: temperature is 9" in capsys.readouterr().err
