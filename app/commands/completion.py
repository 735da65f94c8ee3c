"""`artesian completion`: the script by which a shell completes commands, options and their values."""

import os
from typing import Annotated, Literal

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")


def run(
    shell: Annotated[Shell | None, Parameter(name="SHELL", help="The shell. [default: that of $SHELL]")] = None, /
) -> ExitCode:
    """Print the script. Raises: UsageError when $SHELL is none of those known."""
    print(script(shell or _own_shell()), end="")
    return ExitCode.DONE


def script(shell: Shell) -> str:
    """The completion script. It is made of the commands as they are; a later version wants it made again."""
    # Here and not at the top: both import this module by its name.
    from app.cli import make_app
    from app.commands.chat import run as chat

    app = make_app()
    # Options without a command are the chat's, which the parser is not told but sent there.
    app.default(chat)
    text = app.generate_completion(shell=shell)
    if shell == "bash":
        # Where the script knows no value there is a folder or a file to be named: readline's own names serve.
        text = text.replace("\ncomplete -F ", "\ncomplete -o default -F ")
    elif shell == "zsh":
        # So that it works from a file of its usual name, which zsh then calls, and when it is sourced.
        text = text.replace("_cyclopts_artesian", "_artesian").rstrip() + _ZSH_END
    return text


_ZSH_END = """

if [ "$funcstack[1]" = "_artesian" ]; then
  _artesian "$@"
else
  compdef _artesian artesian
fi
"""


def _own_shell() -> Shell:
    name = os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - of a variable, which may be blank
    for shell in SHELLS:
        if name == shell:
            return shell
    raise UsageError(
        f"there is no completion for {name or 'an unnamed shell'}", hint=f"Name one of {', '.join(SHELLS)}."
    )
