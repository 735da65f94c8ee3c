"""What a newcomer's slip is answered with: a word that is no command, a folder that is no checkpoint.

Looks at folders, never into files.
"""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from app.errors import UsageError
from app.paths import as_named
from app.sanitize import one_line

_MOST_NAMED = 12
"""Commands that a hint names; there are as many."""


def no_such_command(word: str, known: Collection[str], *, group: str = "", rest: Sequence[str] = ()) -> UsageError:
    """For `artesian help WORD`, or for the same below a command's group; `rest` stands behind the word."""
    close = get_close_matches(word.lower(), known, n=1)
    whose = f"`artesian {group}`" if group else "Artesian"
    hints = [f"Did you mean `artesian help {f'{group} ' if group else ''}{close[0]}`?"] if close else []
    if not close and known:
        page = f"artesian help {group}".strip()
        hints.append(f"There are {', '.join(list(known)[:_MOST_NAMED])}; `{page}` says what each does.")
    elif not close:
        hints.append(f"`artesian help {group}` says what it takes.")
    if not group and not close:
        hints.append(f"A question goes to the model: {asked(['help', word, *rest])}.")
    return UsageError(f"{whose} has no command {one_line(word)!r}", hint=" ".join(hints))


def unknown_command_hint(words: Sequence[str]) -> str:
    """For words that begin with no command: what was meant if they are a folder, or a question; "" otherwise."""
    if words and words[0].strip() and _is_folder(words[0]):
        return f"A model is named by an option: artesian --model {one_line(words[0])}."
    if len(words) > 1 and not any(word.startswith("-") for word in words):
        return f"A question goes to the model like this: {asked(words)}."
    return ""


def unused_words(words: Sequence[str], known: Collection[str]) -> tuple[str, str]:
    """For words that nothing takes: what is wrong, and what was meant if the first is a command; "" otherwise."""
    message = f"nothing takes {one_line(' '.join(words))!r} here"
    if words and words[0] in known:
        return message, f"A command comes first, its options after it: see `artesian {words[0]} --help`."
    return message, ""


def asked(words: Sequence[str]) -> str:
    """The words as a question on a command line."""
    return f'artesian ask "{one_line(" ".join(words)).replace(chr(34), chr(39))}"'


def no_checkpoint_hint(folder: Path) -> str:
    """For a folder without a config.json: what it may hold instead, and where a checkpoint is, if one lies below it."""
    # Here and not at the top: what looks for checkpoints imports the audit and the planner.
    from app.find_models import find_checkpoints

    try:
        names = [entry.name.lower() for entry in folder.iterdir()]
    except OSError:
        names = []
    if any(name.endswith(".safetensors") for name in names):
        return "The shards are there: fetch config.json to them, it is a few kB."
    if any(name.endswith(".gguf") for name in names):
        return "GGUF files cannot be used: Artesian reads the checkpoint as it was released, in .safetensors files."
    below = next(find_checkpoints([folder], lambda: False), None)
    if below is not None:
        return f"There is a checkpoint in {one_line(str(below))}: name that folder."
    return (
        "Name the folder that holds config.json and the .safetensors files; in the chat, /model looks for one. Without "
        "a model the bundled demo answers."
    )


def _is_folder(word: str) -> bool:
    try:
        return as_named(word).is_dir()
    except (OSError, ValueError):  # no name of a file
        return False
