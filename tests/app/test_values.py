import pytest

from app.values import default_max_tokens, is_effort, parse_effort


@pytest.mark.parametrize(
    ("text", "effort"), [("off", None), ("low", "low"), ("high", "high"), ("max", "max"), ("1", 1), ("100", 100)]
)
def test_every_effort_of_the_prompt_format_is_taken(text: str, effort: object) -> None:
    assert is_effort(text)
    assert parse_effort(text) == effort


@pytest.mark.parametrize("text", ["", "0", "101", "-5", "5.5", "\u0663", "LOW", "on", "9" * 5000])
def test_anything_else_is_not_an_effort(text: str) -> None:
    assert not is_effort(text)


@pytest.mark.parametrize(("effort", "tokens"), [(None, 8_192), ("low", 65_536), (42, 65_536), ("max", 131_072)])
def test_the_longest_reply_is_the_vendors_default(effort: str | int | None, tokens: int) -> None:
    # The table of sampling defaults in the prompt format: 8192 chat, 65536 thinking, 131072 at max effort.
    assert default_max_tokens(effort) == tokens
