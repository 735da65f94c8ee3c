"""The running half of `artesian transcripts replay`: opens the model a reply was made by and compares."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import cast

from app.backends.base import OpenEvent, RunFacts
from app.commands import ask
from app.drafting import DraftOptions, make_drafting
from app.errors import TranscriptError
from app.exits import ExitCode
from app.model_choice import ModelChoice, choose_model, require_folder
from app.paths import demo_folder, settings_file
from app.progress import ProgressLine
from app.reading import MemoryOptions, ReadingOptions, make_reading, make_wishes
from app.report import envelope
from app.sanitize import one_line
from app.settings import Settings, load_settings
from app.stopping import StopKey
from app.transcripts.records import Node
from app.transcripts.replay import Compared, compare, steps
from app.values import IndexOwner, Numerics
from engine.events import Event, Notice, PrefillProgress


def run_again(
    transcript_id: str, path: Sequence[Node], *, turn: int | None, reread: bool, model: str | None, as_json: bool
) -> ExitCode:
    """Run the steps to a reply and print how each compares. Raises: TranscriptError; what opening a model raises."""
    wanted = steps(path, turn, reread=reread)
    facts = wanted[-1].run.facts
    if facts is None and model is None:
        raise TranscriptError("the reply does not say by which model it was made", hint="Name it with --model.")
    settings = load_settings(settings_file())
    choice = _made_by(facts, model, settings)
    require_folder(choice)
    how = make_reading(ReadingOptions(), settings, choice)
    draft = make_drafting(DraftOptions(), settings)
    backend = ask.make_local(
        choice,
        cast(Numerics, facts.numerics) if facts and facts.numerics in ("exact", "reference") else "exact",
        cast(IndexOwner, facts.index_owner) if facts and facts.index_owner == "nearest" else "published",
        how,
        make_wishes(MemoryOptions(), settings, how, drafting=draft.mode),
        draft,
    )
    backend.measure(wanted[-1].request)  # so that the plan has room for a long conversation
    progress = ProgressLine(sys.stderr)

    def opening(event: OpenEvent) -> None:
        take(event) if isinstance(event, Notice) else progress.show(event)

    def take(event: Event) -> None:
        if isinstance(event, Notice):
            progress.clear()
            sys.stderr.write(f"artesian: {one_line(event.text)}\n")
        elif isinstance(event, PrefillProgress):
            progress.show(event)
        else:
            progress.clear()

    results: list[Compared] = []
    stopped = False
    with closing(backend), StopKey() as stop:
        try:
            backend.open(opening, stop.pressed)
            for step in wanted:
                result = compare(step, backend, stop.pressed, take)
                if result is None:
                    stopped = True
                    break
                results.append(result)
                if not as_json:
                    progress.clear()
                    print("\n".join(_lines(result)), flush=True)
        finally:
            progress.clear()
    equal = not stopped and all(result.equal for result in results)
    if as_json:
        data = {"id": transcript_id, "equal": equal, "complete": not stopped, "turns": [asdict(one) for one in results]}
        print(envelope("transcript_replay", data))
    if stopped:
        return ExitCode.STOPPED
    return ExitCode.DONE if equal else ExitCode.FAILED


def _made_by(facts: RunFacts | None, model: str | None, settings: Settings) -> ModelChoice:
    """The model that `--model` names, else the one the reply was made by, wherever the demo lies now."""
    if model is not None or facts is None:
        return choose_model(model, settings)
    if facts.is_demo:
        return ModelChoice(folder=demo_folder(), origin="demo", is_demo=True)
    return ModelChoice(folder=Path(facts.model), origin="the transcript", is_demo=False)


def _lines(result: Compared) -> list[str]:
    count = f"{result.n_tokens:,} token{'' if result.n_tokens == 1 else 's'}"
    if result.equal:
        lines = [f"turn {result.turn}: equal, {count}"]
    else:
        then, now = (_token(token) for token in (result.token_then, result.token_now))
        lines = [f"turn {result.turn}: differs at token {result.n_tokens + 1:,}: {then} then, {now} now"]
    lines += [f"  {one.name}: {one_line(one.then)} then, {one_line(one.now)} now" for one in result.changes]
    if result.reused_then not in (None, result.reused_now):
        lines.append(f"  tokens not read again: {result.reused_then:,} then, {result.reused_now:,} now")
    if not result.equal and len(lines) == 1:
        lines.append("  nothing it depends on is known to have changed")
    return lines


def _token(token: int | None) -> str:
    return "the end" if token is None else str(token)
