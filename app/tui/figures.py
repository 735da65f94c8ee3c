"""What is said of a turn in one line: its price before, its figures after, and what it does meanwhile. Plain text.

The one thing a reader would get wrong: a figure that is not known is left out. A zero here was measured.
"""

from collections.abc import Sequence

from app.backends.base import PromptCost
from app.report import SHORTEST_S, format_bytes, format_per_second, format_seconds, with_rate
from app.sanitize import one_line
from engine.events import DoneReason, LoadProgress, PrefillProgress, TurnStats

_REASONS: dict[DoneReason, str] = {
    "stop": "",
    "length": "cut at the token limit",
    "context": "the context is full",
    "stopped": "stopped by you",
}


def footer_parts(stats: TurnStats, reason: DoneReason | None, seed: int | None = None) -> list[str]:
    """The figures of a finished turn, the most telling first."""
    drawn = stats.answer_tokens + stats.thinking_tokens
    parts = [with_rate(f"{drawn:,} token{'' if drawn == 1 else 's'}", drawn, stats.decode_s)]
    if reason is not None and (why := _why(stats, reason)):
        parts.append(why)
    n_read = stats.prompt_tokens - stats.reused_tokens
    parts.append(with_rate(f"read {n_read:,}", n_read, stats.prefill_s) + f", {stats.reused_tokens:,} reused")
    if stats.read_bytes:
        parts.append(f"drives {format_bytes(stats.read_bytes)}, wait {wait_share(stats):.0%}")
    parts.extend(draft_parts(stats))
    if seed is not None:
        parts.append(f"seed {seed}")
    return parts


def _why(stats: TurnStats, reason: DoneReason) -> str:
    if reason == "length" and not stats.answer_tokens and stats.thinking_tokens:
        return "the token limit was reached while thinking"
    return _REASONS[reason]


def draft_parts(stats: TurnStats) -> list[str]:
    """How many drafted tokens were kept, when there were any."""
    draft = stats.draft
    if draft is None or not draft.drafted:
        return []
    return [f"drafts {draft.accepted / draft.drafted:.0%} kept"]


def wait_share(stats: TurnStats) -> float:
    """The share of a turn's time that its forwards waited for the drives."""
    return stats.wait_s / max(stats.prefill_s + stats.decode_s, 1e-9)


def hit_share(stats: TurnStats) -> float | None:
    """The share of experts that were in memory; None when none was asked for."""
    n_experts = stats.expert_hits + stats.expert_misses
    return stats.expert_hits / n_experts if n_experts else None


def price(cost: PromptCost, *, what: str = "") -> str:
    """What sending costs: "214 tokens to read, 5,657 kept | about 4 s to the first token"."""
    n_new = cost.prompt_tokens - cost.reused_tokens
    parts = [f"{what}{n_new:,} token{'' if n_new == 1 else 's'} to read, {cost.reused_tokens:,} kept"]
    if cost.expected_s is not None:
        parts.append(f"about {format_seconds(cost.expected_s)} to the first token")
    left = cost.context_tokens - cost.prompt_tokens
    if left < cost.context_tokens // 8:
        parts.append(f"{max(left, 0):,} tokens of the context are left")
    return " | ".join(parts)


def loading_text(event: LoadProgress) -> str:
    """How far the model is loaded."""
    parts = [f"loading {format_bytes(event.done_bytes)} of {format_bytes(event.total_bytes)}"]
    if event.elapsed_s >= SHORTEST_S:
        parts.append(f"{format_bytes(event.done_bytes / event.elapsed_s)}/s")
    parts.extend(_left(event.done_bytes, event.total_bytes, event.elapsed_s))
    return " | ".join(parts)


def reading_lines(event: PrefillProgress, width: int) -> list[str]:
    """The prompt being read: tokens with a bar, rate and time left; then what the drives gave."""
    counts = f"{event.done_tokens:,} of {event.total_tokens:,} tokens"
    rate = format_per_second(event.done_tokens, event.elapsed_s) if event.elapsed_s >= SHORTEST_S else ""
    figures = [rate.replace("/s", " tok/s"), *_left(event.done_tokens, event.total_tokens, event.elapsed_s)]
    after = "   ".join(part for part in figures if part)
    room = width - len("reading prompt   ") - len(counts) - len(after) - 6
    middle = f"   {bar(event.done_tokens, event.total_tokens, min(room, 24))}" if room >= 8 else ""
    lines = [f"reading prompt   {counts}{middle}" + (f"   {after}" if after else "")]
    if experts := _experts(event, width):
        lines.append(experts)
    if event.reused_tokens:
        lines.append(f"kept             {event.reused_tokens:,} tokens from before")
    return lines


def _experts(event: PrefillProgress, width: int) -> str:
    """Where the experts came from, and what each drive gives; as much as fits."""
    parts = [f"{event.expert_hits:,} from memory"] if event.expert_hits or event.expert_misses else []
    if event.read_bytes:
        rate = f" at {format_bytes(event.read_bytes / event.elapsed_s)}/s" if event.elapsed_s else ""
        count = f"{event.expert_misses:,} from drives, " if event.expert_misses else ""
        parts.append(f"{count}{format_bytes(event.read_bytes)}{rate}")
    line = "experts          " + ", ".join(parts) if parts else ""
    if len(event.drives) > 1:
        each = ", ".join(f"{one_line(one.drive)} {format_bytes(one.rate_bytes_s)}/s" for one in event.drives)
        line = f"{line}   ({each})" if len(line) + len(each) + 5 <= width else line
    return line if len(line) <= width else line[:width]


def bar(done: float, total: float, width: int) -> str:
    """A bar of `width` cells: `####....`."""
    n_done = round(width * min(max(done / total, 0), 1)) if total > 0 else 0
    return "#" * n_done + "." * (width - n_done)


def fitting(parts: Sequence[str], width: int, separator: str = " | ") -> str:
    """As many parts as fit into `width` cells, dropped from the right; the first is cut rather than dropped."""
    line = ""
    for part in parts:
        longer = f"{line}{separator}{part}" if line else one_line(part)[:width]
        if len(longer) > width:
            break
        line = longer
    return line


def _left(done: float, total: float, elapsed_s: float) -> list[str]:
    return [f"{format_seconds(elapsed_s * (total - done) / done)} left"] if 0 < done < total else []
