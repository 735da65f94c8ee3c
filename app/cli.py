"""The `artesian` command: its sub-commands, its exit codes, and the net under all of them.

A sub-command is named by an import string, so its module is read only when it is used: `--help` and `--version` load
neither torch nor Textual.
"""

import os
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, TextIO, cast

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, UnknownCommandError, UnusedCliTokensError

from app import logs
from app.command_words import free_dash, name_continued, require_filled
from app.exits import MEANINGS, ExitCode, exit_code_of
from app.help import TwoColumns
from app.paths import log_file
from app.report import artesian_version, failure, told_of_system
from app.short_memory import lacks_memory, told
from app.slips import no_such_command, unknown_command_hint, unused_words
from app.streams import ClosedStream, LossyStream

COMMANDS: dict[str, tuple[str, str]] = {
    "chat": (
        "[OPTIONS]",
        "Open the chat; what `artesian` does without a command.\n\n"
        "It takes typing at once, while the model loads. Conversations are saved as they go on.",
    ),
    "ask": (
        "[OPTIONS] QUESTION",
        "Ask one question and print the answer.\n\n"
        "The answer goes to stdout as it comes; thinking, progress and figures go to stderr. Ctrl+C stops and keeps "
        "the text so far, Ctrl+C twice quits at once. Control characters in the answer are shown, not sent; --json "
        "carries the exact text.",
    ),
    "audit": (
        "[OPTIONS] MODEL",
        "Check from the shard headers whether a checkpoint is whole.\n\n"
        "Works on a folder that is still downloading, and on the first few MB of each shard.",
    ),
    "plan": (
        "[OPTIONS] [MODEL]",
        "Show what would live where and how fast it would be.\n\n"
        "Reads shard headers only and loads nothing; works before the download, from config.json and the first MB of "
        "each shard. Exit code 3 when it does not fit, with the smallest change that would.",
    ),
    "verify": (
        "[OPTIONS] MODEL --golden DIR",
        "Compare the engine with golden results.\n\n"
        "Prints the worst difference of each kind; exit code 1 when one is too large.",
    ),
    "doctor": (
        "[OPTIONS]",
        "Show versions, CPU features, direct I/O, GPUs and paths.\n\nSend its output with a bug report.",
    ),
    "completion": (
        "[bash|zsh|fish]",
        "Print a script by which the shell completes commands and options.\n\n"
        "bash: artesian completion bash > ~/.local/share/bash-completion/completions/artesian\n\n"
        "zsh: artesian completion zsh > _artesian, in a folder of $fpath\n\n"
        "fish: artesian completion fish > ~/.config/fish/completions/artesian.fish\n\n"
        "For the session at hand in bash: source <(artesian completion bash)",
    ),
}
"""Sub-command: its arguments and its help; the command is `run` in the module of that name under `app.commands`."""

BENCHES: dict[str, tuple[str, str]] = {
    "cache": (
        "[OPTIONS]",
        "Replay recorded requests for experts over every policy and size.\n\n"
        "Prints how many experts each would have read from the drives, what no policy can beat, and the best. "
        "--synthetic SEED makes a trace up when there is no recorded one.",
    ),
    "decode": (
        "[OPTIONS] MODEL",
        "Measure where the time of a prompt and of a token goes.\n\n"
        "A prompt from cold slots, decode steps whose experts are in memory, and decode steps as they come: seconds, "
        "bytes and rates of each phase, beside the least that the bytes allow at what memory and drives gave in the "
        "same minute. Ctrl+C ends it with the rounds that are complete.",
    ),
    "gpu": (
        "[OPTIONS] [MODEL...]",
        "Measure a graphics card, and compare what the model says with its parts there.\n\n"
        "Rates of the card, products of released shapes against slow decoding, golden results in both numeric modes, "
        "and MODEL in memory only, on the card only and mixed. No card has run it yet; --emulate shows without one "
        "that it works. The exit code is 1 when anything differs, 6 when there is no card.",
    ),
    "io": (
        "[OPTIONS] MODEL",
        "Measure how fast the drives give experts and rows.\n\n"
        "Whole experts in random order by depth and size of reads, direct and through the page cache, and 4 KB reads, "
        "each beside a plain sequential read; every drive alone, and all together. Ctrl+C ends it with the rounds that "
        "are complete.",
    ),
    "kernels": (
        "[OPTIONS]",
        "Measure how fast the kernels consume stored weights.\n\n"
        "Weights of released shapes, cold, by rows of activations, on the native and the torch path, against what "
        "memory and the processor gave in the same rounds. Ctrl+C ends it with the rounds that are complete.",
    ),
    "prompt": (
        "[OPTIONS]",
        "Measure how time and memory grow with a prompt.\n\n"
        "A made-up model of tiny widths with the released window and numbers of chosen positions reads prompts of "
        "growing length. Only choosing positions may take more for each token of a longer one. Ctrl+C ends it with the "
        "lengths that are complete.",
    ),
    "slice": (
        "[OPTIONS] OUT",
        "Make a synthetic checkpoint of released widths.\n\n"
        "Few layers, all experts, random weights, and engram tables with the released number of rows as sparse files, "
        "to measure a machine without the 510 GB. It answers nonsense at the speed a real one would.",
    ),
}
"""`artesian bench NAME` likewise; the command is `run` in `app.commands.bench_NAME`."""

