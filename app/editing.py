"""The draft in the user's own editor: $VISUAL, else $EDITOR. The caller gives the terminal away for the time."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.errors import AppError

_FALLBACKS = ("sensible-editor", "nano", "vi")
_MOST_BYTES = 1 << 24


class EditorError(AppError):
    """The editor could not be run, or what it left cannot be used. The draft is as it was."""


def editor_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The editor and its arguments. Raises: EditorError when there is none, or its command line is not one."""
    for name in ("VISUAL", "EDITOR"):
        said = environ.get(name, "").strip()
        if not said:
            continue
        try:
            words = shlex.split(said)
        except ValueError as error:
            raise EditorError(f"${name} cannot be read: {error}", hint="Give it as in a shell.") from error
        if words and shutil.which(words[0]) is None:
            raise EditorError(f"${name} names {words[0]!r}, which is not there", hint=f"Set ${name} to your editor.")
        if words:
            return words
    for name in _FALLBACKS:
        if shutil.which(name) is not None:
            return [name]
    raise EditorError("neither $VISUAL nor $EDITOR is set", hint="Set EDITOR to your editor, for example nano.")


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ctrl+C while the editor has the terminal is meant for it; the chat, in the same group, would end of it.

    A handler and not SIG_IGN, which the editor would inherit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not this thread's to take
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def edit(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """`text` as the user left it in the editor, without the last line end an editor adds.

    Raises: EditorError, also when the editor ended with an error: then what it wrote is not taken.
    """
    command = editor_command(environ)
    try:
        # Closed to others, and gone afterwards.
        with tempfile.TemporaryDirectory(prefix="artesian-") as folder, _interrupts_are_the_editors():
            path = Path(folder) / "message.md"
            path.write_text(text, encoding="utf-8", newline="")
            code = subprocess.run([*command, str(path)], check=False).returncode
            if code:
                raise EditorError(f"{command[0]} ended with code {code}", hint="The draft is as it was.")
            size = path.stat().st_size
            if size > _MOST_BYTES:
                raise EditorError(f"the edited text has {size:,} bytes, no context holds that")
            edited = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise EditorError(f"the edited text is not UTF-8 (byte {error.start:,})") from error
    except OSError as error:
        raise EditorError(f"{command[0]}: {error.strerror or error}", hint="The draft is as it was.") from error
    return edited if text.endswith("\n") else edited.removesuffix("\n").removesuffix("\r")
