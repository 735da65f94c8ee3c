"""What a user says about drafting: options and settings to one record. No torch."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from app.errors import UsageError
from app.settings import Settings
from app.values import RULES
from engine.draft.settings import DEFAULT_MIN_ACCEPT, DraftMode, DraftSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What the command line said of drafting; None where it is silent. Drafts never change an answer."""

    draft: Annotated[
        DraftMode | None,
        Parameter(help="Draft while it pays, always as much as may be, or never. [default: auto]"),
    ] = None
    draft_max: Annotated[
        int | None, Parameter(help="Most drafts that one forward verifies. [default: all the head gives, 5]")
    ] = None
    draft_min_accept: Annotated[
        float | None,
        Parameter(
            help="Share of the last ten drafts that must be right, unless drafting is clearly faster: 0 to 1."
            f" [default: {DEFAULT_MIN_ACCEPT:.2f}]"
        ),
    ] = None


def make_drafting(options: DraftOptions, settings: Settings) -> DraftSettings:
    """The options, then the settings. Raises: UsageError for an option that cannot act."""
    for name in ("draft_max", "draft_min_accept"):
        value = getattr(options, name)
        if value is not None and not RULES[name].accepts(value):
            raise UsageError(f"--{name.replace('_', '-')} must be {RULES[name].wanted}, not {value}")
        if value is not None and options.draft == "off":
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --draft off", hint="Leave one of them away."
            )
    if options.draft_min_accept is not None and options.draft == "on":
        raise UsageError(
            "--draft-min-accept has no effect with --draft on, which always drafts", hint="Use --draft auto."
        )
    mode: DraftMode = options.draft or _mode(settings)
    least = settings.draft_min_accept if options.draft_min_accept is None else options.draft_min_accept
    return DraftSettings(
        mode=mode,
        max_drafts=options.draft_max or settings.draft_max,
        min_accept=DEFAULT_MIN_ACCEPT if least is None else float(least),
    )


def _mode(settings: Settings) -> DraftMode:
    match settings.draft:
        case "on" | "off" as mode:
            return mode
        case _:
            return "auto"
