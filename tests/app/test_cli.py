"""The command line as a shell sees it: help, versions, exit codes, the nets, pipes and signals."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.backends.base import Backend
from app.cli import COMMANDS, main
from app.exits import MEANINGS
from app.paths import log_file
from app.report import artesian_version
from engine.errors import Stopped
from engine.events import TextDelta
from tests.fakes import ScriptedBackend, turn_done

Output = pytest.CaptureFixture[str]

_RUN = "import sys; from app.cli import main; sys.exit(main())"


def _artesian(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_names_every_command_and_every_exit_code(arguments: list[str], capsys: Output) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    for name in COMMANDS:
        assert f"\n  {name} " in out
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>3}  {meaning}" in out
    assert err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: Output) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: artesian {name} ")
    # The chat reports nothing to a script, and a completion script is no report.
    assert ("--json" in out) == (name not in ("chat", "completion"))


def test_version_is_that_of_the_distribution(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == artesian_version() + "\n"


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_take_under_half_a_second(argument: str) -> None:
    # Processor time and not the clock: other work on the machine must not fail this test. The best of three, as the
    # first may have to compile.
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert _artesian(argument).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["aks"], 'Did you mean "ask"?'),
        (["doctor", "--jsn"], "Did you mean --json?"),
        (["doctor", "extra"], "extra"),
        (["--frobnicate"], "--frobnicate"),
        (["verify"], "MODEL"),
    ],
)
def test_wrong_use_is_code_2_with_one_message_and_a_way_on(arguments: list[str], told: str, capsys: Output) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("artesian: ") and told in err and "--help`." in err


@pytest.mark.parametrize(
    "command", [["audit"], ["plan"], ["verify"], ["bench", "decode"], ["bench", "io"], ["bench", "gpu"]]
)
def test_a_model_is_called_model_wherever_it_is_an_argument(command: list[str], capsys: Output) -> None:
    assert main([*command, "--help"]) == 0
    usage, *rest = capsys.readouterr().out.splitlines()
    assert "MODEL" in usage and "DIR" not in usage.replace("--golden DIR", "")
    (line,) = [line for line in rest if line.split()[:1] == ["MODEL"]]
    assert re.search(r"[Mm]odel(s'|'s) folder", line)


@pytest.mark.parametrize(
    "command", [["ask"], ["chat"], ["doctor"], ["mirror", "scan"], ["mirror", "copy"], ["transcripts", "replay"]]
)
def test_the_option_that_names_a_model_is_explained_in_the_same_words(command: list[str], capsys: Output) -> None:
    assert main([*command, "--help"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["--model"]]
    assert "The model's folder." in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["audit", ""], "an argument of `artesian audit` is empty"),
        (["plan", "  "], "an argument of `artesian plan` is empty"),
        (["plan", "--split", ""], "--split is empty"),
        (["mirror", "copy", "--to="], "--to is empty"),
        (["bench", "io", ""], "an argument of `artesian bench` is empty"),
        (["ask", ""], "there is no question"),
        (["ask", "hi", "--model", ""], "--model is empty"),
        (["--model="], "--model is empty"),
    ],
)
def test_an_empty_word_is_refused_and_not_taken_for_the_current_folder(
    arguments: list[str], told: str, capsys: Output
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err and "Traceback" not in err


def test_the_traceback_goes_to_the_log_or_with_debug_to_stderr(
    use_backend: Callable[[Backend], None], capsys: Output
) -> None:
    use_backend(ScriptedBackend(failure=ZeroDivisionError("scripted")))
    assert main(["ask", "hi"]) == 1
    err = capsys.readouterr().err
    assert "artesian: unexpected failure: ZeroDivisionError: scripted" in err
    assert "Traceback" not in err and str(log_file()) in err
    assert "ZeroDivisionError: scripted" in log_file().read_text()

    for arguments in (["--debug", "ask", "hi"], ["ask", "hi", "--debug"]):
        use_backend(ScriptedBackend(failure=ZeroDivisionError("scripted")))
        assert main(arguments) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_where_nothing_can_be_kept_is_a_word_and_not_a_traceback(
    use_backend: Callable[[Backend], None], capsys: Output
) -> None:
    use_backend(ScriptedBackend(failure=KeyboardInterrupt()))
    assert main(["ask", "hi"]) == 130
    assert capsys.readouterr().err.endswith("artesian: stopped\n")


def test_who_stopped_something_is_told_what_becomes_of_it(
    use_backend: Callable[[Backend], None], capsys: Output
) -> None:
    use_backend(ScriptedBackend(failure=Stopped("copying was stopped; the same command goes on where it was")))
    assert main(["ask", "hi"]) == 130
    err = capsys.readouterr().err
    assert err.endswith("artesian: copying was stopped; the same command goes on where it was\n")


def test_a_log_that_cannot_be_written_disturbs_nothing(
    use_backend: Callable[[Backend], None], capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    use_backend(ScriptedBackend(failure=ZeroDivisionError("scripted")))
    assert main(["ask", "hi"]) == 1
    assert capsys.readouterr().err.count("artesian: unexpected failure") == 1


def test_nothing_is_created_by_a_run_without_trouble(use_backend: Callable[[Backend], None], tmp_path: Path) -> None:
    use_backend(ScriptedBackend([TextDelta(text="x"), turn_done()]))
    assert main(["ask", "hi"]) == 0
    assert main(["doctor", "--json"]) == 0
    assert not (tmp_path / "home").exists()


def test_a_closed_pipe_ends_quietly() -> None:
    code = "import sys; sys.stdout.write('x' * 1_000_000); sys.stdout.flush()"
    program = f"import app.cli; app.cli.COMMANDS.clear()\nimport app.help\ndef f(*a, **k): {code}\n"
    program += "app.cli.make_app = lambda: type('A', (), {'meta': staticmethod(f)})\nsys.exit(app.cli.main([]))"
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0


def test_help_into_a_closed_pipe_is_done() -> None:
    source, sink = os.pipe()
    os.close(source)
    result = subprocess.run([sys.executable, "-c", _RUN, "--help"], stdout=sink, stderr=subprocess.PIPE, check=False)
    os.close(sink)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_terminal_that_is_not_utf8_gets_escapes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = _artesian("ask", "hi", "--model", str(tmp_path / "caf\u00e9"), env=environment)
    assert result.returncode == 4
    assert "caf\\xe9" in result.stderr


@pytest.mark.parametrize(("redirection", "said_on_stdout"), [("2>&-", "{"), ("<&-", "{"), ("2>/dev/full", "{")])
def test_a_stream_that_is_closed_is_no_failure(redirection: str, said_on_stdout: str) -> None:
    command = f'"{sys.executable}" -c "{_RUN}" plan --json {redirection}'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout[:1], result.stderr) == (0, said_on_stdout, "")


def test_a_result_that_has_no_place_to_go_is_a_failure() -> None:
    command = f'"{sys.executable}" -c "{_RUN}" plan --json >&-'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "artesian: stdout is closed, so there is no place for the result\n"


def test_what_is_meant_for_a_closed_stderr_does_not_come_out_of_stdout() -> None:
    result = subprocess.run(["bash", "-c", f'"{sys.executable}" -c "{_RUN}" ask 2>&-'], capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_stdout_is_said_in_one_line() -> None:
    command = f'"{sys.executable}" -c "{_RUN}" --version > /dev/full'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (1, f"artesian: {os.strerror(errno.ENOSPC)}\n")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["help"], "Usage: artesian [COMMAND]"),
        (["help", "ask"], "Usage: artesian ask"),
        (["help", "mirror", "copy"], "Usage: artesian mirror copy"),
    ],
)
def test_help_is_a_word_too(words: list[str], first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith(first) and err == ""
