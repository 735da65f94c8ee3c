"""The drafting options: what they are read as, what the demo does with them, and what is said of it."""

import json
from collections.abc import Callable

import pytest

from app.backends.base import Backend
from app.cli import main
from app.drafting import DraftOptions, make_drafting
from app.errors import SettingsError, UsageError
from app.settings import Settings, check_settings
from engine.draft.settings import DraftSettings
from engine.events import DraftPause, DraftStats
from tests.demo_answer import ANSWER, QUESTION
from tests.fakes import ScriptedBackend, turn_done

Use = Callable[[Backend], None]
Output = pytest.CaptureFixture[str]


def test_options_win_over_settings_and_settings_over_defaults() -> None:
    assert make_drafting(DraftOptions(), Settings()) == DraftSettings(mode="auto", max_drafts=None, min_accept=0.60)
    saved = Settings(draft="off", draft_max=3, draft_min_accept=0.0)
    assert make_drafting(DraftOptions(), saved) == DraftSettings(mode="off", max_drafts=3, min_accept=0.0)
    said = DraftOptions(draft="auto", draft_max=2, draft_min_accept=1.0)
    assert make_drafting(said, saved) == DraftSettings(mode="auto", max_drafts=2, min_accept=1.0)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--draft-max", "0"], "--draft-max must be a whole number from 1 to 1024"),
        (["--draft-min-accept", "1.5"], "--draft-min-accept must be a number from 0 to 1"),
        (["--draft", "off", "--draft-max", "3"], "--draft-max has no effect with --draft off"),
        (["--draft", "on", "--draft-min-accept", "0.5"], "--draft-min-accept has no effect with --draft on"),
        (["--draft", "often"], "often"),
    ],
)
def test_an_option_that_cannot_act_is_refused(arguments: list[str], part: str, capsys: Output) -> None:
    assert main(["ask", "hi", *arguments]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(("key", "value"), [("draft", "often"), ("draft_max", 0), ("draft_min_accept", 2)])
def test_settings_are_checked(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        check_settings({key: value}, source="s.toml")


def test_a_usage_error_names_the_option() -> None:
    with pytest.raises(UsageError, match="--draft-min-accept"):
        make_drafting(DraftOptions(draft_min_accept=-0.1), Settings())


def _stats(capsys: Output, *arguments: str) -> tuple[str, dict[str, object]]:
    """The demo's answer, and its last event's figures."""
    assert main(["ask", QUESTION, "--json", *arguments]) == 0
    events = [json.loads(line)["data"] for line in capsys.readouterr().out.splitlines()]
    text = "".join(event["text"] for event in events if event.get("event") == "text_delta")
    return text, events[-1]["stats"]


def test_the_demo_answers_the_same_with_and_without_drafts_in_fewer_forwards(capsys: Output) -> None:
    plain, without = _stats(capsys, "--draft", "off")
    drafted, stats = _stats(capsys, "--draft", "on", "--draft-max", "4")
    assert plain == drafted == ANSWER
    assert without["draft"] is None
    draft = stats["draft"]
    assert isinstance(draft, dict)
    assert draft["drafted"] == sum(draft["drafted_by_position"]) and len(draft["drafted_by_position"]) == 4
    # It was trained on this text: 4.4 of 5 drafts are right over whole answers.
    assert draft["accepted"] > 0.7 * draft["drafted"] and draft["tokens_per_forward"] > 3
    assert draft["pauses"] == [] and draft["off_reason"] == ""


def test_the_line_behind_an_answer_says_how_drafts_did(use_backend: Use, capsys: Output) -> None:
    draft = DraftStats(
        rounds=3, drafted=12, accepted=9, drafted_by_position=(3, 3, 3, 2, 1), accepted_by_position=(3, 3, 2, 1, 0),
        mean_accepted=3.0, forwards=5, tokens_per_forward=2.8, propose_s=0.1, verify_s=0.4,
        pauses=(DraftPause(after_tokens=12, tokens=64, reason="5 of the last 10 drafts were right"),), off_reason="",
    )  # fmt: skip
    use_backend(ScriptedBackend([turn_done(draft=draft)]))
    assert main(["ask", "hi", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "9 of 12 drafts right, 2.8 tokens a forward, then paused" in err
    wire = json.loads(out.splitlines()[-1])["data"]["stats"]["draft"]
    assert wire["accepted_by_position"] == [3, 3, 2, 1, 0]
    assert wire["pauses"] == [{"after_tokens": 12, "tokens": 64, "reason": "5 of the last 10 drafts were right"}]