MIRRORS: dict[str, tuple[str, str]] = {
    "scan": (
        "[OPTIONS]",
        "List every mounted file system that could hold copies of the model's shards.\n\n"
        "With its free room, its drive, and how fast that reads if it was ever measured (--measure).",
    ),
    "propose": (
        "[OPTIONS]",
        "Say for each place what copies there would buy.\n\n"
        "Which shards fit, for what share of the reads, how much faster reads get and how long copying takes.",
    ),
    "copy": (
        "--to DIR [OPTIONS]",
        "Copy shards to another drive, and have later runs read from both.\n\n"
        "Every copy is read back from the drive before it counts. Ctrl+C stops after the block under way, and the same "
        "command goes on there, also after a crash.",
    ),
    "split": (
        "--to DIR [OPTIONS]",
        "Move shards to another drive, where there is no room for copies.\n\n"
        "Copied, read back and noted in the settings, and only then removed from the model's folder.",
    ),
    "join": ("DIR [OPTIONS]", "Move a split's shards back into the model's folder."),
    "check": (
        "DIR [OPTIONS]",
        "Compare a mirror's copies with what was copied.\n\nNames the first byte that differs.",
    ),
    "repair": ("DIR [OPTIONS]", "Read every byte of a mirror and copy again what differs or is missing."),
    "remove": ("DIR [OPTIONS]", "Take a mirror away. The model's own files stay."),
    "status": ("[DIR...] [OPTIONS]", "List the model's mirrors and what each holds."),
}
"""`artesian mirror NAME` likewise; the command is the function of that name."""
_MIRROR_MODULE = {name: "mirror_look" if name in ("scan", "propose", "status") else "mirror_do" for name in MIRRORS}

TRANSCRIPTS: dict[str, tuple[str, str]] = {
    "list": ("[OPTIONS]", "List the conversations, the one changed last first."),
    "show": ("ID [OPTIONS]", "Print one, the branch in view; with --json all of it."),
    "search": ("WORDS... [OPTIONS]", "Find the messages that have all the words.\n\nExit code 1 when there are none."),
    "export": (
        "ID [md|json|html] [OPTIONS]",
        "Write one for other programs: Markdown, JSON, or a web page.\n\n"
        "Markdown and page show the branch in view and carry nothing that runs or loads; JSON has all branches.",
    ),
    "copy": ("ID", "Make a copy to go on with, also of one that a window has open.\n\nPrints its id."),
    "rename": ("ID [TITLE...]", "Give one a title; without one its first line."),
    "delete": ("ID", "Delete one; for 30 days `undo` brings it back.\n\nPrints what to undo it by."),
    "undo": ("[TOKEN]", "Bring the one deleted last back, or another.\n\nPrints its id."),
    "path": ("[ID]", "Print where one is, or all of them."),
    "replay": (
        "ID [OPTIONS]",
        "Make a reply again and compare it token by token.\n\n"
        "The conversation is run as it was, turn by turn, with the seeds and settings it had. Says equal, or the first "
        "token that differs and what has changed since; exit code 1 then.",
    ),
}
"""`artesian transcripts NAME` likewise; ids may be cut short as long as they fit one conversation."""

_GROUPS: Mapping[str, Mapping[str, object]] = {"bench": BENCHES, "mirror": MIRRORS, "transcripts": TRANSCRIPTS}

_HELP = """\
Runs DeepSeek-V4.1-Flash on a machine that cannot hold it, by leaving the model on the drives.

With no command it opens the chat, with the options of `artesian chat`. `artesian help COMMAND` explains a command."""


_TOP_FLAGS = ("--help", "-h", "--version")
"""What is meant for `artesian` itself; any other option without a command is one of the chat."""


