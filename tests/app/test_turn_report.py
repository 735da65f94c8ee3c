from app.turn_report import as_text, draft_section, drive_sections, turn_sections
from engine.events import DraftPause, DraftStats, DriveFigures, PhaseFigures, TurnStats


def _drive(name: str, payload: int, **more: float) -> DriveFigures:
    figures = {"n_reads": 100, "read_bytes": payload, "busy_s": 2.0, "queue_s": 0.5, "rate_bytes_s": payload / 2.0}
    return DriveFigures(drive=name, payload_bytes=payload, n_errors=int(more.pop("n_errors", 0)), **(figures | more))  # type: ignore[arg-type]


def make_stats(**more: object) -> TurnStats:
    """A turn with round figures: 40 s of prompt, 60 s of reply, half of the time waiting."""
    phases = [
        PhaseFigures(work="prefill", phase="expert_reads", seconds=30.0, bytes=30 * 10**9, rate_bytes_s=1e9),
        PhaseFigures(work="prefill", phase="attention", seconds=10.0, bytes=10**9, rate_bytes_s=1e8),
        PhaseFigures(work="prefill", phase="draft", seconds=0.0, bytes=0, rate_bytes_s=0.0),
        PhaseFigures(work="decode", phase="experts", seconds=0.5, bytes=0, rate_bytes_s=0.0),
    ]
    given = {
        "prompt_tokens": 1_000, "reused_tokens": 200, "answer_tokens": 100, "thinking_tokens": 20, "prefill_s": 40.0,
        "decode_s": 60.0, "read_bytes": 40 * 10**9, "expert_hits": 300, "expert_misses": 100, "wait_s": 50.0,
        "drives": (_drive("nvme0", 30 * 10**9), _drive("nvme1\x1b[31m", 10 * 10**9, n_errors=2)),
        "phases": tuple(phases),
    }  # fmt: skip
    return TurnStats(**(given | more))  # type: ignore[arg-type]


DRAFT = DraftStats(
    rounds=10, drafted=40, accepted=20, drafted_by_position=(10, 10, 10, 10, 0), accepted_by_position=(9, 6, 4, 1, 0),
    mean_accepted=2.0, forwards=12, tokens_per_forward=2.5, propose_s=1.0, verify_s=9.0,
    pauses=(DraftPause(after_tokens=64, tokens=32, reason="too few were right"),), off_reason="",
)  # fmt: skip


def test_a_turn_is_told_in_figures() -> None:
    did, reading, answering = turn_sections(make_stats())
    assert [(line.name, line.text) for line in did.lines] == [
        ("prompt", "800 of 1,000 tokens read in 40 s (20/s), 200 kept from before"),
        ("reply", "120 tokens in 1 m 00 s (2.0/s)"),
        ("experts", "300 from memory, 100 from drives: 75% hit"),
        ("drive wait", "50 s of 1 m 40 s, 50%"),
    ]
    # Most of the time first; what took none is left out.
    assert reading.title == "Reading the prompt: 40 s"
    assert [(line.name, line.text, line.share) for line in reading.lines] == [
        ("waiting for experts", "75%, 30 s, 1.00 GB/s", 0.75),
        ("attention", "25%, 10 s, 100 MB/s", 0.25),
    ]
    assert [(line.name, line.text) for line in answering.lines] == [("experts", "100%, 500 ms")]


def test_what_nothing_measured_is_left_out() -> None:
    sections = turn_sections(make_stats(phases=(), expert_hits=0, expert_misses=0, prefill_s=0.0, decode_s=0.0))
    (did,) = sections
    assert [line.name for line in did.lines] == ["prompt", "reply"]
    assert did.lines[1].text == "120 tokens in 0 ms"


def test_each_drive_has_its_share_rate_queue_and_errors() -> None:
    first, second, together = drive_sections(make_stats())
    assert (first.title, second.title, together.title) == ("nvme0", "nvme1\u241b[31m", "Together")
    assert [(line.name, line.text) for line in first.lines] == [
        ("share", "30.0 GB, 75%"),
        ("rate", "15.0 GB/s over 2.0 s"),
        ("reads", "100 of 300 MB on average"),
        ("queue", "5.0 ms before each began"),
        ("errors", "none"),
    ]
    assert second.lines[-1].text == "2"
    assert [line.text for line in together.lines] == ["40.0 GB", "200"]


def test_no_drive_read_is_said() -> None:
    (section,) = drive_sections(make_stats(drives=()))
    assert section.note == "The last turn read nothing from a drive."


def test_drafts_are_told_by_position_with_their_pauses() -> None:
    section = draft_section(DRAFT)
    assert section is not None
    assert [(line.name, line.text) for line in section.lines] == [
        ("kept", "20 of 40, 50%"),
        ("tokens a forward", "2.50 over 12 forwards"),
        ("time", "1.0 s drafting, 9.0 s verifying"),
        ("draft 1", "90% kept"),
        ("draft 2", "60% kept"),
        ("draft 3", "40% kept"),
        ("draft 4", "10% kept"),
    ]
    assert section.note == "Paused after 64 tokens for 32: too few were right"
    assert draft_section(None) is None


def test_line_mode_has_no_bars() -> None:
    text = as_text(turn_sections(make_stats(draft=DRAFT)))
    assert "#" not in text and "  waiting for experts: 75%, 30 s, 1.00 GB/s\n" in text
