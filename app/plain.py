"""Line mode: the chat for pipes, screen readers and dumb terminals. A line is a message or a command.

Replies go to stdout as they come, everything else to stderr, a line at a time: no box, no colour but what `ask` has, no
cursor that moves. The model loads while the first line is written. Ctrl+C stops a reply and keeps it; twice quits.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.ask_output import TextSink, answering
from app.backends.base import Backend, RunFacts, TurnRequest
from app.errors import AppError, UsageError
from app.exits import ExitCode, exit_code_of
from app.host import Host, HostEvent, Measured, Opened, OpenFailed, Turn, TurnFailed
from app.model_choice import ModelChoice
from app.paths import data_dir
from app.plain_commands import Commands
from app.progress import CountProgress, progress_text
from app.report import failure, told_of_system
from app.sanitize import one_line, visible
from app.settings import Settings
from app.slash import Command, Say, parse
from app.stopping import StopKey
from app.transcripts.records import Node
from app.transcripts.session import SessionOf
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from app.tui.figures import footer_parts
from app.unsaved import unsaved_text
from engine.errors import EngineError, PromptError, Stopped
from engine.events import LoadProgress, Notice, PrefillProgress, TextDelta, ThinkingDelta, TurnDone, TurnStats
from storage.errors import StorageError

SAY_EVERY_S = 10.0
"""A wait says how far it is this often: a screen reader reads every line out."""
_POLL_S = 0.05
_MOST_LINE_BYTES = 1 << 24
_NOTHING_ASKED = (
    'Nothing came in on stdin, so nothing was asked. `artesian ask "..."` asks one question; for the chat run it in a '
    "terminal (a container needs -it for one)."
)


def wants_plain(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the screen cannot be had: stdin, stdout or stderr is no terminal, or it is a dumb one."""
    # The screen is painted on stderr, whatever stdout is.
    streams = (sys.stdout, sys.stderr)
    shows = _stdin_is_terminal() and all(stream is not None and stream.isatty() for stream in streams)
    return environ.get("TERM", "") in ("", "dumb") or not shows


def _stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # None after `<&-`


