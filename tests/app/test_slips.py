"""What a newcomer tries that is in no manual: each is answered with what is wrong and the next step."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["help", "me"], ["no command 'me'", "There are chat, ask, ", 'artesian ask "help me"']),
        (["help", "me", "please"], ['artesian ask "help me please"']),
        (["help", "pln"], ["Did you mean `artesian help plan`?"]),
        (["help", "mirror", "cpy"], ["`artesian mirror` has no command", "`artesian help mirror copy`"]),
        (
            ["help", "plan", "more"],
            ["`artesian plan` has no command 'more'\n  `artesian help plan` says what it takes."],
        ),
        (["help", "mirror", "\x1b[2J"], ["There are scan, propose, ", "`artesian help mirror` says what each does"]),
        (["what", "is", "a", "mirror?"], ['artesian ask "what is a mirror?"', "See `artesian --help`."]),
        (["pln"], ['Did you mean "plan"?']),
        (["--model", "/m", "plan"], ["nothing takes 'plan' here", "A command comes first", "`artesian plan --help`"]),
        (["--plain", "hello", "there"], ["nothing takes 'hello there' here", "See `artesian chat --help`."]),
    ],
)
def test_a_word_that_is_no_command_is_wrong_use_with_what_is_meant(
    words: list[str], told: list[str], capsys: Output
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and "\x1b" not in err
    assert all(part in err for part in told), err


def test_a_blank_word_is_no_folder(capsys: Output) -> None:
    assert main([""]) == 2
    assert "--model" not in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_command_is_taken_for_a_model(tmp_path: Path, capsys: Output) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"artesian --model {tmp_path}" in capsys.readouterr().err


def gguf(folder: Path) -> None:
    (folder / "DeepSeek-V4.1-Flash-Q4_K_M.gguf").touch()


def shards_alone(folder: Path) -> None:
    (folder / "model-00001-of-00048.safetensors").touch()


def one_below(folder: Path) -> None:
    (folder / "deepseek-ai").mkdir()
    (folder / "deepseek-ai" / "V4.1").symlink_to(TINY)


@pytest.mark.parametrize(
    ("fill", "told"),
    [
        (lambda folder: None, "Name the folder that holds config.json"),
        (gguf, "GGUF files cannot be used"),
        (shards_alone, "fetch config.json"),
        (one_below, "deepseek-ai/V4.1: name that folder."),
    ],
    ids=["empty", "gguf", "shards alone", "one below"],
)
@pytest.mark.parametrize("command", [["ask", "hi", "--model"], ["plan"], ["chat", "--plain", "--model"]])
def test_a_folder_that_is_no_checkpoint_is_told_what_it_is(
    fill: Callable[[Path], None], told: str, command: list[str], tmp_path: Path, capsys: Output
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    fill(folder)
    assert main([*command, str(folder)]) == 4
    out, err = capsys.readouterr()
    assert out == "" and f"{folder} holds no config.json" in err and told in err


@pytest.mark.parametrize("command", [["ask", "hi"], ["plan"]])
def test_too_little_memory_is_refused_with_what_would_fit(command: list[str], capsys: Output) -> None:
    assert main([*command, "--ram", "100MB"]) == 3
    err = capsys.readouterr().err
    assert "may take 100 MB of " in err and "It fits with --ram " in err