def _exit_codes() -> str:
    return "Exit codes:\n\n" + "\n".join(f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


def make_app() -> App:
    """The command line: the commands of `COMMANDS`, and `--debug`, which stands anywhere."""
    app = App(
        name="artesian",
        help=_HELP,
        help_epilogue=_exit_codes(),
        help_format="plaintext",
        help_formatter=TwoColumns(),
        version=artesian_version,
        usage="Usage: artesian [COMMAND] [OPTIONS]\n",
        default_parameter=Parameter(negative=""),
        suppress_keyboard_interrupt=False,
    )
    app.meta.suppress_keyboard_interrupt = False
    for name, (arguments, text) in COMMANDS.items():
        usage = f"Usage: artesian {name} {arguments}\n"
        app.command(f"app.commands.{name}:run", name=name, help=text, usage=usage)

    bench = App(name="bench", help="Measure this machine.", usage="Usage: artesian bench COMMAND [OPTIONS]\n")
    for name, (arguments, text) in BENCHES.items():
        usage = f"Usage: artesian bench {name} {arguments}\n"
        bench.command(f"app.commands.bench_{name}:run", name=name, help=text, usage=usage)
    app.command(bench)

    mirror = App(
        name="mirror",
        help="Copies of the model on other drives, to read from both at once.",
        usage="Usage: artesian mirror COMMAND [OPTIONS]\n",
    )
    for name, (arguments, text) in MIRRORS.items():
        usage = f"Usage: artesian mirror {name} {arguments}\n"
        mirror.command(f"app.commands.{_MIRROR_MODULE[name]}:{name}", name=name, help=text, usage=usage)
    app.command(mirror)

    transcripts = App(
        name="transcripts",
        help="The conversations on disk.",
        usage="Usage: artesian transcripts COMMAND [OPTIONS]\n",
    )
    for name, (arguments, text) in TRANSCRIPTS.items():
        usage = f"Usage: artesian transcripts {name} {arguments}\n"
        function = "list_all" if name == "list" else name  # `list` is taken
        transcripts.command(f"app.commands.transcripts:{function}", name=name, help=text, usage=usage)
    app.command(transcripts)

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        debug: Annotated[bool, Parameter(help="Show the traceback of a failure.", show_default=False)] = False,
    ) -> int:
        if tokens[:1] == ("help",):
            tokens = _helped(tokens[1:])
        elif not tokens or (tokens[0].startswith("-") and tokens[0] not in _TOP_FLAGS):
            tokens = ("chat", *tokens)
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        return result if isinstance(result, int) else ExitCode.DONE

    return app


def _helped(words: Sequence[str]) -> tuple[str, ...]:
    """`artesian help WORDS` as the option of the commands that the words name. Raises: UsageError for another word."""
    if list(words) == ["help"]:
        return ("--help",)
    named: list[str] = []
    known: Collection[str] = (*COMMANDS, *_GROUPS)
    for i, word in enumerate(words):
        if word not in known:
            raise no_such_command(word, known, group=" ".join(named), rest=words[i + 1 :])
        named.append(word)
        known = tuple(_GROUPS.get(word, ()))
    return (*named, "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; whatever fails is shown here, once."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    logs.start(log_file())
    _prepare_streams()
    try:
        require_filled(words)
        taken = free_dash(name_continued(words))
        code = make_app().meta(taken, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as error:
        # What prints the help leaves like this when the pipe is closed.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _closed_pipe()
    except CycloptsError as error:
        return _wrong_use(error, words)
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, debug="--debug" in words)
    return int(code) if isinstance(code, int) else int(ExitCode.DONE)


def _prepare_streams() -> None:
    """Give output a place to go, whatever the caller did to it."""
    # A stream closed with `>&-` is None, and print() would send what is meant for stderr to stdout.
    if sys.stdout is None:
        sys.stdout = cast(TextIO, ClosedStream())
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets \u escapes instead of a UnicodeEncodeError in the middle of an answer.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, LossyStream):
        sys.stderr = cast(TextIO, LossyStream(sys.stderr))


def _closed_pipe() -> int:
    """The reader of stdout has gone, having seen enough (`| head`): nothing more to say."""
    # What is still buffered must not fail a second time when the interpreter flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(ExitCode.DONE)


def _wrong_use(error: CycloptsError, words: Sequence[str]) -> int:
    command = " ".join(["artesian", *(error.command_chain or ())])
    hint = f"See `{command} --help`."
    if isinstance(error, UnknownCommandError) and not error.command_chain:
        hint = f"{unknown_command_hint([word for word in words if word != '--debug'])} {hint}".strip()
    message = str(error).strip()
    if isinstance(error, UnusedCliTokensError):
        message, meant = unused_words(error.unused_tokens or (), (*COMMANDS, *_GROUPS))
        hint = meant or hint
    print(failure(message, hint), file=sys.stderr)
    return int(ExitCode.USAGE)


def _failed(error: BaseException, *, debug: bool) -> int:
    """Show `error`; the traceback goes to the log, or to stderr with `--debug`."""
    code = exit_code_of(error)
    if code is ExitCode.STOPPED:
        print(failure(str(error) or "stopped"), file=sys.stderr)  # a copy says that it goes on where it was
        return int(code)
    trace = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(trace)
    else:
        logs.log.error("exit code %d\n%s", code, trace)
    hint = getattr(error, "hint", None)
    if hint is not None:
        print(failure(str(error), hint), file=sys.stderr)
    elif lacks_memory(error):
        print(failure(*told(error)), file=sys.stderr)
    elif isinstance(error, OSError) and (text := told_of_system(error)):
        print(failure(text), file=sys.stderr)
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = "Run it again with --debug for the traceback." if debug else f"The traceback is in {log_file()}."
        print(failure(f"unexpected failure: {text}", "" if debug else where), file=sys.stderr)
    return int(code)
