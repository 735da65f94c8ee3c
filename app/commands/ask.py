"""`artesian ask`: one question, one answer. The answer goes to stdout as it comes, everything else to stderr."""

import secrets
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from app.ask_output import Sink, answering, figures, make_sink
from app.backends.base import Backend, OpenEvent, TurnRequest
from app.continuing import Continuation, last_effort, open_continued
from app.drafting import DraftOptions, make_drafting
from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import ModelChoice, choose_model, require_folder
from app.paths import cache_dir, rates_file, settings_file
from app.progress import ProgressLine
from app.reading import MemoryOptions, Reading, ReadingOptions, make_reading, make_wishes
from app.sanitize import one_line
from app.settings import Settings, load_settings
from app.stopping import StopKey
from app.usage import usage_dir
from app.values import EFFORTS, RULES, Effort, IndexOwner, Numerics, default_max_tokens, parse_effort
from engine.draft.settings import DraftSettings
from engine.errors import Stopped
from engine.events import Event, Notice, PrefillProgress, TurnDone
from engine.prompt import Message, SystemMessage, UserMessage
from engine.sampler_settings import default_settings, require_valid
from planner.plan import Wishes

_DEMO_NOTE = (
    "artesian: answering with the bundled demo, a tiny model that knows only Artesian's help. It is not DeepSeek.\n"
    "  Name the model's folder with --model, ARTESIAN_MODEL or `model` in the settings.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """What the command line said; None where it is silent."""

    question: str
    system: str
    raw: bool
    think: str | None
    sampling: dict[str, Any]
    """The fields of `SamplerSettings` that were given."""
    max_tokens: int | None
    output: Literal["text", "ids", "json"]
    show_thinking: bool | None
    continued: str | None = None
    """The transcript to go on with."""
    replay: bool = False
    save_state: bool = False


def run(
    *question: Annotated[str, Parameter(help="The question; - reads it from stdin.")],
    model: Annotated[str | None, Parameter(help="The model's folder. [default: as set, else the demo]")] = None,
    system: Annotated[str | None, Parameter(help="A system message before the question.")] = None,
    think: Annotated[str | None, Parameter(help=f"{EFFORTS}. [default: high; the demo: off]")] = None,
    show_thinking: Annotated[
        bool | None,
        Parameter(negative="--hide-thinking", help="Thinking on stderr. [default: when stderr is a terminal]"),
    ] = None,
    max_tokens: Annotated[int | None, Parameter(help="Most tokens of the reply, thinking included.")] = None,
    temperature: Annotated[float | None, Parameter(help="0 to 2; 0 takes the most likely token.")] = None,
    top_p: Annotated[float | None, Parameter(help="Keep the likeliest tokens up to this share.")] = None,
    top_k: Annotated[int | None, Parameter(help="Keep this many likeliest tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, Parameter(help="Drop tokens below this share of the likeliest one.")] = None,
    seed: Annotated[int | None, Parameter(help="Same seed, same answer. [default: drawn, and printed]")] = None,
    continue_: Annotated[
        str | None,
        Parameter(
            name="--continue",
            help="Go on with this saved conversation, [ID] or the latest; without a question with its cut-off reply. "
            "One word behind it is an ID: a question stands before it, or in quotes.",
        ),
    ] = None,
    replay: Annotated[bool, Parameter(help="With --continue: read it all again, as one prompt.")] = False,
    save_state: Annotated[
        bool, Parameter(help="With --continue: keep the engine's state beside it, so that nothing is read again.")
    ] = False,
    raw: Annotated[bool, Parameter(help="No chat template: the text continues as it stands.")] = False,
    ids: Annotated[bool, Parameter(help="Print token ids instead of text.")] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one event a line as JSON.")] = False,
    numerics: Annotated[
        Numerics | None,
        Parameter(help="Float32 activations, or the vendor's roundings. [default: exact]"),
    ] = None,
    index_owner: Annotated[
        IndexOwner,
        Parameter(help="Whose index keys a layer scores: the last published, or the nearest below."),
    ] = "published",
    chunk_tokens: Annotated[int | None, Parameter(help="Prompt tokens in one forward. [default: planned]")] = None,
    memory: Annotated[MemoryOptions | None, Parameter(name="*", group="Memory")] = None,
    reading: Annotated[ReadingOptions | None, Parameter(name="*", group="Reading")] = None,
    drafting: Annotated[DraftOptions | None, Parameter(name="*", group="Drafting")] = None,
) -> ExitCode:
    """Ask one question and print the answer.

    The answer goes to stdout as it comes; thinking, progress and figures go to stderr. Ctrl+C stops and keeps the
    text so far. Control characters in the answer are shown, not sent; --json carries the exact text.
    """
    if ids and as_json:
        raise UsageError("--ids and --json cannot be used together", hint="The --json events carry the ids too.")
    if raw and (system is not None or think is not None):
        which = "--system" if system is not None else "--think"
        raise UsageError(f"{which} has no effect with --raw", hint="--raw feeds the text as it stands.")
    if continue_ is not None and (raw or system is not None):
        which = "--raw" if raw else "--system"
        raise UsageError(f"{which} cannot be used with --continue", hint="The conversation has its beginning.")
    if continue_ is None and (replay or save_state):
        which = "--replay" if replay else "--save-state"
        raise UsageError(f"{which} has no effect without --continue")
    for name, value in {"think": think, "max_tokens": max_tokens, "chunk_tokens": chunk_tokens}.items():
        if value is not None and not RULES[name].accepts(value):
            raise UsageError(f"--{name.replace('_', '-')} must be {RULES[name].wanted}, not {value}")
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
    options = AskOptions(
        question="" if continue_ is not None and not question else read_question(question),
        system=system or "",
        raw=raw,
        think=think,
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_tokens=max_tokens,
        output="ids" if ids else "json" if as_json else "text",
        show_thinking=show_thinking,
        continued=continue_,
        replay=replay,
        save_state=save_state,
    )
    settings = load_settings(settings_file())
    choice = choose_model(model, settings)
    require_folder(choice)
    mode: Numerics = numerics or ("reference" if settings.numerics == "reference" else "exact")
    how = make_reading(reading or ReadingOptions(), settings, choice)
    draft = make_drafting(drafting or DraftOptions(), settings)
    wishes = make_wishes(memory or MemoryOptions(), settings, how, chunk_tokens=chunk_tokens, drafting=draft.mode)
    return answer(options, settings, choice, make_local(choice, mode, index_owner, how, wishes, draft))


def make_local(
    choice: ModelChoice,
    numerics: Numerics,
    index_owner: IndexOwner,
    reading: Reading,
    wishes: Wishes,
    draft: DraftSettings | None = None,
) -> Backend:
    """The in-process engine on the chosen folder."""
    # Here and not at the top: it brings torch, a second that `ask --help` and a mistyped option need not wait.
    from app.backends.local import LocalBackend

    return LocalBackend(
        choice.folder,
        numerics=numerics,
        index_owner=index_owner,
        reading=reading,
        wishes=wishes,
        draft=draft,
        # Half a second with the real tokenizer; the demo's is folded in no time and leaves nothing behind.
        token_map_cache=None if choice.is_demo else cache_dir() / "token-map",
        profiles=usage_dir(choice),
        rates=None if choice.is_demo else rates_file(),
    )


MOST_QUESTION_BYTES = 1 << 24
"""Of a question on stdin: 16 for each of a million tokens. Whether the model's own context holds it is told later."""


def read_question(words: tuple[str, ...]) -> str:
    """The question from the command line, or from stdin for a lone "-". Words are joined by blanks.

    From stdin the last line end is not part of the question. Raises: UsageError when there is no question.
    """
    if words == ("-",):
        if sys.stdin is None:
            raise UsageError("stdin is closed", hint="Give the question, or a stdin that holds it.")
        if sys.stdin.isatty():
            print("artesian: reading the question from the terminal; Ctrl+D on an empty line ends it", file=sys.stderr)
        raw = sys.stdin.buffer.read(MOST_QUESTION_BYTES + 1)
        if len(raw) > MOST_QUESTION_BYTES:
            raise UsageError(
                f"the question on stdin has more than {MOST_QUESTION_BYTES:,} bytes, no context holds that",
                hint="Shorten it; part of the context must be left for the answer.",
            )
        try:
            text = raw.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"stdin is not UTF-8 text: byte {error.start:,} is {raw[error.start]:#04x}",
                hint="Convert it first, for example with iconv.",
            ) from error
        text = text.removesuffix("\n").removesuffix("\r")
    elif "-" in words:
        raise UsageError("- stands for the whole question", hint="Give the question, or - to read it from stdin.")
    else:
        text = " ".join(words)
    if not text.strip():
        hint = 'Put it in quotes: artesian ask "what is an expert slot?" or give - to read it from stdin.'
        raise UsageError("there is no question", hint=hint)
    return text


