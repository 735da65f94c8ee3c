"""Where the time of a turn went, what each drive gave, and what drafting brought: lines for a screen or line mode.

The one thing a reader would get wrong: shares are of the time of their own section, and of a drive's of all bytes. A
figure that nothing measured is left out, never shown as zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.report import SHORTEST_S, format_bytes, format_per_second, short_seconds
from app.sanitize import one_line
from engine.events import DraftStats, DriveFigures, Phase, TurnStats, Work

_PHASES: dict[Phase, str] = {
    "expert_reads": "waiting for experts",
    "experts": "experts",
    "attention": "attention",
    "indexer": "choosing positions",
    "dense": "shared experts",
    "engram": "engram rows",
    "head": "head",
    "draft": "draft head",
    "other": "everything else",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One name and what is said of it. Safe for a terminal."""

    name: str
    text: str
    share: float | None = None
    """Of its section, 0 to 1, for a bar; None where nothing is shared."""
    note: str = ""
    """More, where there is room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Some lines under a heading."""

    title: str
    lines: tuple[Line, ...]
    note: str = ""
    """A sentence below them."""


def turn_sections(stats: TurnStats) -> list[Section]:
    """The turn in figures: what it did, where reading the prompt and answering spent their time, drafts."""
    n_read = stats.prompt_tokens - stats.reused_tokens
    drawn = stats.answer_tokens + stats.thinking_tokens
    did = [
        Line(
            name="prompt",
            text=f"{n_read:,} of {stats.prompt_tokens:,} tokens read in {_timed(n_read, stats.prefill_s)}, "
            f"{stats.reused_tokens:,} kept from before",
        ),
        Line(name="reply", text=f"{drawn:,} tokens in {_timed(drawn, stats.decode_s)}"),
    ]
    n_experts = stats.expert_hits + stats.expert_misses
    if n_experts:
        on_cards = f" ({stats.card_hits:,} of them on cards)" if stats.card_hits else ""
        did.append(
            Line(
                name="experts",
                text=f"{stats.expert_hits:,} from memory{on_cards}, {stats.expert_misses:,} from drives: "
                f"{stats.expert_hits / n_experts:.0%} hit",
            )
        )
    total_s = stats.prefill_s + stats.decode_s
    if total_s > 0:
        waited = f"{short_seconds(stats.wait_s)} of {short_seconds(total_s)}, {stats.wait_s / total_s:.0%}"
        did.append(Line(name="drive wait", text=waited))
    found = [
        Section(title="The last turn", lines=tuple(did)),
        _phases("Reading the prompt", stats, "prefill"),
        _phases("Answering", stats, "decode"),
        draft_section(stats.draft),
    ]
    return [section for section in found if section is not None]


def drive_sections(stats: TurnStats) -> list[Section]:
    """One section for each drive, and what they gave together."""
    drives = stats.drives
    total = sum(drive.payload_bytes for drive in drives)
    if not drives:
        return [Section(title="Drives", lines=(), note="The last turn read nothing from a drive.")]
    sections = [_drive(drive, total) for drive in drives]
    if len(drives) > 1:
        lines = (
            Line(name="asked for", text=format_bytes(total)),
            Line(name="reads", text=f"{sum(drive.n_reads for drive in drives):,}"),
        )
        sections.append(Section(title="Together", lines=lines))
    return sections


def draft_section(draft: DraftStats | None) -> Section | None:
    """What drafting brought; None when there is nothing to say."""
    if draft is None:
        return None
    if draft.off_reason:
        return Section(title="Drafts", lines=(), note=f"Off: {one_line(draft.off_reason)}")
    lines = [
        Line(name="kept", text=f"{draft.accepted:,} of {draft.drafted:,}{_percent(draft.accepted, draft.drafted)}"),
        Line(name="tokens a forward", text=f"{draft.tokens_per_forward:.2f} over {draft.forwards:,} forwards"),
        Line(name="time", text=f"{short_seconds(draft.propose_s)} drafting, {short_seconds(draft.verify_s)} verifying"),
    ]
    by_position = zip(draft.accepted_by_position, draft.drafted_by_position, strict=False)
    for place, (kept, drafted) in enumerate(by_position, 1):
        if drafted:
            lines.append(Line(name=f"draft {place}", text=f"{kept / drafted:.0%} kept", share=kept / drafted))
    pauses = [f"Paused after {p.after_tokens:,} tokens for {p.tokens:,}: {one_line(p.reason)}" for p in draft.pauses]
    return Section(title="Drafts", lines=tuple(lines), note="\n".join(pauses))


def as_text(sections: Sequence[Section]) -> str:
    """The sections for line mode: no bars, no columns that need a wide screen."""
    blocks = []
    for section in sections:
        lines = [
            section.title,
            *(f"  {line.name}: {line.text}{f' ({line.note})' if line.note else ''}" for line in section.lines),
        ]
        lines += [f"  {note}" for note in section.note.splitlines()]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _phases(title: str, stats: TurnStats, work: Work) -> Section | None:
    phases = sorted((p for p in stats.phases if p.work == work and p.seconds > 0), key=lambda p: -p.seconds)
    total_s = sum(phase.seconds for phase in phases)
    if total_s <= 0:
        return None
    lines = []
    for phase in phases:
        share = phase.seconds / total_s
        rate = f", {format_bytes(phase.rate_bytes_s)}/s" if phase.bytes else ""
        text = f"{share:.0%}, {short_seconds(phase.seconds)}{rate}"
        lines.append(Line(name=_PHASES[phase.phase], text=text, share=share))
    return Section(title=f"{title}: {short_seconds(total_s)}", lines=tuple(lines))


def _drive(drive: DriveFigures, total_bytes: int) -> Section:
    lines = [
        Line(
            name="share",
            text=f"{format_bytes(drive.payload_bytes)}{_percent(drive.payload_bytes, total_bytes)}",
            share=drive.payload_bytes / total_bytes if total_bytes else None,
        )
    ]
    if drive.busy_s > 0:
        lines.append(Line(name="rate", text=f"{format_bytes(drive.rate_bytes_s)}/s over {short_seconds(drive.busy_s)}"))
    if drive.n_reads:
        size = format_bytes(drive.read_bytes / drive.n_reads)
        lines.append(Line(name="reads", text=f"{drive.n_reads:,} of {size} on average"))
        lines.append(Line(name="queue", text=f"{drive.queue_s / drive.n_reads * 1000:.1f} ms before each began"))
    lines.append(Line(name="errors", text=f"{drive.n_errors:,}" if drive.n_errors else "none"))
    return Section(title=one_line(drive.drive), lines=tuple(lines))


def _timed(count: int, seconds: float) -> str:
    rate = format_per_second(count, seconds) if seconds >= SHORTEST_S else ""
    return short_seconds(seconds) + (f" ({rate})" if rate else "")


def _percent(part: float, whole: float) -> str:
    return f", {part / whole:.0%}" if whole else ""
