"""The completion script, tried in a real bash."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from app.cli import COMMANDS, main
from app.commands.completion import SHELLS, script
from app.errors import UsageError

made = cache(script)
"""Once for all tests: it reads every command."""
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")

_COMPLETE = """\
complete_words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _artesian; printf '%s ' "${COMPREPLY[@]}"; echo
}
"""
_CASES = {
    ("artesian", "pl"): {"plan"},
    ("artesian", "mirror", "re"): {"repair", "remove"},
    ("artesian", "plan", "--wh"): {"--what-if"},
    ("artesian", "ask", "--io", ""): {"auto", "direct", "buffered"},
    ("artesian", "--mod"): {"--model"},  # without a command an option is the chat's
    ("artesian", "completion", "z"): {"zsh"},
}
"""What stands on the line, the last word being typed, and what it may become, of the commands' own signatures."""


@needs_bash
def test_bash_completes_commands_options_and_their_values(tmp_path: Path) -> None:
    file = tmp_path / "artesian.bash"
    file.write_text(made("bash"))
    lines = [f"complete_words {' '.join(repr(word) for word in words)}" for words in _CASES]
    lines += ["complete_words artesian ''", "complete -p artesian"]
    program = "\n".join([f"source {file}", _COMPLETE, *lines])
    result = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    *found, commands, registered = result.stdout.splitlines()
    assert [set(line.split()) for line in found] == list(_CASES.values())
    assert set(COMMANDS) < set(commands.split())
    assert "-o default" in registered  # a folder or a file where the script knows no value


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_takes_the_script_from_a_file_and_when_it_is_sourced(tmp_path: Path) -> None:
    (tmp_path / "_artesian").write_text(made("zsh"))
    setup = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; "
    for how in ("", f"source {tmp_path}/_artesian; "):
        # What zsh would call for the command, and whether that is the script's function once it was called.
        program = setup + how + "print $_comps[artesian]; autoload +X _artesian 2>/dev/null; which _artesian"
        result = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
        first, *function = result.stdout.splitlines()
        assert first == "_artesian" and any("--what-if" in line for line in function)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "artesian.fish").write_text(made("fish"))
    program = f'source {tmp_path}/artesian.fish; complete -C "artesian pl"; complete -C "artesian plan --wh"'
    command = ["fish", "--no-config", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)  # it names files too
    assert [line.split("\t")[0] for line in result.stdout.splitlines() if line] == ["plan", "--what-if"]


def test_every_shell_has_a_script_of_its_own() -> None:
    begins = {"bash": "# Bash completion for artesian", "zsh": "#compdef artesian", "fish": "# Fish completion"}
    assert set(begins) == set(SHELLS)
    for shell in SHELLS:
        assert made(shell).startswith(begins[shell]) and "what-if" in made(shell)


def test_the_shell_is_the_users_own_unless_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 0
    assert capsys.readouterr().out == made("fish")


def test_an_unknown_shell_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(UsageError, match="tcsh"):
        from app.commands.completion import run

        run()