def answer(options: AskOptions, settings: Settings, choice: ModelChoice, backend: Backend) -> ExitCode:
    """Run the turn on `backend` and write what it yields. The exit code is STOPPED when the user stopped it."""
    with answering():
        sys.stdout.write("")  # fails now rather than when gigabytes have been read
    request = make_request(options, settings, choice)
    going_on: Continuation | None = None
    # The backend is closed while Ctrl+C still means to quit: once asked to stop, a second one ends the process.
    with ExitStack() as undo:
        stop = undo.enter_context(StopKey())
        undo.callback(backend.close)
        if options.continued is not None:
            going_on = undo.enter_context(closing(go_on_with(options, settings, request)))
            request = replace(going_on.request, replay=options.replay)
        if choice.is_demo:
            sys.stderr.write(_DEMO_NOTE)
        shows_thinking = sys.stderr.isatty() if options.show_thinking is None else options.show_thinking
        sink = make_sink(options.output, shows_thinking=shows_thinking)
        done = _Turn(backend, request, sink, going_on).run(choice, stop)
        if going_on is not None:
            going_on.save_state(backend, say)
    sys.stderr.write(figures(done, request) + "\n")
    return ExitCode.STOPPED if done.reason == "stopped" else ExitCode.DONE


def say(text: str) -> None:
    """One line for the user."""
    sys.stderr.write(f"artesian: {one_line(text)}\n")


