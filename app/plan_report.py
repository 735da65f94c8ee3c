"""The plan of a model for a screen: what lives where, the figures, what more would buy, and the speed in a sentence."""

import shutil
from contextlib import suppress
from pathlib import Path

from app.errors import AppError
from app.model_choice import ModelChoice
from app.paths import rates_file
from app.plan_text import shown
from app.planning import (
    RELEASED_BYTES,
    RELEASED_NAME,
    Model,
    gather_facts,
    plan_for,
    profile_shares,
    read_model,
    released_model,
)
from app.rates import RateBook
from app.report import format_bytes, format_seconds, said
from app.run_options import RunOptions
from app.sanitize import one_line
from app.settings import Settings
from app.turn_report import Line, Section
from planner.errors import PlanError
from planner.explain import ASSUMED_RATES, SAMPLE_PROMPT, Explanation, explain
from storage.errors import StorageError

SAMPLE_ANSWER = 200
"""Tokens of an answer of some paragraphs, which the expected time is given for."""


def explain_choice(choice: ModelChoice, settings: Settings, options: RunOptions) -> Explanation:
    """The plan for a model as the options and the settings want it. Reads headers only; may take a second.

    Raises: PlanError when it does not fit; ConfigError, StorageError, OSError, AppError for what cannot be read.
    """
    reading, _, _ = options.resolve(settings, choice)
    mode = options.numerics or settings.numerics
    return _explain(choice, read_model(choice.folder, reading.splits, numerics=mode), settings, options)


def real_model_text(settings: Settings, options: RunOptions, folder: Path) -> str:
    """What the released model takes, and how fast it would be here, in a few sentences, for who has only the demo.

    `folder` is one on the drive where it would lie. Takes half a second.
    """
    choice = ModelChoice(folder=folder, origin="settings", is_demo=False)
    model = released_model(folder, numerics=options.numerics or settings.numerics)
    takes = f"The real model, {RELEASED_NAME}, takes {format_bytes(RELEASED_BYTES)} on the drives"
    with suppress(OSError):
        takes += f" ({format_bytes(shutil.disk_usage(folder).free)} are free on the drive of {one_line(str(folder))})"
    try:
        explanation = _explain(choice, model, settings, options)
        sentence = speed_sentence(explanation)
        speed = sentence[0].lower() + sentence[1:]
        if any(figure.note == ASSUMED_RATES for figure in explanation.figures):
            speed += " Nothing of this machine was measured for that yet."
    except (AppError, PlanError, StorageError, OSError) as error:
        speed = one_line(said(error))
    return f"{takes}. On this machine: {speed}"


def _explain(choice: ModelChoice, model: Model, settings: Settings, options: RunOptions) -> Explanation:
    reading, _, wishes = options.resolve(settings, choice)
    facts = gather_facts((model.folder, *reading.splits, *reading.mirrors), RateBook(rates_file()))
    shares = profile_shares(choice, model.footprint.config, model.outline.marks, model.sources)
    planned = plan_for(facts, model.footprint, wishes, shares)
    return explain(facts, model.footprint, planned.plan, wishes, planned.abilities, shares)


def plan_sections(explanation: Explanation) -> list[Section]:
    """What lives where, the figures, and what one more step would buy."""
    sections = []
    for place in explanation.places:
        used = sum(row.n_bytes for row in place.rows)
        title = f"{place.title}: {format_bytes(used)}"
        if place.ceiling_bytes != used:
            title += f" of {format_bytes(place.ceiling_bytes)}, never above"
        lines = tuple(
            Line(
                name=one_line(row.label),
                text=format_bytes(row.n_bytes),
                share=row.n_bytes / place.ceiling_bytes if place.ceiling_bytes else None,
                note=one_line(row.note),
            )
            for row in place.rows
        )
        sections.append(Section(title=one_line(title), lines=lines, note=one_line(place.note)))
    figures = tuple(
        Line(name=figure.label, text=f"{shown(figure)}{', ' if figure.note else ''}{one_line(figure.note)}")
        for figure in explanation.figures
    )
    sections.append(Section(title="Figures", lines=figures, note=speed_sentence(explanation)))
    advice = [one_line(step.sentence) for step in explanation.advice]
    advice += [one_line(note) for note in explanation.notes]
    if advice:
        sections.append(Section(title="What more would buy", lines=(), note="\n".join(advice)))
    return sections


def speed_sentence(explanation: Explanation) -> str:
    """In words, what to expect of the speed."""
    tokens_s = explanation.answer.tokens_s
    pace = next(word for least, word in _PACES if tokens_s >= least)
    answer_s = SAMPLE_ANSWER / tokens_s if tokens_s > 0 else 0.0
    return (
        f"Expect about {_figure(tokens_s)} tokens a second once warm: {pace}. An answer of {SAMPLE_ANSWER} tokens "
        f"takes about {format_seconds(answer_s)}, reading a prompt of {SAMPLE_PROMPT:,} tokens from a cold start "
        f"{format_seconds(explanation.prompt.seconds)}."
    )


def _figure(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


_PACES = (
    (12.0, "faster than one reads"),
    (5.0, "as fast as one reads"),
    (2.0, "slower than one reads, faster than one types"),
    (0.5, "about as fast as one types"),
    (0.0, "something to come back to"),
)
"""From this many tokens a second on: people read 4 to 5 words, so 5 to 7 tokens, and type under one word a second."""