class SpacedProgress:
    """Says how far a wait is after its first second, and then every `SAY_EVERY_S`."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._next_s = 0.0

    def show(self, event: LoadProgress | CountProgress | PrefillProgress) -> None:
        """Say it, if it is time."""
        now_s = self._clock()
        if event.elapsed_s >= 1.0 and now_s >= self._next_s:
            self._next_s = now_s + SAY_EVERY_S
            self._tell(progress_text(event))


class PlainChat:
    """One run of line mode."""

    def __init__(
        self,
        *,
        backend_factory: Callable[[ModelChoice], Backend],
        choice: ModelChoice,
        store: TranscriptStore,
        settings: Settings,
        session_of: SessionOf,
        transcript: Transcript | None = None,
        out_folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes what the screen takes. Copies go to a file in `out_folder`."""
        self.choice = choice
        self.store = store
        self.settings = settings
        self.out_folder = out_folder or data_dir()
        self.facts: RunFacts | None = None
        self.last_turn: TurnStats | None = None
        self.shows_thinking = False
        self.replaces: Node | None = None
        """The message that the next line is another version of."""
        self._asked: Node | None = None  # what the turn that runs answers, unless it goes on with a reply
        self.is_done = False
        self.code = ExitCode.DONE
        self.session_of = session_of
        self.session = session_of(transcript or store.create(), choice)
        self._factory = backend_factory
        self._host = Host(lambda: backend_factory(choice))
        self._n_turns = 0
        self._progress = SpacedProgress(self.tell, clock)
        self._commands = Commands(self)

    def run(self) -> ExitCode:
        """Read lines until there are no more; how the last turn that failed or was stopped ended."""
        self._host.start()
        self._greet()
        n_lines = 0
        try:
            while not self.is_done and (line := self._read()) is not None:
                n_lines += 1
                self.enter(line)
            if not n_lines and not _stdin_is_terminal():
                self.tell(_NOTHING_ASKED)
        finally:
            self.leave()
            self._host.close()
        return self.code

    def enter(self, text: str) -> None:
        """Do what one line says."""
        entry = parse(text)
        try:
            if isinstance(entry, Command):
                self._commands.run(entry.action, entry.argument)
            elif isinstance(entry, Say):
                self.say(entry.text)
            else:
                self.tell(entry.problem)
        except BrokenPipeError:
            raise  # whoever read the replies has gone: nothing is left to be said
        except (AppError, EngineError, StorageError, OSError) as error:
            self.fail(error)

    def tell(self, text: str) -> None:
        """Something for the user that is not the reply."""
        sys.stderr.write(visible(text).rstrip("\n") + "\n")
        sys.stderr.flush()

    def fail(self, error: Exception) -> None:
        """Say what failed; it becomes the exit code."""
        self.code = exit_code_of(error)
        text = told_of_system(error) if isinstance(error, OSError) else ""
        self.tell(failure(text or str(error) or type(error).__name__, getattr(error, "hint", "")))

    def leave(self) -> None:
        """Close the conversation. What of it is on no drive then is told, and becomes the exit code."""
        transcript = self.session.transcript
        transcript.close()
        if text := unsaved_text(transcript):
            self.code = ExitCode.FAILED
            self.tell(failure(text))

    def use_model(self, choice: ModelChoice) -> None:
        """Answer with another model from now on, with its defaults. Raises: ConfigError, SamplerSettingsError."""
        self.session.take_defaults(self.session_of(self.session.transcript, choice))
        self.choice = choice
        self.facts = None
        self._host.reopen(lambda: self._factory(choice))

    def answer(self, node: Node, request: TurnRequest) -> None:
        """Run one turn: a reply under a message of the user, or more of a reply."""
        writer = self.session.begin_reply(node, request, self.facts)
        self.replaces, self._asked = None, node if node.role == "user" else None
        self._n_turns += 1
        sink = TextSink(shows_thinking=self.shows_thinking)
        began_thinking = False
        if not self._is_open():
            self.tell("the model is being loaded")
        unwritten: OSError | None = None
        with StopKey() as stop:
            turn = Turn(number=self._n_turns, request=request, sink=writer, states=self.session.states)
            self._host.submit(turn)
            stopping = ended = False
            while not ended:
                if (stop.pressed() or unwritten) and not stopping:
                    self._host.stop()
                    stopping = True
                events = self._host.mailbox.take()
                for event in events:
                    if isinstance(event, ThinkingDelta) and not began_thinking and not self.shows_thinking:
                        began_thinking = True
                        self.tell("thinking; /thinking shows it")
                    ended = self._take(event) or ended
                    try:
                        with answering():
                            if isinstance(event, TextDelta | ThinkingDelta) and unwritten is None:
                                sink.take(event)
                            if ended and unwritten is None:
                                sink.finish()
                    except OSError as error:  # the turn is stopped, and ends first: then all of it is saved
                        unwritten = error
                    if ended:
                        self._finish(event)
                if not events:
                    time.sleep(_POLL_S)
        if (problem := self.session.transcript.problem) is not None:
            self.tell(problem)
        if unwritten is not None:
            self.is_done = True  # nothing more could be shown
            raise unwritten

    def say(self, text: str) -> None:
        """Send a message, and show the reply as it comes."""
        if not text.strip():
            return
        replaced, self.replaces = self.replaces, None
        node = self.session.add_user(text) if replaced is None else self.session.edit(replaced, text)
        self.answer(node, self.session.request(node))

    def _take(self, event: HostEvent) -> bool:
        """One event that is not text; whether the turn ended with it."""
        match event:
            case Opened():
                self.facts = event.facts
            case LoadProgress() | CountProgress() | PrefillProgress():
                self._progress.show(event)
            case Notice():
                self.tell(f"artesian: {one_line(event.text)}")
            case TurnDone() | TurnFailed():
                return True
            case OpenFailed() | Measured() | _:
                pass  # a turn that cannot be run says so itself
        return False

    def _is_open(self) -> bool:
        """Whether the model was opened, as far as the engine has said by now."""
        for event in self._host.mailbox.take():
            self._take(event)
        return self.facts is not None

    def _finish(self, event: HostEvent) -> None:
        if isinstance(event, TurnDone):
            self.last_turn = event.stats
            self.code = ExitCode.STOPPED if event.reason == "stopped" else self.code
            self.tell("  " + " | ".join(footer_parts(event.stats, event.reason)))
        elif isinstance(event, TurnFailed) and isinstance(event.error, Stopped):
            self.code = ExitCode.STOPPED
            self.tell("artesian: stopped before the reply began")
        elif isinstance(event, TurnFailed):
            self.fail(event.error)
            if isinstance(event.error, PromptError) and self._asked is not None:
                self.replaces = self._asked  # it cannot be run as it is, nor can what would follow it
                self.tell("The next message replaces it.")

    def _greet(self) -> None:
        if not _stdin_is_terminal():
            if self.choice.is_demo:
                self.tell("The bundled demo answers, a tiny model that knows only Artesian's help. It is not DeepSeek.")
            return
        demo = "the bundled demo, a tiny model that knows only Artesian's help" if self.choice.is_demo else ""
        self.tell(f"Artesian with {demo or one_line(str(self.choice.folder))}.")
        if demo:
            self.tell(
                "--model MODEL names the real one's folder; `artesian plan --released` says what it takes and gives."
            )
        self.tell("A line is a message; a backslash at its end goes on with the next. /help lists the commands.")

    def _read(self) -> str | None:
        """The next message, or None at the end. Raises: UsageError for what is no text."""
        lines: list[str] = []
        while True:
            line = self._read_line("... " if lines else "> ")
            if line is None:
                return "\n".join(lines) if lines else None
            if not (_stdin_is_terminal() and line.endswith("\\")):
                return "\n".join([*lines, line])
            lines.append(line.removesuffix("\\"))

    def _read_line(self, prompt: str) -> str | None:
        if sys.stdin is None:
            return None
        if sys.stdin.isatty():
            with_editing = sys.stdout.isatty()
            if with_editing:
                import readline  # noqa: F401 - gives `input` its line editing; a pipe needs none
            for attempt in (1, 2):
                try:
                    return self._line_of_terminal(prompt if with_editing else "")
                except EOFError:
                    return None
                except KeyboardInterrupt:
                    self.tell("" if attempt == 2 else "\nCtrl+C again or /quit ends.")
            self.code = ExitCode.STOPPED
            return None
        return self._line_of_pipe()

    def _line_of_terminal(self, prompt: str) -> str:
        while True:
            try:
                return input(prompt)
            except UnicodeDecodeError:
                self.tell("That is not UTF-8 text, so it was not taken: write it again.")

    def _line_of_pipe(self) -> str | None:
        raw = sys.stdin.buffer.readline(_MOST_LINE_BYTES + 1)
        if not raw:
            return None
        if len(raw) > _MOST_LINE_BYTES:
            raise UsageError(f"a line on stdin has more than {_MOST_LINE_BYTES:,} bytes, no context holds that")
        try:
            return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin is not UTF-8 text: byte {error.start:,} of a line") from error