def go_on_with(options: AskOptions, settings: Settings, request: TurnRequest) -> Continuation:
    """The saved conversation and its next turn; `request` is what a conversation of its own would begin with.

    Raises: what `open_continued` raises; UsageError without a question where no reply was cut off.
    """
    assert options.continued is not None
    transcript = open_continued(options.continued, options.question)
    effort = request.effort if options.think is not None else last_effort(transcript, request.effort)
    most = options.max_tokens or settings.max_tokens or default_max_tokens(effort)
    return Continuation(
        transcript,
        options.question,
        effort=effort,
        sampling=request.sampling,
        max_tokens=most,
        saves_state=bool(options.save_state or settings.save_state),
    )


class _Turn:
    """One turn from the opening of the model to its last event, and where what comes goes."""

    def __init__(self, backend: Backend, request: TurnRequest, sink: Sink, going_on: Continuation | None) -> None:
        self._backend = backend
        self._request = request
        self._sink = sink
        self._going_on = going_on
        self._progress = ProgressLine(sys.stderr)

    def run(self, choice: ModelChoice, stop: StopKey) -> TurnDone:
        """Run it. Raises: what the backend raises."""
        backend, request, going_on = self._backend, self._request, self._going_on
        done: TurnDone | None = None
        error = ""
        try:
            facts = _facts(request, choice, backend.measure(request).prompt_tokens)
            with answering():
                self._sink.begin(facts)
            backend.open(self._opening, stop.pressed)
            if going_on is not None:
                going_on.restore(backend, self._say)
                going_on.begin(backend)
            for event in backend.generate(request, stop.pressed):
                if going_on is not None:
                    going_on.take(event)
                self._show(event)
                done = event if isinstance(event, TurnDone) else done
        except Exception as failure:
            error = "" if isinstance(failure, Stopped) else str(failure) or type(failure).__name__
            raise
        finally:
            self._progress.clear()
            try:
                with answering():
                    self._sink.finish()
            finally:  # what could not be shown is saved all the same
                if going_on is not None:
                    going_on.finish(error, self._say)
        if done is None:
            raise RuntimeError("the turn ended without saying so")
        return done

    def _show(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._say(event.text)
        elif isinstance(event, PrefillProgress):
            self._progress.show(event)
        else:
            self._progress.clear()
        with answering():
            self._sink.take(event)

    def _opening(self, event: OpenEvent) -> None:
        if isinstance(event, Notice):
            self._say(event.text)
            with answering():
                self._sink.take(event)
        else:
            self._progress.show(event)

    def _say(self, text: str) -> None:
        self._progress.clear()
        say(text)


def make_request(options: AskOptions, settings: Settings, choice: ModelChoice) -> TurnRequest:
    """The turn asked for: the options, then the settings, then what the model's folder or its vendor recommends.

    Raises: SamplerSettingsError for a value out of range; ConfigError when the folder's defaults cannot be read.
    """
    effort: Effort = None
    if not options.raw:
        effort = parse_effort(options.think or settings.think or ("off" if choice.is_demo else "high"))
    said = settings.sampling() | options.sampling
    said.setdefault("seed", secrets.randbits(32))
    sampling = replace(default_settings(choice.folder), **said)
    require_valid(sampling)
    messages: tuple[Message, ...] = (UserMessage(parts=(options.question,)),) if options.question else ()
    if options.system:
        messages = (SystemMessage(text=options.system), *messages)
    return TurnRequest(
        messages=() if options.raw else messages,
        raw_text=options.question if options.raw else None,
        effort=effort,
        sampling=sampling,
        max_tokens=options.max_tokens or settings.max_tokens or default_max_tokens(effort),
    )


def _facts(request: TurnRequest, choice: ModelChoice, prompt_tokens: int) -> dict[str, object]:
    """What the first line of `--json` says: everything that is needed to ask the same again."""
    return {
        "model": str(choice.folder),
        "demo": choice.is_demo,
        "prompt_tokens": prompt_tokens,
        "max_tokens": request.max_tokens,
        "think": "off" if request.effort is None else request.effort,
        "raw": request.raw_text is not None,
        **asdict(request.sampling),
    }
