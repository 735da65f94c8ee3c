"""`artesian` without a command, and `artesian chat`: the chat itself."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from app.backends.base import Backend
from app.command_words import LATEST
from app.commands.ask import make_local
from app.continuing import last_effort
from app.drafting import DraftOptions
from app.errors import UsageError
from app.exits import ExitCode
from app.model_choice import ModelChoice, choose_model, require_folder
from app.paths import settings_file
from app.plain import PlainChat, wants_plain
from app.reading import MemoryOptions, ReadingOptions
from app.report import failure
from app.run_options import RunOptions
from app.settings import Settings, load_settings
from app.transcripts.session import ChatSession, SessionOf
from app.transcripts.store import TranscriptStore, user_store
from app.transcripts.transcript import Transcript
from app.unsaved import unsaved_text
from app.values import EFFORTS, RULES, Effort, IndexOwner, Numerics, parse_effort
from engine.sampler_settings import SamplerSettings, default_settings, require_valid

_STDIN = 0
"""The terminal; `open_chat` is for where stdin is one."""


def run(
    *,
    model: Annotated[str | None, Parameter(help="The model's folder. [default: as set, else the demo]")] = None,
    resume: Annotated[
        str | None, Parameter(name="--continue", help="Go on with a saved conversation, [ID] or the latest.")
    ] = None,
    plain: Annotated[
        bool, Parameter(help="A line at a time, for pipes and screen readers. [default: without a terminal]")
    ] = False,
    think: Annotated[str | None, Parameter(help=f"{EFFORTS}. [default: high; the demo: off]")] = None,
    max_tokens: Annotated[int | None, Parameter(help="Most tokens of a reply, thinking included.")] = None,
    numerics: Annotated[
        Numerics | None, Parameter(help="Float32 activations, or the vendor's roundings. [default: exact]")
    ] = None,
    index_owner: Annotated[
        IndexOwner, Parameter(help="Whose index keys a layer scores: the last published, or the nearest below.")
    ] = "published",
    chunk_tokens: Annotated[int | None, Parameter(help="Prompt tokens in one forward. [default: planned]")] = None,
    memory: Annotated[MemoryOptions | None, Parameter(name="*", group="Memory")] = None,
    reading: Annotated[ReadingOptions | None, Parameter(name="*", group="Reading")] = None,
    drafting: Annotated[DraftOptions | None, Parameter(name="*", group="Drafting")] = None,
) -> ExitCode | int:
    """Open the chat. It takes typing at once, while the model loads."""
    for name, value in {"think": think, "max_tokens": max_tokens, "chunk_tokens": chunk_tokens}.items():
        if value is not None and not RULES[name].accepts(value):
            raise UsageError(f"--{name.replace('_', '-')} must be {RULES[name].wanted}, not {value}")
    settings = load_settings(settings_file())
    choice = choose_model(model, settings)
    require_folder(choice)
    mode: Numerics = numerics or ("reference" if settings.numerics == "reference" else "exact")
    options = RunOptions(
        memory=memory or MemoryOptions(),
        reading=reading or ReadingOptions(),
        drafting=drafting or DraftOptions(),
        chunk_tokens=chunk_tokens,
        numerics=numerics,
    )

    def backend(chosen: ModelChoice) -> Backend:
        how, draft, wishes = options.resolve(settings, chosen)
        return make_local(chosen, mode, index_owner, how, wishes, draft)

    # What cannot be used is said here, and not in the middle of the chat.
    options.resolve(settings, choice)
    store = user_store()
    transcript = None
    if resume is not None:
        transcript = store.latest() if resume == LATEST else store.open(resume)
    session_of = _session_maker(settings, think, max_tokens)
    if plain or wants_plain():
        return open_plain(backend, choice, store, settings, session_of, transcript)
    return open_chat(backend, choice, store, settings, session_of, transcript, options)


def open_plain(
    backend_factory: Callable[[ModelChoice], Backend],
    choice: ModelChoice,
    store: TranscriptStore,
    settings: Settings,
    session_of: SessionOf,
    transcript: Transcript | None,
) -> ExitCode:
    """Chat in lines until there are no more; how the last turn that failed or was stopped ended."""
    return PlainChat(
        backend_factory=backend_factory,
        choice=choice,
        store=store,
        settings=settings,
        session_of=session_of,
        transcript=transcript,
    ).run()


def open_chat(
    backend_factory: Callable[[ModelChoice], Backend],
    choice: ModelChoice,
    store: TranscriptStore,
    settings: Settings,
    session_of: SessionOf,
    transcript: Transcript | None,
    options: RunOptions,
) -> int:
    """Run the app on this terminal until the user leaves it; the exit code, 128 and the number after a signal.

    What of the conversation is not on the drive then is tried once more, and told of when that fails, with FAILED.
    """
    # Here and not at the top: Textual takes half a second that `--help` need not wait.
    from app.tui.app import ArtesianApp
    from app.tui.hangup import HangupWatch

    app = ArtesianApp(
        backend_factory=backend_factory,
        choice=choice,
        store=store,
        settings=settings,
        session_of=session_of,
        transcript=transcript,
        # Nobody has named a model, nor chatted with the demo: it is time to say what there is.
        is_first_run=choice.origin == "demo" and not settings_file().exists() and not store.folder.exists(),
        options=options,
    )
    ended = is_saved = False
    try:
        with HangupWatch(_STDIN, app.close):
            app.run(mouse=settings.mouse is not False)
    finally:
        ended = app.close()  # which tries once more to save
        is_saved = _tell_unsaved(app.chat.conversation.transcript)
    code = app.return_code or (ExitCode.DONE if is_saved else ExitCode.FAILED)
    if not ended:
        # A read that does not come back holds its thread, and the interpreter would wait for it or crash around it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell_unsaved(transcript: Transcript) -> bool:
    """Say on stderr what is lost of a conversation that was closed; whether nothing is."""
    text = unsaved_text(transcript)
    if not text:
        return True
    print(failure(text), file=sys.stderr)
    return False


def _session_maker(settings: Settings, think: str | None, max_tokens: int | None) -> SessionOf:
    """Gives a conversation its defaults: the options, then the settings, then what the model's folder recommends.

    What it gives raises SamplerSettingsError and ConfigError.
    """
    given: dict[str, Any] = settings.sampling()
    most = max_tokens or settings.max_tokens

    def make(transcript: Transcript, choice: ModelChoice) -> ChatSession:
        effort: Effort = parse_effort(think or settings.think or ("off" if choice.is_demo else "high"))
        sampling: SamplerSettings = replace(default_settings(choice.folder), **given)
        require_valid(sampling)
        # Without being told otherwise a conversation goes on in its mode: in another, all of it is read again.
        mode = effort if think is not None else last_effort(transcript, effort)
        saves_state = bool(settings.save_state)
        return ChatSession(transcript, effort=mode, sampling=sampling, max_tokens=most, saves_state=saves_state)

    return make
